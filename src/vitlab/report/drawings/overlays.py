"""Drawings of several runs together: their curves on one axis, and cost against accuracy."""

from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib as mpl
import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from vitlab.report.drawings.curves import PERCENT, Numbers, smoothed, thinned
from vitlab.report.drawings.drawing import INK, SERIES_COLORS, STYLE, WIDTH, finite, new_figure, svg
from vitlab.units import si

DASHES = ("", "6 2.5", "1.5 1.8", "8 2 1.5 2", "3 2")
"""Lengths of strokes and gaps, as SVG has them; with the colors 30 kinds of lines."""
DENSE = 20  # points of a line that is not smoothed, at most
POINTS = 1500  # of all lines of a drawing
RATIO = 8  # of the largest to the smallest cost, from which the axis is logarithmic


@dataclass(frozen=True)
class Series:
    """The values of one run in a panel.

    Attributes:
        run: its number, which decides color and dashes
        x: epochs, steps or seconds
        y: values; those that are not finite are left out
        measured: whether they are evaluations, which are not smoothed
    """

    run: int
    x: Sequence[float]
    y: Sequence[float]
    measured: bool


@dataclass(frozen=True)
class Spot:
    """A run in a drawing of cost against accuracy, with the interval of its accuracy."""

    run: int
    cost: float
    value: float
    interval: tuple[float, float] | None


def swatch(run: int) -> Markup:
    """Return a short piece of a run's line, to stand beside its name."""
    return Markup(
        '<svg class="swatch" viewBox="0 0 32 10" aria-hidden="true"><path d="M1 5h30" '
        'stroke="var(--series{})" stroke-dasharray="{}"/></svg>'
    ).format(run % len(SERIES_COLORS), DASHES[run % len(DASHES)])


def overlay(
    name: str, label: str, series: Sequence[Series], x_label: str, *, share: bool
) -> Markup:
    """Draw a quantity of several runs on one axis; empty if nothing of it can be drawn.

    Args:
        name: unique on the page
        label: what it shows, in words
        series: the values of each run
        x_label: what they are drawn against, with its unit
        share: whether values are percentages
    """
    drawn = [(each, *_line(each, len(series))) for each in series]
    drawn = [(each, x, y) for each, x, y in drawn if np.isfinite(y).any()]
    if not drawn:
        return Markup()
    with mpl.rc_context(STYLE):
        figure = new_figure(WIDTH, 260)
        axes = figure.subplots()
        for each, x, y in drawn:
            alone = "o" if np.isfinite(y).sum() == 1 else ""  # one point makes no line
            axes.plot(
                x, y, color=SERIES_COLORS[each.run % len(SERIES_COLORS)], linewidth=1.7,
                linestyle=_dashes(each.run), marker=alone, markersize=5,
            )  # fmt: skip
        axes.set_xlabel(x_label)
        axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.4g}"))
        if share:
            axes.yaxis.set_major_formatter(PERCENT)
        axes.margins(x=0.02)
        return svg(figure, name, f"{label} of {len(drawn)} runs against the {x_label}.")


def cost_against(name: str, spots: Sequence[Spot], cost: str, value: str) -> Markup:
    """Draw what runs cost and what they reach, each with its number and interval.

    Args:
        name: unique on the page
        spots: the runs
        cost: what is drawn to the right, with its unit
        value: what is drawn upwards
    """
    costs = [spot.cost for spot in spots]
    with mpl.rc_context(STYLE):
        figure = new_figure(WIDTH, 270)
        axes = figure.subplots()
        for spot in spots:
            color = SERIES_COLORS[spot.run % len(SERIES_COLORS)]
            if spot.interval:
                axes.plot((spot.cost, spot.cost), spot.interval, color=color, linewidth=1.6)
            axes.plot(spot.cost, spot.value, "o", color=color, markersize=7)
            axes.annotate(
                str(spot.run + 1), (spot.cost, spot.value), (7, 4), textcoords="offset points",
                color=INK, fontsize=11,
            )  # fmt: skip
        _scaled(axes, costs)
        axes.set(xlabel=cost, ylabel=value)
        axes.yaxis.set_major_formatter(PERCENT)
        axes.margins(x=0.12, y=0.12)
        words = "; ".join(f"{s.run + 1}: {si(s.cost)}, {s.value:.1%}" for s in spots)
        return svg(figure, name, f"{value} against {cost}, run by run: {words}.")


def _scaled(axes: Axes, costs: Sequence[float]) -> None:
    """Write costs with their unit prefixes, on a logarithmic axis if they are far apart."""
    if min(costs) > 0 and max(costs) / min(costs) > RATIO:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=6))
        axes.xaxis.set_minor_formatter(NullFormatter())
    else:
        axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.xaxis.set_major_formatter(FuncFormatter(_tick))


def _tick(value: float, _: object = None) -> str:
    """Return a cost with its unit prefix, without zeros that say nothing: `1.25 M`, `300 k`."""
    number, space, unit = si(value, 2).partition(" ")
    return (number.rstrip("0").rstrip(".") if "." in number else number) + space + unit


def _line(series: Series, lines: int) -> tuple[Numbers, Numbers]:
    x, y = finite(series.x), finite(series.y)
    x, y = thinned(x, y, max(POINTS // lines, DENSE))
    return (x, y) if series.measured or len(y) <= DENSE else (x, smoothed(y))


def _dashes(run: int) -> tuple[int, tuple[float, ...]] | str:
    """Return the dashes of a run for matplotlib, in widths of a line."""
    text = DASHES[run % len(DASHES)]
    return (0, tuple(float(each) / 1.7 for each in text.split())) if text else "solid"
