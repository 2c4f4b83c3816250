"""`vitlab evaluate`."""

from dataclasses import MISSING, dataclass
from typing import Any, Literal

from vitlab.commands import DEVICE, PRECISION, WEIGHTS, WORKERS
from vitlab.options import Options, at_least, option
from vitlab.terminal import print_figures, print_table
from vitlab.units import percent

ROWS = 10  # classes in the table
PAIRS = 5  # most confused pairs below it
FIGURES = ("precision", "recall", "f1")
SUMMARY = "Measure accuracy and calibration on labeled images."


@dataclass(frozen=True, kw_only=True)
class Evaluate(Options):
    """A model, data, and where to compute."""

    weights: str = option(MISSING, WEIGHTS, positional=True)
    data: str = option(MISSING, "labeled images, any DATA of `vitlab train`", positional=True)
    split: Literal["auto", "train", "validation", "test", "all"] = option(
        "auto",
        "auto: the test split if there is one; of data without splits, what training held out if "
        "the model was trained on it, else every image",
    )
    device: str = option("auto", DEVICE)
    precision: Literal["fp32", "bf16"] = option("fp32", PRECISION)
    workers: int | None = option(None, WORKERS, at_least(0))


def run(options: Evaluate) -> dict[str, Any]:
    """Evaluate; images that are skipped are reported on stderr."""
    import vitlab
    from vitlab.progress import say

    figures = vitlab.evaluate(
        vitlab.load(options.weights),
        options.data,
        split=options.split,
        device=options.device,
        precision=options.precision,
        workers=options.workers,
    )
    for note in figures["notes"]:
        say(f"skipped: {note}")
    return figures


def show(result: dict[str, Any]) -> None:
    """Print the figures, those of the worst classes, and the most confused pairs."""
    print_figures(result)
    seen = [each for each in result["classes"] if each["images"]]
    worst = sorted(seen, key=lambda each: each["f1"])[:ROWS]
    rows = [
        (each["class"], *(percent(each[key]) for key in FIGURES), f"{each['images']:,}")
        for each in worst
    ]
    if len(worst) < len(result["classes"]):
        print(f"the {len(worst)} classes with the lowest F1, of {len(result['classes']):,}")
    print_table(("class", "precision", "recall", "F1", "images"), rows)
    pairs = [
        (each["true"], each["predicted"], f"{each['images']:,}") for each in result["confused"]
    ]
    if pairs:
        print_table(("true class", "predicted as", "images"), pairs[:PAIRS])
