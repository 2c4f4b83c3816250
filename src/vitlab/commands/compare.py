"""`vitlab compare`."""

from dataclasses import dataclass
from typing import Any

from vitlab.commands import DeviceOptions, PageOptions, WorkersOptions
from vitlab.options import argument
from vitlab.runs.several_runs import check_runs
from vitlab.terminal import print_rows, print_table

SUMMARY = "Compare runs: figures, paired tests, recipes, mistakes."
FIRST = ("accuracy", "map")  # the figure that has its interval in the table
COSTS = ("params", "macs", "seconds")


@dataclass(frozen=True, kw_only=True)
class Compare(WorkersOptions, DeviceOptions, PageOptions):
    """The runs, the page to write, and what the user typed."""

    runs: tuple[str, ...] = argument(
        "folders of 2 to 20 runs; that of a sweep, seeds or folds stands for its runs", check_runs
    )


def begin(options: Compare) -> None:
    """Refuse a page that cannot be written."""
    options.page()


def run(options: Compare) -> dict[str, Any]:
    """Compare; what cannot be compared is said on stderr."""
    import vitlab
    from vitlab.progress import Meter, say

    how = options.values("replace device workers command")
    with Meter(0, title="evaluating") as meter:
        how["progress"] = lambda name, done, of: meter.show(done, f"images of {name}", of)
        result = vitlab.compare(options.runs, options.out, **how)
    say(*result["notes"])
    return result


def show(result: dict[str, Any]) -> None:
    """Print the runs, what differs in their recipes, the tests, and where the page is."""
    from vitlab.evaluation.metrics import METRICS

    names, rows = {each["run"]: each["name"] for each in result["runs"]}, []
    shown = [each.name for each in METRICS.values() if each.key or not each.fn]
    for each in result["runs"]:
        ranges = {key: each["intervals"][key] for key in FIRST if key in each.get("intervals", {})}
        kept = {key: each[key] for key in ("model", "task", *shown, *COSTS) if key in each}
        rows.append({"run": each["name"]} | kept | {"intervals": ranges})
    print_rows(rows)
    if options := result["recipe"]:
        print_table(("option", *names.values()), [(key, *own) for key, own in options.items()])
    if pairs := result["pairs"]:
        print(f"paired on {result['images']:,} test images; the difference is second minus first")
        head = ("first", "second", "difference", "only first", "only second", "p", "p (Holm)")
        print_table(head, [_row(each, names) for each in pairs])
    if "report" in result:
        print(result["report"])


def _row(pair: dict[str, Any], names: dict[str, str]) -> tuple[str, ...]:
    from vitlab.evaluation.metrics import METRICS

    key = next(key for key in FIRST if key in pair["differences"])
    value = METRICS[key].gap(**pair["differences"][key])
    counts = (f"{pair[key]:,}" for key in ("only_first", "only_second"))
    tests = (f"{pair[key]:.3g}" for key in ("p", "adjusted"))
    return (names[pair["first"]], names[pair["second"]], value, *counts, *tests)
