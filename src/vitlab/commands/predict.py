"""`vitlab predict`."""

import os
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from vitlab.commands import (
    CROPS,
    DEVICE,
    ENGINE,
    FILED,
    FLIPS,
    ON,
    OUT,
    PART_HELP,
    PARTED,
    PRECISION_AUTO,
    REPLACE,
    SHARD,
    TIMEOUT,
    WEIGHTS,
)
from vitlab.data.presence import check_each
from vitlab.data.settings import Columns
from vitlab.errors import OptionError, one_line
from vitlab.options import Options, at_least, option, options_of, when
from vitlab.packages import check_installed
from vitlab.places import PART, check_file, check_parts, is_folder
from vitlab.precision import Engine, Precision
from vitlab.terminal import print_figures
from vitlab.weights.hub import check_weights
from vitlab.weights.stated import Stated

if TYPE_CHECKING:
    from vitlab.evaluation.compute import Compute
    from vitlab.evaluation.infer import Views

SUMMARY = "Print the most likely classes of images."


@dataclass(frozen=True, kw_only=True)
class Predict(Options):
    """A model, images, and where to compute."""

    weights: str = option(MISSING, WEIGHTS, positional=True, check=check_weights)
    paths: tuple[str, ...] = option(
        MISSING,
        "any DATA of `vitlab train`, labels or not: image files, folders, glob patterns, lists, "
        "tables, tar shards; - for paths on standard input, one per line",
        positional=True,
        check=check_each,
    )
    path_column: str = option("", options_of(Columns)["path_column"].help)
    images: str = option("", options_of(Columns)["images"].help)
    allow_outside: bool = option(False, options_of(Columns)["allow_outside"].help)
    cache_data: str = option("", options_of(Columns)["cache_data"].help)
    top: int = option(5, "number of classes to print", at_least(1))
    flips: bool = option(False, FLIPS, only=when("crops", 1, 5))
    crops: Literal[1, 5, 10] = option(1, CROPS)
    out: str | None = option(
        None,
        f"{OUT}; or (a name without an ending) a folder of such files, which several processes can "
        "share",
    )
    replace: bool = option(False, REPLACE, only=FILED)
    format: Literal["parquet", "csv", "jsonl"] = option(
        "parquet", "of the files in the folder", only=PARTED
    )
    part_images: int = option(PART, PART_HELP, at_least(1), only=PARTED)
    shard: str = option("", SHARD, only=PARTED)
    on: Literal["", "ray"] = option("", ON, only=PARTED)
    timeout: float = option(600.0, TIMEOUT, at_least(0), only=PARTED)
    file: Stated = Stated()
    device: str = option("auto", DEVICE)
    precision: Precision = option("auto", PRECISION_AUTO)
    engine: Engine = option("auto", ENGINE)
    workers: int | None = option(
        None,
        "processes that decode images (None: 0; with a folder as out, one per core, at most eight)",
        at_least(0),
    )


def begin(options: Predict) -> None:
    """Refuse a place that rows cannot be written to."""
    if options.out and is_folder(options.out):
        if options.format == "parquet":
            check_installed("pyarrow", "a folder of Parquet files", "pass --format csv")
        check_parts(options.out)
    elif options.out:
        check_file(options.out, replace=options.replace)


def run(options: Predict) -> dict[str, Any]:
    """Classify; images that cannot be decoded are reported on stderr."""
    import vitlab
    from vitlab.evaluation.classification import answers_of, unlabeled
    from vitlab.progress import say

    parted = bool(options.out and is_folder(options.out))
    if not parted:
        _check_alone()
    file = check_file(options.out, replace=options.replace) if options.out and not parted else None
    model = vitlab.load(options.weights, **options.file.arguments())
    if model.config.classes and not model.config.labels:
        say("the weights do not name their classes: numbers stand for them; --labels names them")
    result = {"model": model.config.name, "temperature": model.temperature}
    known = _known(options)
    if parted:
        return _into_folder(model, known, options, result)
    source = unlabeled(model, options.paths, known)
    if file is not None:
        return result | _into(file, model, source, options)
    compute, views = _how(options, options.workers or 0)
    form = compute.fast(model, source, views.count)
    answers = answers_of(form, source, compute, options.top, views)
    damaged = [each.error for each in answers if each.error]
    for error in damaged:
        say(f"skipped: {error}")
    if damaged:
        say(f"{len(damaged):,} of {len(answers):,} images cannot be read")
    result |= {"images": len(answers) - len(damaged), "damaged": len(damaged), **form.about}
    return result | {"predictions": [each.as_dict() for each in answers]}


def _how(options: Predict, workers: int | None) -> "tuple[Compute, Views]":
    from vitlab.evaluation.compute import Compute
    from vitlab.evaluation.infer import Views

    compute = Compute(options.device, options.precision, options.engine, workers)
    return compute, Views(options.flips, options.crops)


def _known(options: Predict) -> Columns:
    """Return what the user says of lists and tables."""
    return Columns(
        path_column=options.path_column,
        images=options.images,
        allow_outside=options.allow_outside,
        cache_data=options.cache_data,
    )


def _check_alone() -> None:
    """Refuse several processes that would all do and print the same."""
    from vitlab.distributed.launch import read_environment

    world = read_environment(os.environ)
    if world.size > 1:
        raise world.shared(
            OptionError("several processes need a folder to share: pass --out with its name")
        )


def _into(file: Path, model: Any, images: Any, options: Predict) -> dict[str, Any]:
    """Write the rows."""
    from vitlab.evaluation.classification import classify_into
    from vitlab.progress import Meter, say

    compute, views = _how(options, options.workers or 0)
    with Meter(0, title="predicting") as meter:
        counts = classify_into(
            file,
            model,
            images,
            compute,
            top=options.top,
            views=views,
            warn=lambda message: say(f"skipped: {message}"),
            progress=meter.images,
        )
    return {**counts, "file": str(file)}


def _into_folder(
    model: Any, known: Columns, options: Predict, result: dict[str, Any]
) -> dict[str, Any]:
    """Write the rows into a folder of shards."""
    from vitlab.evaluation.classification import classify_shards, unlabeled

    compute, views = _how(options, options.workers)
    found = classify_shards(
        Path(options.out or "").expanduser(),
        model,
        lambda: unlabeled(model, options.paths, known),
        compute,
        ending=options.format,
        top=options.top,
        views=views,
        timeout=options.timeout,
        part_images=options.part_images,
        shard=options.shard,
        on=options.on,
    )
    return found and result | found


def show(result: dict[str, Any]) -> None:
    """Print a line per image, or where they are."""
    if "parts" in result:
        print_figures(result)
        return
    if "file" in result:
        damaged = f", {result['damaged']:,} damaged" if result["damaged"] else ""
        print(f"{result['file']}: {result['images']:,} images{damaged}")
    for each in (line for line in result.get("predictions", ()) if "top" in line):
        best = "  ".join(f"{item['class']} {item['probability']:.1%}" for item in each["top"])
        best += "  unlike the training images" * each.get("unlike", False)
        print(f"{one_line(each['image'])}  {best}")
    if result["temperature"] != 1:
        print(f"probabilities are calibrated: temperature {result['temperature']:.4g}")
