"""Page of a comparison of runs: figures, paired tests, curves, recipes, cost, classes, pictures."""

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from vitlab.data.images import Images
from vitlab.errors import UserError
from vitlab.evaluation.answers import Answers, SingleAnswers
from vitlab.evaluation.metrics import MAIN, METRICS, Metric
from vitlab.evaluation.paired_tests import Pair, SameImages
from vitlab.evaluation.run_predictions import reopened
from vitlab.progress import named_if_slow
from vitlab.report.charts import DASHES, SERIES_COLORS
from vitlab.report.comparing.compared_run import (
    ComparedRun,
    Rows,
    differing,
    options_in,
    surroundings,
)
from vitlab.report.comparing.recipe_groups import NUMBERING
from vitlab.report.comparing.recipe_sections import (
    LEVEL,
    all_figures,
    lead_of_recipes,
    p_cell,
    recipe_blocks,
)
from vitlab.report.comparing.run_comparison import Compared
from vitlab.report.curves import compared_curves
from vitlab.report.headline import COSTS
from vitlab.report.page import (
    Block,
    Columns,
    Page,
    Plots,
    Prose,
    ReportTable,
    Section,
    Thumbnail,
    Thumbnails,
    common_folder,
    table_of,
    write_page,
)
from vitlab.report.thumbnails import of_source
from vitlab.units import counted, percent

CLASSES = 40  # rows of the table of classes, at most
NAMED = 4  # runs whose pairs are called by their names; of more, by their numbers
APART = 20  # runs of which each has galleries of what it alone gets right or wrong, at most
PICTURES = 72  # at most, of all galleries together
FEWEST, MOST = 3, 16  # of one gallery
STROKES = ("", "6 2.5", "1.5 1.8", "8 2 1.5 2", "3 2")  # of `DASHES`, as SVG has them


@named_if_slow("drawing the page")
def write_comparison(file: Path, compared: Compared, command: str = "") -> Path:
    """Write a comparison as one HTML file that needs no other; return the file.

    Raises:
        DiskError: the file cannot be written.
    """
    entries, two = compared.entries, len(compared.pairs) == 1
    several = compared.has_several
    figures, tests = ("Each run", "Pairs of runs") if several else ("Figures", "Paired tests")
    sections = [
        Section("recipes", "Recipes", recipe_blocks(compared), folded=False),
        Section("figures", figures, _figures(compared, file), folded=several),
        Section("tests", tests, _tests(compared), folded=several),
        Section("disagreements", "Where they disagree", disagreements(compared)),
        Section("all-figures", "All figures", [_differences(compared)] if two else []),
        Section("recipe-figures", "All figures of the recipes", all_figures(compared)),
        Section("curves", "Learning curves", _curves(entries)),
        Section("recipe", "What differs in the recipes", _recipes(compared)),
        Section("cost", "Cost", _cost(entries)),
        Section("classes", "Classes", _classes(entries)),
    ]
    title = f"{len(entries)} runs compared"
    if len(compared.recipes) > 1 and several:
        title = f"{len(compared.recipes)} recipes compared, {len(entries)} runs"
    first = lead_of_recipes(compared) if several else lead(compared)
    page = Page(title, first, sections, compared.notes, command, "comparison")
    return write_page(file, page)


def run_name(number: int, entry: ComparedRun) -> Markup:
    """Return a run's number and name, with a piece of its line."""
    return Markup(
        '<svg class="swatch" viewBox="0 0 32 10" aria-hidden="true"><path d="M1 5h30" stroke="'
        'var(--series{})" stroke-dasharray="{}"/></svg> <b>{}</b> <bdi>{}</bdi>'
    ).format(number % len(SERIES_COLORS), STROKES[number % len(DASHES)], number + 1, entry.name)


# What it says


def main_figure(same: SameImages) -> Metric:
    """Return the figure that is compared first."""
    return METRICS[MAIN["several" if same.several else "classify"]]


def lead(compared: Compared) -> str:
    """Return the result in one or two sentences."""
    entries = compared.entries
    if not any(each.facts.figures for each in entries):
        return f"{len(entries)} runs, none of them finished: their curves and their recipes."
    if all(each.facts.task for each in entries):
        return f"{len(entries)} runs that learned without labels."
    if compared.same is None:
        return f"{len(entries)} runs; no two of them can be compared image by image."
    if len(compared.pairs) == 1:
        return _of_two(compared, compared.pairs[0])
    main = main_figure(compared.same)
    shares = [each.get(main.name, 0.0) for each in compared.figures]
    best = entries[compared.same.runs[shares.index(max(shares))]].name
    apart = sum(pair.adjusted < LEVEL for pair in compared.pairs)
    return (
        f"{best} has the highest {main.word}, {percent(max(shares))} of {len(compared.same):,} "
        f"test images. {apart or 'None'} of {len(compared.pairs)} pairs differ{'s' * (apart == 1)} "
        f"by more than chance explains (p < {LEVEL:g} after Holm's "
        "correction)."
    )


def _of_two(compared: Compared, pair: Pair) -> str:
    """Return how far two runs are apart, and whether chance explains it."""
    assert compared.same is not None
    main = main_figure(compared.same)
    names = [compared.entries[number].name for number in compared.same.runs]
    shares = [each.get(main.name, 0.0) for each in compared.figures]
    what = f"{main.word} on {len(compared.same):,} test images"
    if shares[0] == shares[1]:
        return f"{' and '.join(names)} have the same {what}: {percent(shares[0])}."
    ends, sign = pair.differences[main.name].interval, 1 if shares[1] > shares[0] else -1
    worse, better = names[::sign]
    low, high = sorted(100 * sign * each for each in ends or (0.0, 0.0))
    within = f" ({low:.1f} to {high:.1f})".replace("-", "−") * (ends is not None)
    chance = "more than chance explains" if pair.p < LEVEL else "which chance may explain"
    test = "" if compared.same.several else "McNemar's test, "
    p = "p < 0.001" if pair.p < 0.001 else f"p = {pair.p:.3f}"
    return (
        f"{better} has the higher {what}: {percent(max(shares))} against "
        f"{percent(min(shares))} of {worse}. The difference is "
        f"{100 * abs(shares[0] - shares[1]):.1f} points{within}, {chance} ({test}{p})."
    )


# Its sections


def _figures(compared: Compared, file: Path) -> list[Block]:
    """Return a row for each run, the best figure of each column in blue."""
    entries, rows = compared.entries, list[tuple[str, ...]]()
    most = max((len(each.facts.figures.get("classes", ())) for each in entries), default=0)
    shown = [
        metric
        for metric in METRICS.values()
        if metric.tells(most)
        and (metric.key or metric.of == "training")
        and any(each.facts.number(metric.name) is not None for each in entries)
    ]
    best = [_best(entries, metric) for metric in shown]
    for number, each in enumerate(entries):
        address = _address(each, file)
        report = Markup(' · <a href="{}">report</a>').format(address) if address else ""
        state = "" if each.facts.figures else " · not finished"
        about = Markup("{}<small><bdi>{}</bdi>{}{}</small>").format(
            run_name(number, each), each.facts.model, report, state
        )
        cells = (_cell(each, *pair) for pair in zip(shown, best, strict=True))
        rows.append((about, *cells))
    note = (
        "As each run recorded them when it was tested; below a figure stands its 95% interval; the "
        "best of a column is blue. Intervals that overlap do not mean that two runs are alike: the "
        "paired tests tell smaller differences from chance."
    )
    return [ReportTable("Figures", ("Run", *(metric.title for metric in shown)), rows, note=note)]


def _best(entries: Sequence[ComparedRun], metric: Metric) -> float | None:
    """Return the best value of a figure, if one can be better than another."""
    numbers = [each.facts.number(metric.name) for each in entries]
    known = [value for value in numbers if value is not None]
    several = len({each.facts.task for each in entries}) > 1
    if len(set(known)) < 2 or (metric.name == "loss" and several):
        return None
    return max(known, key=metric.score)


def _cell(entry: ComparedRun, metric: Metric, best: float | None) -> str:
    value = entry.facts.number(metric.name)
    if value is None:
        return "–"
    ends = metric.range(entry.facts.interval(metric.name))
    small = Markup("<small>{}</small>").format(ends) if ends else ""
    mark = Markup(' class="best"') if value == best else ""
    return Markup("<span{}>{}</span>{}").format(mark, metric.text(value), small)


def _address(entry: ComparedRun, page: Path) -> str:
    """Return the address of a run's own report as seen from the page; empty if there is none."""
    report = entry.folder.report
    if not report.is_file():
        return ""
    place = os.path.relpath(report.resolve(), page.resolve().parent)
    return quote(place, errors="surrogateescape")


def _tests(compared: Compared) -> list[Block]:
    """Return the tests, a row for each two runs."""
    if compared.same is None or not compared.pairs:
        return []
    first, runs, pairs = main_figure(compared.same), compared.same.runs, compared.pairs
    few, many = len(runs) <= NAMED, len(pairs) > 1
    names = [compared.entries[n].name if few else f"{n + 1}" for n in runs]
    gaps = [pair.differences.get(first.name) for pair in pairs]
    columns: Columns = [
        ("Runs", [f"{names[pair.first]} → {names[pair.second]}" for pair in pairs]),
        (f"Difference in {first.word}",
         [first.gap(gap.value, gap.interval) if gap else "–" for gap in gaps]),
        ("Only first right", [f"{pair.only_first:,}" for pair in pairs]),
        ("Only second right", [f"{pair.only_second:,}" for pair in pairs]),
        ("p", [p_cell(pair.p) for pair in pairs]),
        ("p (Holm)", [p_cell(pair.adjusted) for pair in pairs] if many else None),
        ("Same answer", [percent(pair.agreement) for pair in pairs]),
        ("Mistakes in common", [percent(pair.overlap) for pair in pairs]),
        ("Kappa", [f"{pair.consistency:.2f}".replace("-", "−") for pair in pairs]),
    ]  # fmt: skip
    p = "p: McNemar's exact test, two-sided."
    if compared.same.several:
        p = (
            "An image counts as right if exactly its labels are predicted. p: two-sided, of the "
            "difference in mAP over resamples."
        )
    note = "" if few else "Runs by their numbers in the table above. "
    note += (
        f"On the same {len(compared.same):,} test images; the difference is second minus first, "
        f"with its 95% interval (paired bootstrap). {p}"
    )
    note += " Holm's correction is for all pairs together." * many
    note += (
        " Kappa is 1 where the same images are right and wrong, 0 where mistakes coincide as those "
        "of independent models would."
    )
    return [table_of("Paired tests", columns, note)]


def _differences(compared: Compared) -> ReportTable:
    """Return all figures of two runs, and their differences."""
    assert compared.same is not None
    names = [compared.entries[number].name for number in compared.same.runs]
    pair, rows = compared.pairs[0], []
    for metric in METRICS.values():
        gap = pair.differences.get(metric.name)
        if gap is not None and metric.tells(len(compared.same.classes)):
            low, high = gap.interval or (0.0, 0.0)
            beyond = "does not contain 0" if low > 0 or high < 0 else "contains 0"
            texts = (metric.text(each[metric.name]) for each in compared.figures)
            change = metric.gap(gap.value, gap.interval)
            rows.append((metric.title, *texts, change, beyond if gap.interval else "–"))
    return ReportTable("All figures", ("Figure", *names, "Difference", "95% interval"), rows)


def _curves(entries: Sequence[ComparedRun]) -> list[Block]:
    """Return the curves of all runs against epochs."""
    plots = compared_curves([each.facts for each in entries])
    names = Markup(" &nbsp; ").join(run_name(*each) for each in enumerate(entries))
    words = Prose("Training losses are moving averages over the steps.", note=True)
    return [Prose(names), Plots(plots), words] if plots else []


def _recipes(compared: Compared) -> list[Block]:
    """Return the options that differ, then devices and versions that do.

    Of recipes with several runs these are those of their first runs, without seed and fold.
    """
    entries, titles = compared.entries, [each.name for each in compared.entries]
    if len(compared.recipes) > 1 and compared.has_several:
        entries = [each.first for each in compared.recipes]
        titles = [each.name for each in compared.recipes]
    known = [options_in(each.recipe) for each in entries if each.recipe]
    rows, names = differing(entries), {name for each in known for name in each}
    if entries is not compared.entries:
        rows = {name: values for name, values in rows.items() if name not in NUMBERING}
    text = Prose("Nothing: all options are the same.")
    if rows:
        alike = len(names - rows.keys())
        text = Prose(f"{alike} other options are the same in all runs.", note=True)
    head = ("Option", *titles)

    def table(title: str, found: Rows) -> list[Block]:
        cells = [(option, *values) for option, values in found.items()]
        return [ReportTable(title, head, cells, texts=len(head))] if found else []

    around = table("Device and versions", surroundings(entries))
    return [*table("What differs in the recipes", rows), text, *around]


def _cost(entries: Sequence[ComparedRun]) -> list[Block]:
    """Return what each run cost."""
    facts = [each.facts for each in entries]
    columns: Columns = [("Run", [run_name(*each) for each in enumerate(entries)])]
    tested = [None if each.task else each.number("images") for each in facts]
    for title, form, values in (
        ("Test images", "{:,.0f}".format, tested),
        *((*about, [each.number(key) for each in facts]) for key, about in COSTS.items()),
    ):
        if any(value is not None for value in values):
            columns.append((title, ["–" if value is None else form(value) for value in values]))
    note = "As recorded: time, memory and images/s are those of training, on each run's machine."
    return [table_of("Cost", columns, note)]


def _classes(entries: Sequence[ComparedRun]) -> list[Block]:
    """Return the classes whose F1 differs most between runs, most first."""
    tables, found = [_by_class(each) for each in entries], []
    for name in dict.fromkeys(name for table in tables for name in table):
        own = [table.get(name, {}) for table in tables]
        values = [each.get("f1") for each in own]
        known = [value for value in values if value is not None]
        if len(known) > 1 and max(known) > min(known):
            images = max(each.get("images", 0) for each in own)
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
    return [ReportTable("Classes", head, rows, note=note)] if rows else []


def _by_class(entry: ComparedRun) -> dict[tuple[str, int], dict[str, Any]]:
    """Return the figures of each class by its name, and how often the name stood before."""
    before: Counter[str] = Counter()
    found = {}
    for each in entry.facts.figures.get("classes", []):
        found[each["class"], before[each["class"]]] = each
        before[each["class"]] += 1
    return found


# Test images that tell models apart


def disagreements(compared: Compared) -> list[Block]:
    """Return the images on which the runs disagree, then those that all get wrong.

    Of two runs, those that only the one gets right are those that only the other gets wrong, and
    come once. Images that are no longer at hand are counted.
    """
    same = compared.same
    if same is None:
        return []
    source, of, reason = _pictured(compared)
    right: NDArray[np.bool_] = np.stack([each.right for each in same.answers])  # (runs, n)
    names, count = [f"{run + 1} {compared.entries[run].name}" for run in same.runs], right.sum(0)
    kinds = [
        (f"Only {name} is right", own & (count == 1))
        for name, own in zip(names, right, strict=True)
    ]
    if len(names) > APART:
        kinds = []  # one run in so many says little
    elif len(names) > 2:
        kinds += [
            (f"Only {name} is wrong", ~own & (count == len(names) - 1))
            for name, own in zip(names, right, strict=True)
        ]
    kinds.append((f"{'Both' if len(names) == 2 else 'All'} wrong", count == 0))
    most = min(MOST, max(FEWEST, PICTURES // len(kinds)))
    confidence = np.stack([each.confidence for each in same.answers])
    surest = np.where(right, 0, confidence).sum(0) / np.maximum((~right).sum(0), 1)  # who is wrong
    blocks: list[Block] = []
    if source is None:
        words = f"The images are not at hand ({reason}): they are counted, not shown."
        blocks.append(Prose(words))
    for title, chosen in kinds:
        places = np.flatnonzero(chosen)
        first = places[np.argsort(-surest[places], kind="stable")][:most].tolist()
        which = f", the {most} with the most confident mistakes" * (len(places) > len(first))
        heading = Markup("<b><bdi>{}</bdi>: {}</b>{}")
        blocks.append(Prose(heading.format(title, counted(len(places), "image"), which)))
        if source is not None and first:
            folder = common_folder(source.name(int(same.indices[of][place])) for place in first)
            shown = [_thumbnail(same, source, of, place, folder) for place in first]
            blocks.append(Thumbnails(shown))
    chance = "the probability of its likeliest class" if same.several else "its probability"
    text = (
        f"Above the answers stands the true class; beside each answer {chance}. Images that every "
        "model gets wrong with confidence are often labeled wrongly."
    )
    return [*blocks, Prose(text, note=True)]


def _pictured(compared: Compared) -> tuple[Images | None, int, str]:
    """Return the test images of the first run whose data is at hand, and the place of that run."""
    assert compared.same is not None
    reason = ""
    for place, number in enumerate(compared.same.runs):
        try:
            return reopened(compared.entries[number].folder).test, place, ""
        except UserError as error:
            reason = reason or str(error)
    return None, 0, reason


def _thumbnail(same: SameImages, source: Images, of: int, place: int, folder: str) -> Thumbnail:
    """Return an image with what each run says of it."""
    index, rows = int(same.indices[of][place]), []
    for run, answers in zip(same.runs, same.answers, strict=True):
        good = bool(answers.right[place])
        row = '<span>{}</span><span class="{}">{} <bdi>{}</bdi></span><span>{}</span>'
        rows.append(
            Markup(row).format(
                run + 1, "right" if good else "wrong", "✓" if good else "✗",
                _named(answers, place, same.classes, truth=False),
                percent(float(answers.confidence[place])),
            )
        )  # fmt: skip
    words = Markup('<span class="says">{}</span>').format(Markup().join(rows))
    truth = _named(same.answers[0], place, same.classes, truth=True)
    name = source.name(index).removeprefix(folder)
    return Thumbnail((of_source(source, index),), truth, words, name)


def _named(answers: Answers, place: int, classes: Sequence[str], *, truth: bool) -> str:
    """Return the true classes of an image, or those that a run names."""
    if isinstance(answers, SingleAnswers):
        return classes[(answers.truth if truth else answers.guess)[place]]
    row = (answers.table if truth else answers.chosen)[place]
    return ", ".join(classes[number] for number in np.flatnonzero(row).tolist()) or "none"
