"""`vitlab predict`."""

from dataclasses import MISSING, dataclass
from typing import Any

from vitlab.commands import DEVICE, WEIGHTS
from vitlab.options import Options, at_least, option

SUMMARY = "Print the most likely classes of images."


@dataclass(frozen=True, kw_only=True)
class Predict(Options):
    """A model, images, and where to compute."""

    weights: str = option(MISSING, WEIGHTS, positional=True)
    images: tuple[str, ...] = option(
        MISSING, "image files, folders or glob patterns", positional=True
    )
    top: int = option(5, "number of classes to print", at_least(1))
    device: str = option("auto", DEVICE)
    workers: int = option(0, "processes that decode images", at_least(0))


def run(options: Predict) -> dict[str, Any]:
    """Classify; images that cannot be decoded are reported on stderr."""
    import vitlab
    from vitlab.progress import say

    model = vitlab.load(options.weights)
    answers = vitlab.classify(
        model, options.images, top=options.top, device=options.device, workers=options.workers
    )
    for answer in (each for each in answers if each.error):
        say(f"skipped: {answer.error}")
    return {"model": model.config.name, "predictions": [each.as_dict() for each in answers]}


def show(result: dict[str, Any]) -> None:
    """Print a line per image."""
    for each in (line for line in result["predictions"] if "top" in line):
        best = "  ".join(f"{item['class']} {item['probability']:.1%}" for item in each["top"])
        print(f"{each['image']}  {best}")
