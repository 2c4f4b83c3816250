"""Charts of the pages by matplotlib, as inline SVG in the colors of the page.

They are drawn in the colors of the light page, each of which becomes the CSS variable of its name.
Names go through matplotlib, which escapes them.
"""

import html
import io
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray

from vitlab.evaluation.reliability import Bin
from vitlab.pages.palette import LIGHT, SERIES
from vitlab.units import si

INK, MUTED, LINE, BLUE, WARM = (LIGHT[name] for name in ("ink", "muted", "line", "blue", "warm"))
SERIES_COLORS = tuple(light for light, _ in SERIES)
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text, in the page's font
    "svg.hashsalt": "vitlab",
    "text.parse_math": False,
    "font.size": 12,
    "text.color": INK,
    "axes.edgecolor": LINE,
    "axes.labelcolor": MUTED,
    "axes.titlecolor": INK,
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": LINE,
    "grid.linewidth": 0.8,
    "xtick.color": LINE,
    "ytick.color": LINE,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "legend.frameon": False,
    "legend.handlelength": 1.8,
}
# Without these, the same figure has the same bytes.
NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))
WIDTH = 326  # of a drawing that a phone shows at its full size, so that its text stays readable
_LARGEST = 1e30  # a larger loss is practically infinite, and would overflow the axes


def finite(values: Sequence[float]) -> NDArray[np.float64]:
    """Return the values as float64 (n,), NaN where one cannot be drawn."""
    array = np.asarray(values, dtype=np.float64)
    return np.where(np.abs(array) < _LARGEST, array, np.nan)


def new_figure(width: int, height: int) -> Figure:
    """Return a figure whose units are the page's pixels (72 points and 72 pixels per inch)."""
    return Figure(figsize=(width / 72, height / 72), dpi=72, layout="constrained")


def svg(figure: Figure, name: str, label: str, width: int = 0) -> Markup:
    """Return a figure as an inline `<svg>` with the page's colors and unique ids.

    Args:
        figure: drawn in the colors of the light page
        name: unique on the page
        label: what it shows, for those who do not see it
        width: pixels that it is brought to, at the same height; 0 to keep its own
    """
    if width:
        figure.set_size_inches(width / 72, figure.get_size_inches()[1])
        figure.set_dpi(72)
    figure.patch.set_visible(False)
    for axes in figure.axes:
        axes.patch.set_visible(False)
        axes.tick_params(length=0)
    buffer = io.StringIO()
    with mpl.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # the page's fonts have more of them
        figure.savefig(buffer, format="svg", metadata=NO_METADATA)
    text = buffer.getvalue()
    body = text[text.index(">", text.index("<svg")) + 1 :]
    body = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", body)
    body = re.sub(r"font-family: [^;\"]*;? ?", "", body)  # the page's own
    for variable, color in LIGHT.items():
        body = body.replace(color, f"var(--{variable})")
    wide, high = (round(side * 72) for side in figure.get_size_inches())
    return Markup(
        f'<svg class="plot" style="--w:{wide}px" viewBox="0 0 {wide} {high}" role="img" '
        f'aria-label="{html.escape(label)}">{body}'
    )


def standalone(drawing: Markup) -> str:
    """Return an inline drawing as the text of an SVG file of its own, on white."""
    text = re.sub(r"var\(--(\w+)\)", lambda found: LIGHT[found[1]], str(drawing))
    names = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    style = 'style="background:#fff" font-family="sans-serif"'
    width, height = re.findall(r'viewBox="0 0 (\d+) (\d+)"', text)[0]
    return re.sub(
        r'<svg class="plot" style="[^"]*"',
        f'<svg {names} width="{width}" height="{height}" {style}',
        text,
        count=1,
    )


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
