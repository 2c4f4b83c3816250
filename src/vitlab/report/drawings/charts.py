"""Charts of the pages: lines, bars, marks, matrices and reliability diagrams, by matplotlib.

Names go through matplotlib, which escapes them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray

from vitlab.evaluation.reliability import Bin
from vitlab.report.drawings.drawing import (
    BLUE,
    INK,
    MUTED,
    SERIES_COLORS,
    STYLE,
    WARM,
    WIDTH,
    finite,
    new_figure,
    svg,
)
from vitlab.units import si

Numbers = NDArray[np.float64]

PERCENT = FuncFormatter(lambda value, _: f"{100 * value:.4g}%")
PLAIN = FuncFormatter(lambda value, _: f"{value:,.4g}")
COUNTS = FuncFormatter(lambda value, _: f"{value:,.0f}" if value < 1e4 else si(value, 0))
LEAST = 5  # points of a line: fewer make no curve
DENSE = 20  # points of a line that is not smoothed
POINTS = 1500  # of all lines of a chart
FEW = 10  # images: the accuracy of a bin with fewer says little
NUMBERED = 20  # most classes whose matrix shows numbers and names
SIDE = 500  # cells per side of a matrix, at most
DASHES: tuple[Any, ...] = ("-", (0, (4, 1.5)), (0, (1, 1)), (0, (5, 1.2, 1, 1.2)), (0, (2, 1.2)))
MARKERS = "os^D"
SHADES = ("#1f6ab0", "#b85600")  # of right answers and mistakes, on light and dark ground


@dataclass(frozen=True)
class Line:
    """Values of one kind: those that are not finite are left out.

    Attributes:
        name: in the legend; empty for none
        x: epochs, steps or layers
        y: as many values
        color: of the light page
        dash: of matplotlib
        marked: evaluations, which are marked and not smoothed
        best: which end is better, `high` or `low`; empty if neither is
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    color: str = BLUE
    dash: Any = "-"
    marked: bool = False
    best: str = ""

    def told(self, write: Callable[[float], str]) -> str:
        """Return the name with the last value, and the best one if that is another."""
        y = finite(self.y)
        y = y[np.isfinite(y)]
        last = write(float(y[-1]))
        best = write(float(y.max() if self.best == "high" else y.min())) if self.best else last
        return f"{self.name} {last}" + (f" (best {best})" if best != last else "")


def of_run(number: int, name: str, x: Sequence[float], y: Sequence[float], marked: bool) -> Line:
    """Return a line of one of several runs, in its color and dashes."""
    color, dash = SERIES_COLORS[number % len(SERIES_COLORS)], DASHES[number % len(DASHES)]
    return Line(name, x, y, color, dash, marked)


def lines(
    name: str,
    title: str,
    drawn: Sequence[Line],
    across: str,
    *,
    share: bool = False,
    legend: bool = True,
) -> Markup:
    """Draw lines; empty if none of them has `LEAST` points.

    Args:
        name: unique on the page
        title: what it shows, in words
        drawn: the lines
        across: what they are drawn against
        share: whether values are written in percent
        legend: whether to name the lines, with their last and best values
    """
    drawn = [each for each in drawn if np.isfinite(finite(each.y)).any()]
    if not any(np.isfinite(finite(each.y)).sum() >= LEAST for each in drawn):
        return Markup()
    write = (lambda value: f"{value:.1%}") if share else (lambda value: f"{value:.3g}")
    told = [each.told(write) for each in drawn]
    with mpl.rc_context(STYLE):
        figure = new_figure(WIDTH, 250 + 18 * len(drawn) * legend)
        axes = figure.subplots()
        for each, label in zip(drawn, told, strict=True):
            _draw(axes, each, POINTS // len(drawn), label)
        axes.set_xlabel(across)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True, steps=[1, 2, 5, 10]))
        axes.xaxis.set_major_formatter(PLAIN)
        axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
        axes.yaxis.set_major_formatter(PERCENT if share else PLAIN)
        if legend:
            figure.legend(loc="outside upper left", ncols=1, borderaxespad=0)
        return svg(figure, name, f"{title} against {across}: {'; '.join(told)}.")


def _draw(axes: Axes, line: Line, most: int, label: str) -> None:
    """Draw a line: smoothed over the faint original if it is dense; evaluations are marked."""
    x, y = thinned(finite(line.x), finite(line.y), max(most, DENSE))
    looks: dict[str, Any] = {"color": line.color, "linestyle": line.dash}
    if line.marked or len(y) <= DENSE:
        size = 4.0 if len(y) <= 40 else 2.5
        axes.plot(x, y, linewidth=1.6, marker="o", markersize=size, label=label, **looks)
        return
    axes.plot(x, y, color=line.color, linewidth=1, alpha=0.3)
    axes.plot(x, smoothed(y), linewidth=1.8, label=label, **looks)


def thinned(x: Numbers, y: Numbers, most: int) -> tuple[Numbers, Numbers]:
    """Return at most so many points, each the mean of its finite neighbors."""
    if len(y) <= most:
        return x, y
    starts = np.linspace(0, len(y), most, endpoint=False).astype(np.int64)
    usable = np.isfinite(x) & np.isfinite(y)
    with np.errstate(invalid="ignore"):  # 0/0 is NaN: no point
        counts = np.add.reduceat(usable.astype(np.int64), starts)
        means = [np.add.reduceat(np.where(usable, v, 0.0), starts) / counts for v in (x, y)]
    return means[0], means[1]


def smoothed(y: Numbers) -> Numbers:
    """Return a centered moving average over a twentieth of the points, NaN where there is none."""
    window = np.hanning(2 * max(len(y) // 20, 1) + 3)
    usable = np.isfinite(y)
    sums = np.convolve(np.where(usable, y, 0.0), window, "same")
    weights = np.convolve(usable.astype(np.float64), window, "same")
    return np.where(weights > 0, sums / np.maximum(weights, 1e-12), np.nan)


def reliability(bins: Sequence[Bin], name: str, label: str) -> Markup:
    """Draw accuracy and confidence of each bin, and below them its number of images."""
    filled = [item for item in bins if item.count]
    centers = [(item.low + item.high) / 2 for item in filled]
    width = 0.86 * (bins[0].high - bins[0].low)
    with mpl.rc_context(STYLE):
        figure = new_figure(WIDTH, 360)
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3.6, 1))
        above.plot((0, 1), (0, 1), color=MUTED, linewidth=1.2, linestyle=DASHES[1])
        bars = above.bar(centers, [item.accuracy for item in filled], width, color=BLUE)
        for bar, item, center in zip(bars, filled, centers, strict=True):
            faint = 0.35 if item.count < FEW else 1.0
            bar.set_alpha(0.6 * faint)
            ends = (center - width / 2, center + width / 2)
            above.hlines(item.confidence, *ends, color=WARM, linewidth=3, alpha=faint)
        below.bar(centers, [item.count for item in filled], width, color=MUTED)
        above.set(xlim=(0, 1), ylim=(0, 1.04), ylabel="share that is right")
        below.set(xlabel="how sure the model is", ylabel="images")
        for axis in (above.yaxis, below.xaxis):
            axis.set_major_formatter(PERCENT)
        below.yaxis.set_major_locator(MaxNLocator(2, integer=True, prune="lower"))
        below.yaxis.set_major_formatter(COUNTS)
        return svg(figure, name, label)


def histogram(name: str, label: str, shares: Sequence[float], across: str) -> Markup:
    """Draw how many classes have which share, from 0 to 1."""
    with mpl.rc_context(STYLE):
        figure = new_figure(WIDTH, 240)
        axes = figure.subplots()
        axes.hist(shares, np.linspace(0, 1, 21).tolist(), rwidth=0.92, color=BLUE)
        axes.set(xlabel=across, ylabel="classes")
        axes.xaxis.set_major_formatter(PERCENT)
        axes.yaxis.set_major_locator(MaxNLocator(5, integer=True, prune="lower"))
        return svg(figure, name, label)


def matrix(name: str, label: str, counts: NDArray[np.int64], names: Sequence[str]) -> Markup:
    """Draw a confusion matrix: rows are true classes, right answers blue and mistakes orange.

    A few mistakes in a hundred matter most: the root of their share makes them visible. Where there
    are more classes than `SIDE`, a cell is the strongest of several.

    Args:
        name: unique on the page
        label: what it shows, in words
        counts: images, (K, K)
        names: of the classes
    """
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    right, wrong = np.diag(np.diag(shares)), np.sqrt(shares * (1 - np.eye(len(shares))))
    starts = np.arange(0, len(shares), -(-len(shares) // SIDE))
    layers = [
        np.maximum.reduceat(np.maximum.reduceat(part, starts, 0), starts, 1)
        for part in (right, wrong)
    ]
    few = len(names) <= NUMBERED
    side = 26 * len(names) + 150 if few else 420
    with mpl.rc_context(STYLE):
        figure = new_figure(side, side)
        axes = figure.subplots()
        axes.grid(visible=False)
        for layer, color in zip(layers, SHADES, strict=True):
            shade = np.zeros((*layer.shape, 4))
            shade[..., :3] = mpl.colors.to_rgb(color)
            shade[..., 3] = np.where(layer > 0, 0.12 + 0.78 * layer, 0)
            axes.imshow(shade, interpolation="nearest")
        axes.set(xlabel="the model says", ylabel="true class")
        if few:
            cut = [each if len(each) <= 18 else f"{each[:17]}…" for each in names]
            axes.set_xticks(range(len(names)), cut, rotation=90)
            axes.set_yticks(range(len(names)), cut)
            for row, column in np.argwhere(counts):
                strong = max(layer[row, column] for layer in layers) > 0.5
                axes.text(
                    column, row, f"{counts[row, column]}", ha="center", va="center", fontsize=11,
                    color="#ffffff" if strong else INK,
                )  # fmt: skip
        return svg(figure, name, label)


def scatter(
    name: str, label: str, points: NDArray[np.float32], groups: Sequence[tuple[str, Sequence[int]]],
    ringed: Sequence[int], aspect: float,
) -> Markup:  # fmt: skip
    """Draw points of several groups, each in a color and shape of its own.

    Args:
        name: unique on the page
        label: what it shows, in words
        points: (n, 2), x and y from 0 to 1, y downwards
        groups: names and the numbers of their points
        ringed: numbers of points that have a ring
        aspect: width to height
    """
    with mpl.rc_context(STYLE | {"axes.grid": False}):
        legend = 22 * -(-len(groups) // 4)
        figure = new_figure(680, round(680 / aspect) + legend)
        axes = figure.subplots()
        for number, (title, own) in enumerate(groups):
            axes.plot(
                points[own, 0], points[own, 1], MARKERS[number % len(MARKERS)], ms=6, mew=0,
                color=SERIES_COLORS[number % len(SERIES_COLORS)], label=f"{title} ({len(own):,})",
            )  # fmt: skip
        axes.plot(points[ringed, 0], points[ringed, 1], "o", ms=11, mec=INK, mfc="none", mew=1.2)
        axes.set_axis_off()
        axes.invert_yaxis()
        figure.legend(loc="outside upper left", ncols=4, borderaxespad=0)
        return svg(figure, name, label)
