"""The learning curves of a run."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import matplotlib as mpl
import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray

from vitlab.report.drawings.drawing import BLUE, STYLE, WARM, WIDTH, finite, new_figure, svg
from vitlab.report.facts import Point

Numbers = NDArray[np.float64]
Value = Callable[[Point], float]
Best = Callable[[Numbers], np.intp]

PERCENT = FuncFormatter(lambda value, _: f"{100 * value:.4g}%")
_PLAIN = FuncFormatter(lambda value, _: f"{value:.4g}")
_MOST_POINTS = 300  # per line: more cannot be distinguished on the page
_FEW = 20  # points that are drawn without smoothing
_APART = 0.13  # of the height of a panel: the least distance of two values at its right edge
_EPOCHS = 2.5  # shorter runs are drawn against steps


@dataclass(frozen=True)
class Quantity:
    """What a panel shows: its name among the ids of the page, its title, and where it is found.

    Attributes:
        plain: a number, not a share that is written in percent
        best: finds the best value; None where neither more nor less is better
    """

    name: str
    title: str
    value: Value
    plain: bool = False
    best: Best | None = np.nanargmax


LOSS = Quantity("loss", "Loss", lambda point: point.loss, plain=True, best=np.nanargmin)
RATE = Quantity("rate", "Learning rate", lambda point: point.lr or 0.0, plain=True)
TAUGHT = (
    Quantity("agreed", "Agreement with the teacher", lambda p: p.own.get("agreed", math.nan)),
    Quantity("cosine", "Cosine with the teacher", lambda p: p.own.get("cosine", math.nan), True),
)


@dataclass(frozen=True)
class Curve:
    """One panel: its title, its drawing, and the lines in it, as CSS classes and names."""

    title: str
    drawing: Markup
    keys: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class _Line:
    """The values of one line of a panel, and how they are written."""

    name: str
    color: str
    x: Numbers
    y: Numbers
    write: Callable[[float], str]
    best: Best | None = None
    smooth: bool = True
    evaluation: bool = False

    @property
    def shown(self) -> tuple[Numbers, Numbers]:
        """The points of the line: smoothed where they are many, but for evaluations."""
        x, y = thinned(self.x, self.y)
        return (x, smoothed(y)) if self.dense else (x, y)

    @property
    def dense(self) -> bool:
        """Whether the line is smoothed."""
        return not self.evaluation and self.smooth and len(self.y) > _FEW

    @property
    def end(self) -> float:
        """The last value that can be drawn."""
        y = self.shown[1]
        return float(y[np.isfinite(y)][-1])

    @property
    def highlight(self) -> str:
        """The best value as text; empty if it is the last one, or none is the best."""
        if self.best is None:
            return ""
        value = self.write(float(self.y[int(self.best(self.y))]))
        return "" if value == self.last else value

    @property
    def title(self) -> str:
        """The name of the line, and its best value."""
        return f"{self.name}, best {self.highlight}" if self.highlight else self.name

    @property
    def last(self) -> str:
        """The last value as text."""
        return self.write(self.end)


def undrawn(points: Sequence[Point]) -> int:
    """Count the points whose loss no curve can show: NaN or infinite."""
    return int(np.isnan(finite([point.loss for point in points])).sum())


def curves(
    training: Sequence[Point], testing: Sequence[Point], held_out: str = "test", *, alike: bool
) -> list[Curve]:
    """Draw loss, accuracy, probe and learning rate against epochs, each if it has values.

    Args:
        training: points of the training images
        testing: points of the images that are evaluated
        held_out: what these are called
        alike: whether both losses are the same quantity; else each has an axis of its own
    """
    several = [point for point in testing if point.map is not None]
    counted = () if several else training  # of several labels, accuracy is another quantity there
    shown = () if several else testing
    rated = Quantity("accuracy", "Accuracy", lambda p: p.accuracy)
    mean = Quantity("map", "mAP", lambda p: p.map or 0.0)
    panels = [
        panel(LOSS, training, testing, held_out, alike=alike),
        panel(rated, counted, shown, held_out),
        panel(mean, (), several, held_out),
        *(panel(each, training, (), held_out) for each in TAUGHT),
        *probes(testing),
        rates(training),
    ]
    return [each for each in panels if each is not None]


def probes(testing: Sequence[Point]) -> list[Curve | None]:
    """Draw what `--probe` has measured; None where there is nothing."""
    shots = Quantity("probe", "10-shot accuracy", lambda p: p.probe or 0.0)
    votes = Quantity("knn", "20-NN accuracy", lambda p: p.knn or 0.0)
    return [
        panel(shots, (), [point for point in testing if point.probe is not None], "probe"),
        panel(votes, (), [point for point in testing if point.knn is not None], "probe"),
    ]


def rates(training: Sequence[Point]) -> Curve | None:
    """Draw the learning rate; None where it is not known."""
    return panel(RATE, [point for point in training if point.lr is not None], (), "")


def panel(
    quantity: Quantity,
    training: Sequence[Point],
    testing: Sequence[Point],
    held_out: str,
    *,
    alike: bool = True,
) -> Curve | None:
    """Draw one quantity; None if no value of it can be drawn.

    Args:
        quantity: what to draw
        training: points of the training images
        testing: points of the images that are evaluated
        held_out: what these are called
        alike: whether it is the same quantity on both; else each has an axis of its own
    """
    steps = max((point.epoch for point in (*training, *testing)), default=0.0) < _EPOCHS
    lines = _lines(quantity, training, testing, held_out, steps=steps)
    if not lines:
        return None
    name, title = quantity.name, quantity.title
    groups = [lines] if alike else [[line] for line in lines]
    with mpl.rc_context(STYLE):
        figure = new_figure(WIDTH, 250)
        figure.set_layout_engine("constrained", hspace=0.09)
        panels = figure.subplots(len(groups), sharex=True, squeeze=False)[:, 0]
        for axes, group in zip(panels, groups, strict=True):
            _fill(axes, group, plain=quantity.plain)
        axes.set_xlabel("step" if steps else "epoch")
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True, steps=[1, 2, 5, 10]))
        words = "; ".join(f"{line.title}, ends at {line.last}" for line in lines)
        drawing = svg(figure, name, f"{title} against {'steps' if steps else 'epochs'}: {words}.")
    keys = tuple(("blue" if line.color == BLUE else "warm", line.title) for line in lines)
    return Curve(title, drawing, keys if quantity is not RATE else ())


def _lines(
    quantity: Quantity,
    training: Sequence[Point],
    testing: Sequence[Point],
    held_out: str,
    *,
    steps: bool,
) -> list[_Line]:
    """Return the lines of a panel that have values."""
    lines = [
        _Line(
            label,
            color,
            finite([point.step if steps else point.epoch for point in own]),
            finite([quantity.value(point) for point in own]),
            _plainly if quantity.plain else _share,
            quantity.best if color == WARM else None,
            quantity is not RATE,
            color == WARM,
        )
        for label, color, own in (("training", BLUE, training), (held_out, WARM, testing))
    ]
    return [line for line in lines if np.isfinite(line.y).any()]


def _fill(axes: Axes, lines: Sequence[_Line], *, plain: bool) -> None:
    """Draw lines into axes, the last value of each at the right edge."""
    for line in lines:
        _draw(axes, line)
    axes.xaxis.set_major_formatter(_PLAIN)
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_formatter(_PLAIN if plain else PERCENT)
    low, high = axes.get_ylim()
    if not plain:
        low, high = max(low, -0.03), min(high, 1.03)
        axes.set_ylim(low, high)
    if not lines[0].smooth:  # a schedule ends near zero: no figure to read
        axes.set_ylim(bottom=0)
        return
    places = _spread([(line.end - low) / (high - low) for line in lines])
    for line, place in zip(lines, places, strict=True):
        axes.annotate(
            line.last, (1, place), (5, 0), xycoords="axes fraction", textcoords="offset points",
            va="center", color=line.color, annotation_clip=False,
        )  # fmt: skip


def _draw(axes: Axes, line: _Line) -> None:
    """Draw a line: smoothed over the faint original if it is dense; evaluations are marked."""
    x, y = line.shown
    if not line.evaluation:
        if line.dense:
            axes.plot(*thinned(line.x, line.y), color=line.color, linewidth=1, alpha=0.3)
        mark = "" if np.isfinite(y).sum() > 1 else "o"  # one point makes no line
        axes.plot(x, y, color=line.color, linewidth=1.8, marker=mark, markersize=5)
        return
    size = 4.0 if len(y) <= 40 else 2.5
    axes.plot(x, y, color=line.color, linewidth=1.6, marker="o", markersize=size)
    if line.best is None or not line.highlight:
        return
    place = int(line.best(line.y))
    axes.plot(
        line.x[place], line.y[place], marker="o", markersize=9, markerfacecolor="none",
        markeredgecolor=line.color, markeredgewidth=1.4, linestyle="",
    )  # fmt: skip


def thinned(x: Numbers, y: Numbers, most: int = _MOST_POINTS) -> tuple[Numbers, Numbers]:
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


def _spread(places: list[float]) -> list[float]:
    """Move the second of two values away from the first where they would overlap."""
    if len(places) < 2 or abs(places[0] - places[1]) >= _APART:
        return places
    middle, side = sum(places) / 2, np.sign(places[0] - places[1]) or 1
    middle = min(max(middle, _APART / 2), 1 - _APART / 2)
    return [middle + side * _APART / 2, middle - side * _APART / 2]


def _share(value: float) -> str:
    return f"{value:.1%}"


def _plainly(value: float) -> str:
    return f"{value:.3g}"
