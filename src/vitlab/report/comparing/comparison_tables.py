"""The tables of a comparison."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from vitlab.evaluation.metrics import METRICS, Metric
from vitlab.report.comparing.comparison_json import seeds_of
from vitlab.report.comparing.entry import Entry
from vitlab.report.comparing.recipes_apart import seed_groups
from vitlab.report.comparing.run_comparison import Compared
from vitlab.report.comparing.verdicts import first_figure, p_cell
from vitlab.report.table_page import Table
from vitlab.units import duration, percent, si, storage

CLASSES = 40  # rows of the table of classes, at most
NAMED = 4  # runs whose pairs are called by their names; of more, by their numbers


def _rate(value: float) -> str:
    return f"{value:,.{int(value < 10)}f}"


COSTS: dict[str, tuple[str, Callable[[float], str]]] = {
    "images": ("Test images", lambda value: f"{value:,.0f}"),
    "params": ("Parameters", si),
    "macs": ("MACs", lambda value: si(value, 2)),
    "seconds": ("Training time", duration),
    "images_per_second": ("Images/s in training", _rate),
    "peak_memory": ("Peak memory", storage),
}


@dataclass(frozen=True)
class Cell:
    """A figure as text, its interval, whether it is the best of its column, and its bar."""

    text: str
    range: str = ""
    best: bool = False


@dataclass(frozen=True)
class Bar:
    """Where a figure and its interval lie on the scale of its column, in percent of its width."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class RunRow:
    """A run of the table of figures."""

    number: int
    entry: Entry
    bar: Bar | None
    cells: list[Cell]


def run_table(compared: Compared) -> tuple[list[str], list[RunRow], tuple[str, str] | None]:
    """Return the titles, a row for each run, and the ends of the scale of the first figure."""
    entries, first = compared.entries, first_figure(compared)
    most = max((len(each.result.get("classes", ())) for each in entries), default=0)
    shown = [
        metric
        for metric in METRICS.values()
        if metric.tells(most) and any(each.number(metric.name) is not None for each in entries)
    ]
    best = {metric.name: _best(entries, metric) for metric in shown}
    scale = _scale(entries, first)
    rows = [
        RunRow(
            number,
            each,
            _bar(each, first, scale),
            [_cell(each, metric, best[metric.name]) for metric in shown],
        )
        for number, each in enumerate(entries)
    ]
    ends = None if scale is None else (percent(scale[0]), percent(scale[1]))
    return [metric.title for metric in shown], rows, ends


def cost_table(entries: Sequence[Entry]) -> Table:
    """Return what each run cost."""
    keys = [key for key in COSTS if any(each.number(key) is not None for each in entries)]
    if all(each.task or not each.result for each in entries):
        keys = [key for key in keys if key != "images"]  # none was tested
    rows = []
    for each in entries:
        values = [None if each.task and key == "images" else each.number(key) for key in keys]
        cells = zip(keys, values, strict=True)
        texts = ("–" if value is None else COSTS[key][1](value) for key, value in cells)
        rows.append((each.name, *texts))
    return Table("Cost", ("Run", *(COSTS[key][0] for key in keys)), rows)


def pair_table(compared: Compared) -> Table:
    """Return the tests, a row for each two runs."""
    assert compared.same is not None
    first, runs = METRICS[first_figure(compared)], compared.same.runs
    few = len(runs) <= NAMED
    names = [compared.entries[n].name if few else f"{n + 1}" for n in runs]
    many = len(compared.pairs) > 1
    head = (
        "Runs", f"Difference in {first.word}",
        "Only first right", "Only second right", "p", *(("p (Holm)",) if many else ()),
        "Same answer", "Mistakes in common", "Kappa",
    )  # fmt: skip
    rows = [
        (
            f"{names[pair.first]} → {names[pair.second]}",
            first.gap(gap.value, gap.interval)
            if (gap := pair.differences.get(first.name))
            else "–",
            f"{pair.only_first:,}",
            f"{pair.only_second:,}",
            p_cell(pair.p),
            *((p_cell(pair.adjusted),) if many else ()),
            percent(pair.agreement),
            percent(pair.overlap),
            f"{pair.consistency:.2f}".replace("-", "−"),
        )
        for pair in compared.pairs
    ]
    return Table("Paired tests", head, rows, note=_of_tests(compared, few=few))


def _of_tests(compared: Compared, *, few: bool) -> str:
    """Return how the table of tests is read."""
    assert compared.same is not None
    many, several = len(compared.pairs) > 1, compared.same.several
    return (
        ("" if few else "Runs by their numbers in the table above. ")
        + f"On the same {len(compared.same):,} test images; the difference is second minus first, "
        "with its 95% interval (paired bootstrap). "
        + (
            "An image counts as right if exactly its labels are predicted. p: two-sided, of the "
            "difference in mAP over resamples."
            if several
            else "p: McNemar's exact test, two-sided."
        )
        + (" Holm's correction is for all pairs together." if many else "")
        + " Kappa is 1 where the same images are right and wrong, 0 where mistakes coincide as "
        "those of independent models would."
    )


def difference_table(compared: Compared) -> Table | None:
    """Return the differences in all figures, of two runs; None of more."""
    if len(compared.pairs) != 1 or compared.same is None:
        return None
    pair = compared.pairs[0]
    one, other = compared.figures
    rows = []
    for metric in METRICS.values():
        gap = pair.differences.get(metric.name)
        if gap is not None and metric.tells(len(compared.same.classes)):
            low, high = gap.interval or (0.0, 0.0)
            beyond = "does not contain 0" if low > 0 or high < 0 else "contains 0"
            rows.append(
                (
                    metric.title,
                    metric.text(one[metric.name]),
                    metric.text(other[metric.name]),
                    metric.gap(gap.value, gap.interval),
                    beyond if gap.interval else "–",
                )
            )
    names = [compared.entries[number].name for number in compared.same.runs]
    head = ("Figure", *names, "Difference", "95% interval")
    return Table("All figures", head, rows, note="")


def seed_tables(compared: Compared) -> list[Table]:
    """Return mean and deviation of runs that differ in their seed alone."""
    entries, found = compared.entries, []
    for group in seed_groups(entries):
        figures = seeds_of(entries, group)
        mean, std = figures["mean"], figures["std"]
        shown = [metric for metric in METRICS.values() if metric.name in mean]
        head = ("Runs", *(metric.title for metric in shown))
        texts = (
            f"{metric.text(mean[metric.name])} ± {metric.deviation(std[metric.name])}"
            for metric in shown
        )
        names = ", ".join(entries[number].name for number in group)
        found.append(Table(names, head, [(names, *texts)]))
    return found


@dataclass(frozen=True)
class ClassRow:
    """A class: its test images, its F1 in each run (None: not there), and how far these differ."""

    name: str
    images: int
    values: list[float | None]
    spread: float


def class_rows(entries: Sequence[Entry]) -> list[ClassRow]:
    """Return the classes whose F1 differs most between runs, most first."""
    tables = [_by_class(each) for each in entries]
    names = list(dict.fromkeys(name for table in tables for name in table))
    rows = []
    for name in names:
        own = [table.get(name) for table in tables]
        values = [None if each is None else each.get("f1") for each in own]
        known = [value for value in values if value is not None]
        if len(known) > 1:
            images = max(each["images"] for each in own if each is not None)
            rows.append(ClassRow(name[0], images, values, max(known) - min(known)))
    return sorted(rows, key=lambda row: -row.spread)


def _by_class(entry: Entry) -> dict[tuple[str, int], dict[str, Any]]:
    """Return the figures of each class by its name, and how often the name stood before."""
    before: Counter[str] = Counter()
    found = {}
    for each in entry.result.get("classes", []):
        found[each["class"], before[each["class"]]] = each
        before[each["class"]] += 1
    return found


def _best(entries: Sequence[Entry], metric: Metric) -> float | None:
    """Return the best value of a figure, if one can be better than another."""
    known = [value for each in entries if (value := each.number(metric.name)) is not None]
    several = len({each.task for each in entries}) > 1
    if len(set(known)) < 2 or (metric.name == "loss" and several):
        return None
    return max(known) if metric.better == "high" else min(known)


def _cell(entry: Entry, metric: Metric, best: float | None) -> Cell:
    value = entry.number(metric.name)
    if value is None:
        return Cell("–")
    ends = metric.range(entry.interval(metric.name))
    return Cell(metric.text(value), ends, best is not None and value == best)


def _scale(entries: Sequence[Entry], key: str) -> tuple[float, float] | None:
    """Return the ends of a scale on which all values of a figure, and their intervals, lie."""
    points = [value for each in entries if (value := each.number(key)) is not None]
    points += [end for each in entries for end in each.interval(key) or ()]
    if not points:
        return None
    room = 0.05 * (max(points) - min(points)) or 0.01
    return max(0.0, min(points) - room), min(1.0, max(points) + room)


def _bar(entry: Entry, key: str, scale: tuple[float, float] | None) -> Bar | None:
    value = entry.number(key)
    if scale is None or value is None:
        return None
    low, high = entry.interval(key) or (value, value)
    wide = (scale[1] - scale[0]) / 100
    return Bar(*((each - scale[0]) / wide for each in (value, low, high)))
