"""Page of a comparison of runs: figures, paired tests, curves, recipes, cost, classes, pictures."""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from markupsafe import Markup

from vitlab.evaluation.metrics import METRICS, Metric
from vitlab.evaluation.paired_tests import Pair
from vitlab.report.comparing.comparison_json import seeds_of
from vitlab.report.comparing.disagreements import disagreements
from vitlab.report.comparing.entry import Entry
from vitlab.report.comparing.recipe_diff import (
    Differing,
    differing,
    options_in,
    seed_groups,
    surroundings,
)
from vitlab.report.comparing.run_comparison import Compared
from vitlab.report.drawings.charts import DASHES, lines, of_run
from vitlab.report.drawings.drawing import SERIES_COLORS
from vitlab.report.facts import Point
from vitlab.report.page import Block, Page, Plot, Plots, Prose, Section, Table, write_page
from vitlab.units import duration, percent, si, storage

CLASSES = 40  # rows of the table of classes, at most
NAMED = 4  # runs whose pairs are called by their names; of more, by their numbers
LEVEL = 0.05  # of a test
STROKES = ("", "6 2.5", "1.5 1.8", "8 2 1.5 2", "3 2")  # of `DASHES`, as SVG has them
COSTS: dict[str, tuple[str, Callable[[float], str]]] = {
    "images": ("Test images", lambda value: f"{value:,.0f}"),
    "params": ("Parameters", si),
    "macs": ("MACs", lambda value: si(value, 2)),
    "seconds": ("Training time", duration),
    "images_per_second": ("Images/s in training", lambda value: f"{value:,.{int(value < 10)}f}"),
    "peak_memory": ("Peak memory", storage),
}


def write_comparison(file: Path, compared: Compared, command: str = "") -> Path:
    """Write a comparison as one HTML file that needs no other; return the file.

    Raises:
        DiskError: the file cannot be written.
    """
    entries = compared.entries
    sections = [
        Section("figures", "Figures", _figures(compared, file), folded=False),
        Section("tests", "Paired tests", _tests(compared), folded=False),
        Section("disagreements", "Where they disagree", disagreements(compared)),
        Section("all-figures", "All figures", _figures(compared, file, every=True)),
        Section("seeds", "Seeds of one recipe", _seeds(compared)),
        Section("curves", "Learning curves", _curves(entries)),
        Section("recipe", "What differs in the recipes", _recipes(entries)),
        Section("cost", "Cost", _cost(entries)),
        Section("classes", "Classes", _classes(entries)),
    ]
    title = f"{len(entries)} runs compared"
    page = Page(title, lead(compared), sections, compared.notes, command, "comparison")
    return write_page(file, page)


def run_name(number: int, entry: Entry) -> Markup:
    """Return a run's number and name, with a piece of its line."""
    return Markup(
        '<svg class="swatch" viewBox="0 0 32 10" aria-hidden="true"><path d="M1 5h30" stroke="'
        'var(--series{})" stroke-dasharray="{}"/></svg> <b>{}</b> <bdi>{}</bdi>'
    ).format(number % len(SERIES_COLORS), STROKES[number % len(DASHES)], number + 1, entry.name)


# What it says


def first_figure(compared: Compared) -> str:
    """Return the key of the figure that is compared first."""
    if compared.same is not None:
        return "map" if compared.same.several else "accuracy"
    return "map" if any("map" in each.result for each in compared.entries) else "accuracy"


def lead(compared: Compared) -> str:
    """Return the result in one or two sentences."""
    entries = compared.entries
    if not any(each.result for each in entries):
        return f"{len(entries)} runs, none of them finished: their curves and their recipes."
    if all(each.task for each in entries):
        return f"{len(entries)} runs that learned without labels."
    if compared.same is None:
        return f"{len(entries)} runs; no two of them can be compared image by image."
    if len(compared.pairs) == 1:
        return _of_two(compared, compared.pairs[0])
    key, names = first_figure(compared), [entries[number].name for number in compared.same.runs]
    best = max(range(len(names)), key=lambda place: compared.figures[place].get(key, 0.0))
    apart = sum(pair.adjusted < LEVEL for pair in compared.pairs)
    title = "mean average precision" if key == "map" else "accuracy"
    return (
        f"{names[best]} has the highest {title}, {percent(compared.figures[best].get(key, 0.0))} "
        f"of {len(compared.same):,} test images. {apart or 'None'} of {len(compared.pairs)} pairs "
        f"differ{'s' * (apart == 1)} by more than chance explains (p < {LEVEL:g} after Holm's "
        "correction)."
    )


def _of_two(compared: Compared, pair: Pair) -> str:
    """Return how far two runs are apart, and whether chance explains it."""
    assert compared.same is not None
    key = first_figure(compared)
    one, other = (compared.entries[number].name for number in compared.same.runs)
    shares = [each.get(key, 0.0) for each in compared.figures]
    what = "mean average precision" if key == "map" else "accuracy"
    count = f"on {len(compared.same):,} test images"
    if shares[0] == shares[1]:
        return f"{one} and {other} have the same {what} {count}: {percent(shares[0])}."
    ends = pair.differences[key].interval
    better, worse = (other, one) if shares[1] > shares[0] else (one, other)
    low, high = ends or (0.0, 0.0)
    low, high = (low, high) if shares[1] > shares[0] else (-high, -low)
    within = f" ({100 * low:.1f} to {100 * high:.1f})" * (ends is not None)
    chance = "more than chance explains" if pair.p < LEVEL else "which chance may explain"
    test = "" if key == "map" else "McNemar's test, "
    p = "p < 0.001" if pair.p < 0.001 else f"p = {pair.p:.3f}"
    return (
        f"{better} has the higher {what} {count}: {percent(max(shares))} against "
        f"{percent(min(shares))} of {worse}. The difference is "
        f"{100 * abs(shares[0] - shares[1]):.1f} points{within}, {chance} ({test}{p})."
    )


# Its sections


def _figures(compared: Compared, file: Path, *, every: bool = False) -> list[Block]:
    """Return a row for each run, the best figure of each column in blue: the first ones, or all."""
    entries = compared.entries
    most = max((len(each.result.get("classes", ())) for each in entries), default=0)
    shown = [
        metric
        for metric in METRICS.values()
        if metric.tells(most)
        and (every or metric.key or metric.of == "training")
        and any(each.number(metric.name) is not None for each in entries)
    ]
    best = {metric.name: _best(entries, metric) for metric in shown}
    rows = []
    for number, each in enumerate(entries):
        address = _address(each, file)
        report = Markup(' · <a href="{}">report</a>').format(address) if address else ""
        state = "" if each.result else " · not finished"
        about = Markup("{}<small><bdi>{}</bdi>{}{}</small>").format(
            run_name(number, each), each.model, report, state
        )
        rows.append((about, *(_cell(each, metric, best[metric.name]) for metric in shown)))
    note = (
        "As each run recorded them when it was tested; below a figure stands its 95% interval; the "
        "best of a column is blue. Intervals that overlap do not mean that two runs are alike: the "
        "paired tests tell smaller differences from chance."
    )
    title = "All figures of the runs" if every else "Figures"
    return [Table(title, ("Run", *(metric.title for metric in shown)), rows, note=note)]


def _best(entries: Sequence[Entry], metric: Metric) -> float | None:
    """Return the best value of a figure, if one can be better than another."""
    known = [value for each in entries if (value := each.number(metric.name)) is not None]
    several = len({each.task for each in entries}) > 1
    if len(set(known)) < 2 or (metric.name == "loss" and several):
        return None
    return max(known) if metric.better == "high" else min(known)


def _cell(entry: Entry, metric: Metric, best: float | None) -> str:
    value = entry.number(metric.name)
    if value is None:
        return "–"
    ends = metric.range(entry.interval(metric.name))
    small = Markup("<small>{}</small>").format(ends) if ends else ""
    mark = Markup(' class="best"') if value == best else ""
    return Markup("<span{}>{}</span>{}").format(mark, metric.text(value), small)


def _address(entry: Entry, page: Path) -> str:
    """Return the address of a run's own report as seen from the page; empty if there is none."""
    if entry.report is None:
        return ""
    place = os.path.relpath(entry.report.resolve(), page.resolve().parent)
    return quote(place.encode("utf-8", "surrogateescape"))


def _tests(compared: Compared) -> list[Block]:
    """Return the tests, a row for each two runs, and of two runs their differences."""
    if compared.same is None:
        return []
    first, runs, many = METRICS[first_figure(compared)], compared.same.runs, len(compared.pairs) > 1
    few = len(runs) <= NAMED
    names = [compared.entries[n].name if few else f"{n + 1}" for n in runs]
    rows = []
    for pair in compared.pairs:
        gap = pair.differences.get(first.name)
        p = [p_cell(pair.p), *([p_cell(pair.adjusted)] if many else [])]
        rows.append(
            (
                f"{names[pair.first]} → {names[pair.second]}",
                first.gap(gap.value, gap.interval) if gap else "–",
                f"{pair.only_first:,}", f"{pair.only_second:,}", *p, percent(pair.agreement),
                percent(pair.overlap), f"{pair.consistency:.2f}".replace("-", "−"),
            )
        )  # fmt: skip
    head = (
        "Runs", f"Difference in {first.word}", "Only first right", "Only second right", "p",
        *(("p (Holm)",) if many else ()), "Same answer", "Mistakes in common", "Kappa",
    )  # fmt: skip
    note = (
        ("" if few else "Runs by their numbers in the table above. ")
        + f"On the same {len(compared.same):,} test images; the difference is second minus first, "
        "with its 95% interval (paired bootstrap). "
        + (
            "An image counts as right if exactly its labels are predicted. p: two-sided, of the "
            "difference in mAP over resamples."
            if compared.same.several
            else "p: McNemar's exact test, two-sided."
        )
        + " Holm's correction is for all pairs together." * many
        + " Kappa is 1 where the same images are right and wrong, 0 where mistakes coincide as "
        "those of independent models would."
    )
    tests = Table("Paired tests", head, rows, note=note)
    return [tests] if many else [tests, _differences(compared, names)]


def _differences(compared: Compared, names: Sequence[str]) -> Table:
    """Return the differences in all figures, of two runs."""
    assert compared.same is not None
    pair, (one, other) = compared.pairs[0], compared.figures
    rows = []
    for metric in METRICS.values():
        gap = pair.differences.get(metric.name)
        if gap is not None and metric.tells(len(compared.same.classes)):
            low, high = gap.interval or (0.0, 0.0)
            beyond = "does not contain 0" if low > 0 or high < 0 else "contains 0"
            texts = (metric.text(each[metric.name]) for each in (one, other))
            change = metric.gap(gap.value, gap.interval)
            rows.append((metric.title, *texts, change, beyond if gap.interval else "–"))
    return Table("All figures", ("Figure", *names, "Difference", "95% interval"), rows)


def p_cell(p: float) -> str:
    """Format a p-value for a table."""
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def _seeds(compared: Compared) -> list[Block]:
    """Return mean and deviation of runs that differ in their seed alone."""
    entries, found = compared.entries, list[Block]()
    for group in seed_groups(entries):
        figures = seeds_of(entries, group)
        mean, std = figures["mean"], figures["std"]
        shown = [metric for metric in METRICS.values() if metric.name in mean]
        rows = [
            (each.title, f"{each.text(mean[each.name])} ± {each.deviation(std[each.name])}")
            for each in shown
        ]
        names = ", ".join(entries[number].name for number in group)
        note = (
            f"{names} differ in their seed alone: mean and sample standard deviation. This is how "
            "far a figure moves by chance of training, which no test on one run of each sees."
        )
        found.append(Table("Seeds of one recipe", ("Figure", "Mean"), rows, note=note))
    return found


def _curves(entries: Sequence[Entry]) -> list[Block]:
    """Return the curves of all runs against epochs."""
    several = any(point.map is not None for each in entries for point in each.testing)
    panels: list[tuple[str, str, bool, Callable[[Point], float | None], bool]] = [
        ("train", "Training loss", False, lambda point: point.loss, False),
        ("loss", "Loss on held-out images", True, lambda point: point.loss, False),
        ("mark", "mAP" if several else "Accuracy on held-out images", True,
         lambda point: point.map if several else point.accuracy, True),
        ("probe", "10-shot accuracy", True, lambda point: point.probe, True),
        ("knn", "20-NN accuracy", True, lambda point: point.knn, True),
    ]  # fmt: skip
    plots = []
    for name, title, measured, value, share in panels:
        drawn = []
        for run, entry in enumerate(entries):
            points = entry.testing if measured else entry.training
            own = [(each.epoch, y) for each in points if (y := value(each)) is not None]
            pair = [epoch for epoch, _ in own], [y for _, y in own]
            drawn.append(of_run(run, f"{run + 1}", *pair, measured))
        drawing = lines(name, title, drawn, "epochs", share=share, legend=len(entries) <= 6)
        plots += [Plot(title, drawing)] if drawing else []
    names = Markup(" &nbsp; ").join(run_name(*each) for each in enumerate(entries))
    words = Prose("Training losses are moving averages over the steps.", note=True)
    return [Prose(names), Plots(plots), words] if plots else []


def _recipes(entries: Sequence[Entry]) -> list[Block]:
    """Return the options that differ, then devices and versions that do."""
    known = [options_in(each.recipe) for each in entries if each.recipe]
    rows, around = differing(entries), surroundings(entries)
    names = {name for each in known for name in each}
    alike = len(names) - len([row for row in rows if row.option in names])
    text = Prose(f"{alike} other options are the same in all runs.", note=True)
    if not rows:
        text = Prose("Nothing: all options are the same.")
    head = ("Option", *(each.name for each in entries))

    def table(title: str, found: Sequence[Differing]) -> Iterator[Table]:
        if found:
            cells = [(row.option, *row.values) for row in found]
            yield Table(title, head, cells, texts=len(head))

    return [
        *table("What differs in the recipes", rows), text, *table("Device and versions", around)
    ]  # fmt: skip


def _cost(entries: Sequence[Entry]) -> list[Block]:
    """Return what each run cost."""
    keys = [key for key in COSTS if any(each.number(key) is not None for each in entries)]
    if all(each.task or not each.result for each in entries):
        keys = [key for key in keys if key != "images"]  # none was tested
    rows = []
    for run, each in enumerate(entries):
        values = [None if each.task and key == "images" else each.number(key) for key in keys]
        cells = zip(keys, values, strict=True)
        texts = ("–" if value is None else COSTS[key][1](value) for key, value in cells)
        rows.append((run_name(run, each), *texts))
    note = "As recorded: time, memory and images/s are those of training, on each run's machine."
    head = ("Run", *(COSTS[key][0] for key in keys))
    return [Table("Cost", head, rows, note=note)]


def _classes(entries: Sequence[Entry]) -> list[Block]:
    """Return the classes whose F1 differs most between runs, most first."""
    tables = [_by_class(each) for each in entries]
    found = []
    for name in dict.fromkeys(name for table in tables for name in table):
        own = [table.get(name) for table in tables]
        values = [None if each is None else each.get("f1") for each in own]
        known = [value for value in values if value is not None]
        if len(known) > 1 and max(known) > min(known):
            images = max(each["images"] for each in own if each is not None)
            found.append((max(known) - min(known), name[0], images, values))
    found.sort(key=lambda row: -row[0])
    rows = [
        (name, f"{images:,}", *("–" if value is None else percent(value) for value in values),
         f"{100 * gap:.1f} points")
        for gap, name, images, values in found[:CLASSES]
    ]  # fmt: skip
    which = f" The first {CLASSES} of {len(found):,} classes." if len(found) > CLASSES else ""
    note = (
        "F1 of each class on the test images of each run; the largest difference first, classes "
        f"without one left out.{which} Of few images, differences are mostly chance."
    )
    head = ("Class", "Images", *(f"{n + 1}" for n in range(len(entries))), "Largest difference")
    return [Table("Classes", head, rows, note=note)] if rows else []


def _by_class(entry: Entry) -> dict[tuple[str, int], dict[str, Any]]:
    """Return the figures of each class by its name, and how often the name stood before."""
    before: Counter[str] = Counter()
    found = {}
    for each in entry.result.get("classes", []):
        found[each["class"], before[each["class"]]] = each
        before[each["class"]] += 1
    return found
