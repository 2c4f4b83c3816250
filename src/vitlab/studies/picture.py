"""The figure of a study: a dot for each arm, or lines of one figure against another."""

from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator

from vitlab.report.drawings.drawing import (
    BLUE,
    INK,
    MUTED,
    SERIES_COLORS,
    STYLE,
    new_figure,
    svg,
)
from vitlab.studies.design import Column, Row, Study

WIDTH = 480  # a phone shows it at two thirds
MARKERS, DASHES = "os^Dv", ("-", "--", ":", "-.")


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
