"""`vitlab predict`."""

from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any, Literal

from vitlab.commands import CROPS, DEVICE, FLIPS, OUT, REPLACE, WEIGHTS
from vitlab.data.presence import check_images
from vitlab.data.settings import Columns
from vitlab.errors import one_line
from vitlab.options import Options, at_least, option, options_of, when
from vitlab.places import check_file
from vitlab.weights.hub_names import check_weights
from vitlab.weights.stated import Stated

SUMMARY = "Print the most likely classes of images."


@dataclass(frozen=True, kw_only=True)
class Predict(Options):
    """A model, images, and where to compute."""

    weights: str = option(MISSING, WEIGHTS, positional=True, check=check_weights)
    paths: tuple[str, ...] = option(
        MISSING,
        "image files, folders or glob patterns; .csv, .tsv or .jsonl lists of them; - for paths on "
        "standard input, one per line",
        positional=True,
        check=check_images,
    )
    path_column: str = option("", options_of(Columns)["path_column"].help)
    images: str = option("", options_of(Columns)["images"].help)
    allow_outside: bool = option(False, options_of(Columns)["allow_outside"].help)
    top: int = option(5, "number of classes to print", at_least(1))
    flips: bool = option(False, FLIPS, only=when("crops", 1, 5))
    crops: Literal[1, 5, 10] = option(1, CROPS)
    out: str | None = option(None, OUT)
    replace: bool = option(False, REPLACE, only=when("out"))
    file: Stated = Stated()
    device: str = option("auto", DEVICE)
    workers: int = option(0, "processes that decode images", at_least(0))


def begin(options: Predict) -> None:
    """Refuse a file that rows cannot be written to."""
    if options.out:
        check_file(options.out, replace=options.replace)


def run(options: Predict) -> dict[str, Any]:
    """Classify; images that cannot be decoded are reported on stderr."""
    import vitlab
    from vitlab.data.pictures.listing import listed_images
    from vitlab.progress import say

    file = check_file(options.out, replace=options.replace) if options.out else None
    model = vitlab.load(options.weights, **options.file.arguments())
    if not model.config.labels:
        say("the weights do not name their classes: numbers stand for them; --labels names them")
    result = {"model": model.config.name, "temperature": model.temperature}
    known = Columns(
        path_column=options.path_column,
        images=options.images,
        allow_outside=options.allow_outside,
    )
    images = listed_images(options.paths, known)
    if file is not None:
        return result | _into(file, model, images, options)
    answers = vitlab.classify(
        model,
        images,
        top=options.top,
        device=options.device,
        workers=options.workers,
        flips=options.flips,
        crops=options.crops,
    )
    damaged = [each.error for each in answers if each.error]
    for error in damaged:
        say(f"skipped: {error}")
    if damaged:
        say(f"{len(damaged):,} of {len(answers):,} images cannot be read")
    counts = {"images": len(answers) - len(damaged), "damaged": len(damaged)}
    return result | counts | {"predictions": [each.as_dict() for each in answers]}


def _into(file: Path, model: Any, images: list[str], options: Predict) -> dict[str, Any]:
    """Write the rows."""
    from vitlab.evaluation.classification import classify_into
    from vitlab.evaluation.predictions import Views
    from vitlab.progress import Meter, say

    with Meter(0, title="predicting") as meter:
        counts = classify_into(
            file,
            model,
            images,
            top=options.top,
            device=options.device,
            workers=options.workers,
            views=Views(options.flips, options.crops),
            warn=lambda message: say(f"skipped: {message}"),
            progress=lambda done, total: meter.show(done, "images", total),
        )
    return {**counts, "file": str(file)}


def show(result: dict[str, Any]) -> None:
    """Print a line per image, or where they are."""
    if "file" in result:
        damaged = f", {result['damaged']:,} damaged" if result["damaged"] else ""
        print(f"{result['file']}: {result['images']:,} images{damaged}")
    for each in (line for line in result.get("predictions", ()) if "top" in line):
        best = "  ".join(f"{item['class']} {item['probability']:.1%}" for item in each["top"])
        print(f"{one_line(each['image'])}  {best}")
    if result["temperature"] != 1:
        print(f"probabilities are calibrated: temperature {result['temperature']:.4g}")
