"""`vitlab duplicates`."""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from vitlab.command_table import Command
from vitlab.commands import PageOptions, WorkersOptions
from vitlab.data.exists import check_data
from vitlab.data.settings import Columns
from vitlab.options import argument
from vitlab.terminal import print_table
from vitlab.units import duration

if TYPE_CHECKING:
    from vitlab.data.duplicates.finding import Comparison

_LINES = 20  # pairs in the table


@dataclass(frozen=True, kw_only=True)
class Duplicates(WorkersOptions, PageOptions):
    """Two sets of images, or one, and the page to write."""

    train: str = argument(
        "any DATA of `vitlab train`, or a folder of images; its training images if it has splits",
        check_data,
    )
    test: str = argument(
        "the same; its test images if it has splits (empty: compare the splits of TRAIN, or look "
        "for pairs within it)",
        check_data,
        default="",
    )
    columns: Columns = Columns()


def begin(options: Duplicates) -> None:
    """Refuse a page that cannot be written."""
    options.page()


def run(options: Duplicates) -> dict[str, Any]:
    """Compare; images that cannot be decoded are reported on stderr."""
    from vitlab.data.duplicates.finding import compare, sets
    from vitlab.progress import Meter, say
    from vitlab.report.pairs_page import notes, write_pairs

    train, test = sets(options.train, options.test or None, options.columns)
    images = len(train) + (0 if test is None else len(test))
    with Meter(images, title="reading") as meter:
        shown = partial(meter.show, note="images")
        done = compare(train, test, workers=options.workers, progress=shown)
    say(*notes(done))
    result = _figures(done)
    if page := options.page():
        title = f"{options.train} and {options.test}" if options.test else options.train
        result["report"] = str(write_pairs(page, done, title, options.command))
    return result


def _figures(done: "Comparison") -> dict[str, Any]:
    """Return what was found, as the JSON object has it."""
    from vitlab.report.pairs_page import summary

    pairs = done.pairs
    rows = [
        {"train": i, "test": j, "score": score, "exact": exact}
        | {"train_name": done.train.name(i), "test_name": done.test.name(j)}
        for (i, j, score), exact in zip(pairs.tuples(), pairs.exact.tolist(), strict=True)
    ]
    return {
        "summary": summary(done),
        "images": done.images,
        "test_images": len({*pairs.test.tolist()}),
        "damaged": len(done.damaged),
        "flat": sum(pairs.flat[: 1 if done.within else 2]),
        "seconds": done.seconds,
        "images_per_second": done.images / done.seconds,
        "pairs": rows,
    }


def show(result: dict[str, Any]) -> None:
    """Print the first pairs, then what was found."""
    pairs = result["pairs"]
    if pairs:
        rows = [(_score(each), each["train_name"], each["test_name"]) for each in pairs[:_LINES]]
        print_table(("score", "training image", "test image"), rows)
    if more := len(pairs[_LINES:]):
        print(f"{more:,} more pairs: --json lists them all, --out FILE.html shows them")
    print(f"{result['summary']} {duration(result['seconds'])}.")
    if "report" in result:
        print(result["report"])


def _score(pair: dict[str, Any]) -> str:
    return "same bytes" if pair["exact"] else f"{pair['score']:.3f}"


COMMAND = Command(run, show=show, begin=begin)
