"""Results of a study: rows, verdicts, tables, the figure, and the files it leaves."""

import json
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

import matplotlib as mpl
from cycler import Cycler, cycler
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import LogLocator

from vitlab.evaluation.statistics import MOST_SEEDS
from vitlab.experiments.campaign_folder import CampaignFolder
from vitlab.experiments.cells import FAILED, Cell, Row
from vitlab.files import write_text
from vitlab.report.charts import BLUE, INK, MUTED, SERIES_COLORS, STYLE, new_figure, standalone, svg
from vitlab.report.page import ReportTable, TablePage, write_tables
from vitlab.studies.claims import Verdict, judged
from vitlab.studies.design import Arm, Column, Picture, Study
from vitlab.studies.grid import best_of, edge_of, tried
from vitlab.units import percent

WIDTH = 480  # a phone shows it at two thirds
MARKERS, DASHES = "os^Dv", ("-", "--", ":", "-.")
EDGES = {-1: " ‡", 0: "", 1: " †"}
EDGE_NOTE = (
    "† the largest of the learning rates that were tried, ‡ the smallest: one beyond it might do "
    "better."
)
CLAIMS = (
    "claim", "paper", "here", "difference ± 95%", "the paper's", "margin", "p (Holm)",
    "seeds to see it",
)  # fmt: skip
Lines = list[tuple[str, ...]]


def rows_of(
    study: Study, arms: Sequence[Arm], cells: Sequence[Cell], done: Mapping[str, Row]
) -> list[Row]:
    """Return a row for each arm of the table, from the rows of its cells.

    Returns:
        Of each arm `name`, `cells`, `lr`, `edge`, `x`, `line`, `after`, `seeds`, `runs` (folders),
        `diverged` (a number), `values`, `mean`, `std` and `paper`.
    """
    return [_row(study, arm, cells, done) for arm in arms if arm.row]


def _row(study: Study, arm: Arm, cells: Sequence[Cell], done: Mapping[str, Row]) -> Row:
    own = [cell for cell in cells if cell.kind == arm.name and not cell.searches]
    runs, rates = [done[cell.name] for cell in own], tried(done[name] for name in own[0].after)
    values = {
        key: [run[key] for run in runs if run.get(key) is not None]
        for key in (column.key for column in study.columns)
    }
    return {
        **{key: getattr(arm, key) for key in ("name", "cells", "x", "line", "after", "paper")},
        "lr": arm.recipe.optimizer.lr * best_of(rates),
        "edge": edge_of(rates),
        "seeds": [cell.labels["seed"] for cell in own],
        "runs": [cell.name for cell in own],
        FAILED: sum(FAILED in run for run in runs),
        "values": values,
        "mean": {key: fmean(each) for key, each in values.items() if each},
        "std": {key: stdev(each) for key, each in values.items() if len(each) > 1},
    }


def verdicts(study: Study, rows: Sequence[Row]) -> list[Verdict]:
    """Return what the rows say about each claim."""
    keys = {claim.by: claim.by or study.columns[0].key for claim in study.claims}
    figures = {
        by: {row["name"]: row["values"].get(key, []) for row in rows} for by, key in keys.items()
    }
    starts = {row["name"]: row["after"] for row in rows if not row[FAILED]}
    return judged(study.claims, figures, starts)


def cell_text(row: Row, column: Column) -> str:
    """Return a figure as the table shows it: mean and standard deviation over its runs."""
    if column.key not in row["mean"]:
        return FAILED if row[FAILED] else ""
    text = column.show(row["mean"][column.key])
    if column.once or column.key not in row["std"]:
        return text
    return f"{text} ± {(column.spread or column.show)(row['std'][column.key])}"


def lost(row: Row) -> str:
    """Return how many runs of a row did not diverge, if others did, to stand behind a figure."""
    runs = len(row["seeds"])
    return f" ({runs - row[FAILED]} of {runs} runs)" if 0 < row[FAILED] < runs else ""


def table_of(study: Study, rows: Sequence[Row]) -> tuple[tuple[str, ...], Lines]:
    """Return headings and lines: the arm, its figures, each beside the paper's if there is one.

    A learning rate at the edge of those that were tried is marked.
    """
    table = [(title, [row["cells"][n] for row in rows]) for n, title in enumerate(study.head)]
    if len({row["lr"] for row in rows}) > 1 or any(row["edge"] for row in rows):
        table.append(("learning rate", [f"{row['lr']:.2g}{EDGES[row['edge']]}" for row in rows]))
    printed = dict.fromkeys(key for row in rows for key in row["paper"])

    def papers(key: str, title: str, show: Callable[[float], str]) -> None:
        if key in printed:
            texts = [show(row["paper"][key]) if key in row["paper"] else "" for row in rows]
            table.append((f"paper: {title}", texts))

    shown = [each for each in study.columns if any(each.key in row["mean"] for row in rows)]
    for column in shown or study.columns[:1]:  # which tells that everything diverged
        more = lost if column is study.columns[0] else lambda row: ""
        table.append((column.title, [cell_text(row, column) + more(row) for row in rows]))
        papers(column.key, column.title, column.show)
    own = {column.key for column in study.columns}
    for key in printed:
        if key not in own:
            papers(key, key, percent)
    head, columns = zip(*table, strict=True)
    return head, [*zip(*columns, strict=True)]


def claims_table(study: Study, found: Sequence[Verdict]) -> Lines:
    """Return the lines of the claims, in the columns of `CLAIMS`.

    Differences of shares are in percentage points. Where seeds share weights, the interval of the
    differences within each seed comes first, that of independent runs second.
    """
    columns = {column.key: column for column in study.columns}
    return [_claim_line(each, columns[each.claim.by or study.columns[0].key]) for each in found]


def _claim_line(found: Verdict, column: Column) -> tuple[str, ...]:
    claim, show = found.claim, column.spread or (lambda value: f"{value:.3g}")

    def signed(value: float | None) -> str:
        return "" if value is None else f"{'-' if value < 0 else '+'}{show(abs(value))}"

    difference = signed(found.difference)
    if found.reach is not None:
        apart = f" ± {show(found.reach)}"
        pairs = found.paired is not None and f" ± {show(found.paired)} in pairs ({apart[1:]} apart)"
        difference += pairs or apart
    if difference and column.spread is None:
        difference += f" {column.title}"
    margin = "" if found.margin is None else show(found.margin)
    p = "" if found.p is None else f"{found.p:.2g}" if found.p >= 0.001 else "< 0.001"
    seeds = "" if (needed := found.seeds) is None else f"{needed}{'+' * (needed == MOST_SEEDS)}"
    theirs = signed(claim.paper)
    return claim.text, claim.source, found.word, difference, theirs, margin, p, seeds


def markdown(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    rows = [[cell.replace("|", "\\|") for cell in each] for each in (head, *lines)]
    rows.insert(1, ["---"] * len(head))
    return "\n".join("| " + " | ".join(each) + " |" for each in rows) + "\n"


def written(
    study: Study, rows: Sequence[Row], folder: CampaignFolder, lead: str, facts: Mapping[str, Any]
) -> dict[str, Any]:
    """Write `results.md`, its picture, `report.html` and the result in JSON; return the result.

    Args:
        study: what was compared
        rows: its arms
        folder: of the runs
        lead: how they were made, in a sentence or two
        facts: the same in JSON

    Raises:
        DiskError: a file cannot be written.
    """
    place, found = folder.path, verdicts(study, rows)
    (head, lines), claims = table_of(study, rows), claims_table(study, found)
    findings = list(study.findings(rows)) if study.findings else []
    edges = EDGE_NOTE if any(row["edge"] for row in rows) else ""
    note = " ".join(filter(None, (study.note, edges)))
    command, drawing = folder.record.get("command", ""), drawn(study, rows)
    shown = {
        **facts,
        "title": study.title,
        "head": head,
        "table": lines,
        "rows": rows,
        "claims": [verdict.as_json() for verdict in found],
        "findings": findings,
        "run": str(place),
        "report": str(folder.report),
    }
    text = [f"# {study.title}", lead, f"`{command}`", markdown(head, lines).rstrip()]
    text += filter(None, (note, *findings))
    tables = [ReportTable("Results", head, lines, note=note)]
    if claims:
        text.append(markdown(CLAIMS, claims).rstrip())
        tables.append(ReportTable("Claims", CLAIMS, claims))
    if drawing is not None:
        write_text(place / "picture.svg", standalone(drawing) + "\n")
        text.append(f"![{study.title}](picture.svg)")
    write_text(place / "results.md", "\n\n".join(text) + "\n")
    page = TablePage(study.title, lead, tables, [drawing] if drawing else [], findings, command)
    write_tables(folder.report, page)
    result: dict[str, Any] = json.loads(json.dumps(shown))
    folder.finish(result)
    return result


def drawn(study: Study, rows: Sequence[Row]) -> Markup | None:
    """Draw the study's figure, with a mark for each run; None if nothing was measured."""
    picture = study.picture
    column = next(each for each in study.columns if each.key == picture.y)
    rows = [row for row in rows if column.key in row["mean"]]
    if picture.by:
        rows = [row | {"x": row["mean"].get(picture.by)} for row in rows]
    if picture.x:
        rows = [row for row in rows if row["x"] is not None]
    if not rows:
        return None
    with mpl.rc_context(STYLE):
        lines = len({row["x"] for row in rows}) > 1 and picture.x
        figure = new_figure(WIDTH, 380 if lines else 70 + 26 * len(rows))
        axes = figure.subplots()
        axis = (_lines if lines else _dots)(axes, picture, column, rows)
        axis.set_major_formatter(lambda value, _: column.show(value))
        return svg(figure, "study", f"{study.title}: {column.title}.")


def _dots(axes: Axes, picture: Picture, column: Column, rows: Sequence[Row]) -> Axis:
    """Draw dots rather than bars: an axis that does not start at 0 would make bars lie."""
    places = range(len(rows))
    axes.plot([row["mean"][column.key] for row in rows], places, "o", color=BLUE, ms=8)
    for place, row in enumerate(rows):
        values = row["values"][column.key]
        axes.plot(values, [place] * len(values), "|", color=INK, ms=11, mew=1.2)
    axes.set_yticks(places, [row["name"] for row in rows], color=INK)
    axes.set(ylim=(len(rows) - 0.5, -0.5), xlabel=f"{column.title}: mean (dot), runs (marks)")
    axes.locator_params("x", nbins=5)
    return axes.xaxis


def _lines(axes: Axes, picture: Picture, column: Column, rows: Sequence[Row]) -> Axis:
    """Draw a line for each name; a row without one belongs to all of them."""
    names = list(dict.fromkeys(row["line"] for row in rows if row["line"])) or [""]
    axes.set_prop_cycle(line_cycle(SERIES_COLORS))
    for name in names:
        own = sorted((row for row in rows if row["line"] in (name, "")), key=lambda row: row["x"])
        x, means = [row["x"] for row in own], [row["mean"][column.key] for row in own]
        stds = [row["std"].get(column.key, 0.0) for row in own]
        axes.errorbar(x, means, stds, capsize=3, label=name or None)
    axes.set(xlabel=picture.x, ylabel=column.title, xscale="log" if picture.log else "linear")
    if len(ticks := sorted({row["x"] for row in rows})) <= 8:
        axes.set_xticks(ticks)
    elif picture.log:
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:,g}")
    axes.minorticks_off()
    if any(names):
        axes.legend(labelcolor=MUTED)
    return axes.yaxis


def line_cycle(colors: Sequence[str]) -> "Cycler[Any, Any]":
    """Return colors and markers of the lines of a figure, then the same with other dashes."""
    markers = [MARKERS[number % len(MARKERS)] for number in range(len(colors))]
    own = cycler(color=colors, marker=markers, markersize=[5] * len(colors))
    return cycler(linestyle=DASHES, linewidth=[1.6] * len(DASHES)) * own
