"""What the runs of a study come to: rows, verdicts, tables, the figure, and the files it leaves."""

import json
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

import matplotlib as mpl
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator

from vitlab.experiments.campaign_folder import CampaignFolder
from vitlab.experiments.cells import FAILED, Cell
from vitlab.experiments.statistics import Row
from vitlab.files import write_text
from vitlab.report.drawings.drawing import (
    BLUE,
    INK,
    MUTED,
    SERIES_COLORS,
    STYLE,
    new_figure,
    standalone,
    svg,
)
from vitlab.report.table_page import Table, TablePage, write_tables
from vitlab.studies.claims import Verdict, judged
from vitlab.studies.design import Arm, Column, Study
from vitlab.studies.grid import best_of, edge_of, tried
from vitlab.units import percent

WIDTH = 480  # a phone shows it at two thirds
MARKERS, DASHES = "os^Dv", ("-", "--", ":", "-.")
Lines = list[tuple[str, ...]]
EDGES = {-1: " ‡", 0: "", 1: " †"}
EDGE_NOTE = (
    "† the largest of the learning rates that were tried, ‡ the smallest: one beyond it might do "
    "better."
)


def rows_of(
    study: Study, arms: Sequence[Arm], cells: Sequence[Cell], done: Mapping[str, Row]
) -> list[Row]:
    """Return a row for each arm of the table, from the rows of its cells.

    Returns:
        Of each arm `name`, `cells`, `lr`, `edge`, `x`, `line`, `after`, `seeds`, `runs` (folders),
        `diverged` (a number), `values`, `mean`, `std` and `paper`.
    """
    found = []
    for arm in arms if done else ():
        own = [cell for cell in cells if cell.kind == arm.name and not cell.searches]
        if arm.row:
            found.append(_row(study, arm, own, done))
    return found


def _row(study: Study, arm: Arm, cells: Sequence[Cell], done: Mapping[str, Row]) -> Row:
    runs = [done[cell.name] for cell in cells]
    rates = tried(done[name] for name in cells[0].after)
    values = {
        column.key: [run[column.key] for run in runs if run.get(column.key) is not None]
        for column in study.columns
    }
    return {
        "name": arm.name,
        "cells": list(arm.cells),
        "lr": arm.recipe.optimizer.lr * best_of(rates),
        "edge": edge_of(rates),
        "x": arm.x,
        "line": arm.line,
        "after": arm.after,
        "seeds": [cell.labels["seed"] for cell in cells],
        "runs": [cell.name for cell in cells],
        FAILED: sum(FAILED in run for run in runs),
        "values": values,
        "mean": {key: fmean(each) for key, each in values.items() if each},
        "std": {key: stdev(each) for key, each in values.items() if len(each) > 1},
        "paper": dict(arm.paper),
    }


def verdicts(study: Study, rows: Sequence[Row]) -> list[Verdict]:
    """Return what the rows say about each claim."""
    keys = {claim.by: claim.by or study.columns[0].key for claim in study.claims}
    figures = {
        by: {row["name"]: row["values"].get(key, []) for row in rows} for by, key in keys.items()
    }
    starts = {row["name"]: row["after"] for row in rows if not row["diverged"]}
    return judged(study.claims, figures, starts)


def cell(row: Row, column: Column) -> str:
    """Return a figure as the table shows it: mean and standard deviation over its runs."""
    if column.key not in row["mean"]:
        return "diverged" if row["diverged"] else ""
    text = column.show(row["mean"][column.key])
    if column.once or column.key not in row["std"]:
        return text
    return f"{text} ± {(column.spread or column.show)(row['std'][column.key])}"


def lost(row: Row) -> str:
    """Return how many runs of a row did not diverge, if others did, to stand behind a figure."""
    runs = len(row["seeds"])
    left = runs - row["diverged"]
    return f" ({left} of {runs} runs)" if 0 < left < runs else ""


def table_of(study: Study, rows: Sequence[Row]) -> tuple[tuple[str, ...], Lines]:
    """Return headings and lines: the arm, its figures, each beside the paper's if there is one.

    A learning rate at the edge of those that were tried is marked.
    """
    columns = [each for each in study.columns if any(each.key in row["mean"] for row in rows)]
    columns = columns or [study.columns[0]]  # which tells that everything diverged
    rated = len({row["lr"] for row in rows}) > 1 or any(row["edge"] for row in rows)
    printed: dict[str, Callable[[float], str]] = dict.fromkeys(
        (key for row in rows for key in row["paper"]), percent
    )
    printed |= {each.key: each.show for each in columns if each.key in printed}
    own = {column.key for column in study.columns}
    others = [key for key in printed if key not in own]

    def line(row: Row) -> tuple[str, ...]:
        paper = {
            key: show(row["paper"][key]) for key, show in printed.items() if key in row["paper"]
        }
        cells = [*row["cells"], *([f"{row['lr']:.2g}{EDGES[row['edge']]}"] if rated else [])]
        for column in columns:
            cells.append(cell(row, column) + (lost(row) if column is columns[0] else ""))
            cells += [paper.get(column.key, "")] if column.key in printed else []
        return (*cells, *(paper.get(key, "") for key in others))

    head = [*study.head, *(["learning rate"] if rated else [])]
    for column in columns:
        head += [column.title, *([f"paper: {column.title}"] if column.key in printed else [])]
    return (*head, *(f"paper: {key}" for key in others)), [line(row) for row in rows]


CLAIMS = ("claim", "paper", "here", "difference ± 95%", "the paper's", "margin", "p (Holm)")


def claims_table(study: Study, found: Sequence[Verdict]) -> Lines:
    """Return the lines of the claims, in the columns of `CLAIMS`.

    Differences of shares are in percentage points. Where seeds share weights, the interval of the
    differences within each seed comes first, that of independent runs second.
    """
    columns = {column.key: column for column in study.columns}
    lines: Lines = []
    for each in found:
        claim, column = each.claim, columns[each.claim.by or study.columns[0].key]
        show = column.spread or (lambda value: f"{value:.3g}")

        def signed(value: float | None, show: Callable[[float], str] = show) -> str:
            return "" if value is None else f"{'-' if value < 0 else '+'}{show(abs(value))}"

        difference = signed(each.difference)
        if each.paired is not None and each.reach is not None:
            difference += f" ± {show(each.paired)} in pairs (± {show(each.reach)} apart)"
        elif each.reach is not None:
            difference += f" ± {show(each.reach)}"
        if difference and column.spread is None:
            difference += f" {column.title}"
        margin = "" if each.margin is None else show(each.margin)
        p = "" if each.p is None else f"{each.p:.2g}" if each.p >= 0.001 else "< 0.001"
        lines.append(
            (claim.text, claim.source, each.word, difference, signed(claim.paper), margin, p)
        )
    return lines


def markdown(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    rule = ["---"] * len(head)
    rows = [[cell.replace("|", "\\|") for cell in each] for each in (head, rule, *lines)]
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
    result = {
        **facts,
        "title": study.title,
        "head": list(head),
        "table": [list(line) for line in lines],
        "rows": list(rows),
        "claims": [verdict.as_json() for verdict in found],
        "findings": findings,
        "run": str(place),
        "report": str(folder.report),
    }
    text = [f"# {study.title}", lead, f"`{command}`", markdown(head, lines).rstrip()]
    text += filter(None, (note, *findings))
    tables = [Table("Results", head, lines, note=note)]
    if claims:
        text.append(markdown(CLAIMS, claims).rstrip())
        tables.append(Table("Claims", CLAIMS, claims))
    if drawing is not None:
        write_text(place / "picture.svg", standalone(drawing) + "\n")
        text.append(f"![{study.title}](picture.svg)")
    write_text(place / "results.md", "\n\n".join(text) + "\n")
    page = TablePage(study.title, lead, tables, [drawing] if drawing else [], findings, command)
    write_tables(folder.report, page)
    folder.finish(json.loads(json.dumps(result)))
    return result


def drawn(study: Study, rows: Sequence[Row]) -> Markup | None:
    """Draw the study's figure, with a mark for each run; None if nothing was measured."""
    column = next(each for each in study.columns if each.key == study.picture.y)
    rows = [row for row in rows if column.key in row["mean"]]
    if study.picture.by:
        rows = [row | {"x": row["mean"].get(study.picture.by)} for row in rows]
    if study.picture.kind == "lines":
        rows = [row for row in rows if row["x"] is not None]
    if not rows:
        return None
    with mpl.rc_context(STYLE):
        dots = study.picture.kind == "dots"
        figure = new_figure(WIDTH, 70 + 26 * len(rows) if dots else 380)
        axes = figure.subplots()
        (_dots if dots else _lines)(axes, study, column, rows)
        return svg(figure, "study", f"{study.title}: {column.title}.")


def line_style(number: int, colors: Sequence[str]) -> dict[str, Any]:
    """Return color, marker and dashes of a line of a figure by its number among them."""
    return {
        "color": colors[number % len(colors)],
        "marker": MARKERS[number % len(MARKERS)],
        "linestyle": DASHES[number // len(colors) % len(DASHES)],
        "ms": 5,
        "lw": 1.6,
    }


def _dots(axes: Axes, study: Study, column: Column, rows: Sequence[Row]) -> None:
    """Draw dots rather than bars: an axis that does not start at 0 would make bars lie."""
    some = study.picture.labels or None
    names = [", ".join(filter(None, row["cells"][:some])) or row["name"] for row in rows]
    places = range(len(rows))
    axes.plot([row["mean"][column.key] for row in rows], places, "o", color=BLUE, ms=8)
    for place, row in zip(places, rows, strict=True):
        values = row["values"][column.key]
        axes.plot(values, [place] * len(values), "|", color=INK, ms=11, mew=1.2)
    axes.set_yticks(list(places), names, color=INK)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlabel(f"{column.title}: mean (dot), runs (marks)")
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: column.show(value)))


def _lines(axes: Axes, study: Study, column: Column, rows: Sequence[Row]) -> None:
    names = list(dict.fromkeys(row["line"] for row in rows if row["line"])) or [""]
    curves = study.picture.curves(rows) if study.picture.curves else {}
    for number, name in enumerate(names):  # a row without a line belongs to all of them
        own = sorted((row for row in rows if row["line"] in (name, "")), key=lambda row: row["x"])
        style = line_style(number, SERIES_COLORS)
        if name in curves:
            axes.plot(*curves[name], color=style["color"], lw=1.2)
            style["linestyle"] = "none"
        axes.errorbar(
            [row["x"] for row in own],
            [row["mean"][column.key] for row in own],
            [row["std"].get(column.key, 0.0) for row in own],
            capsize=3,
            label=name or None,
            **style,
        )
    if study.picture.log:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
        axes.minorticks_off()
    ticks = sorted({row["x"] for row in rows})
    if len(ticks) <= 8:
        axes.set_xticks(ticks, [f"{tick:,g}" for tick in ticks])
        axes.minorticks_off()
    axes.set(xlabel=study.picture.x, ylabel=column.title)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: column.show(value)))
    if any(names):
        axes.legend(labelcolor=MUTED)
