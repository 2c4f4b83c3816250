"""The drawings of a report: plots as inline SVG, pictures as PNG data URIs.

Names of classes and files never pass through here; the template writes (and escapes) them.
"""

import base64
import io
from collections.abc import Callable, Sequence

import matplotlib as mpl
import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter
from numpy.typing import NDArray
from PIL import Image

from vitlab.evaluation.metrics import Bin
from vitlab.report.drawing import BLUE, INK, MUTED, STYLE, WARM, finite, new_figure, svg
from vitlab.report.facts import Picture, Point

_PERCENT = PercentFormatter(xmax=1, decimals=None)
_PLAIN = FuncFormatter(lambda value, _: f"{value:.4g}")
_MOST_POINTS = 400  # per line: more cannot be distinguished on the page
SHARES = ("accuracy", "probe")  # panels in percent
_SIDE = 224  # pixels of the longer side of a picture
_SMALL = 112  # a smaller picture is enlarged by whole pixels


def undrawn(points: Sequence[Point]) -> int:
    """Count the points whose loss no curve can show: NaN or infinite."""
    return int(np.isnan(finite([point.loss for point in points])).sum())


def curves(training: Sequence[Point], testing: Sequence[Point]) -> list[Markup]:
    """Draw loss, accuracy, probe and learning rate against epochs, each if it has values."""
    probed = [point for point in testing if point.probe is not None]
    rates = [point for point in training if point.lr is not None]
    panels = [
        _panel("loss", "Loss", 410, training, testing, lambda point: point.loss),
        _panel("accuracy", "Accuracy", 410, training, testing, lambda point: point.accuracy),
        _panel("probe", "10-shot accuracy", 410, (), probed, lambda point: point.probe or 0.0),
        _panel("rate", "Learning rate", 230, rates, (), lambda point: point.lr or 0.0),
    ]
    return [panel for panel in panels if panel is not None]


def _panel(
    name: str,
    title: str,
    width: int,
    training: Sequence[Point],
    testing: Sequence[Point],
    value: Callable[[Point], float],
) -> Markup | None:
    """Draw one quantity against epochs."""
    ends = []
    with mpl.rc_context(STYLE):
        figure = new_figure(width, 280)
        axes = figure.subplots()
        for label, points, color, mark in (
            ("training", training, BLUE, ""),
            ("test", testing, WARM, "o"),
        ):
            y = finite([value(point) for point in points])
            if np.isfinite(y).any():
                _line(axes, finite([point.epoch for point in points]), y, label, color, mark)
                ends.append(f"{label} ends at {y[np.isfinite(y)][-1]:.4g}")
        if not ends:
            return None
        axes.set_title(title)
        axes.set_xlabel("epoch")
        axes.xaxis.set_major_locator(MaxNLocator(6 if width > 300 else 4))
        axes.xaxis.set_major_formatter(_PLAIN)
        axes.yaxis.set_major_formatter(_PERCENT if name in SHARES else _PLAIN)
        if name in SHARES:
            axes.set_ylim(max(axes.get_ylim()[0], -0.03), min(axes.get_ylim()[1], 1.03))
        if name != "rate":
            axes.legend(loc="best")
        return svg(figure, name, f"{title} against epochs: {', '.join(ends)}.")


def _line(
    axes: Axes,
    x: NDArray[np.float64],
    y: NDArray[np.float64],
    label: str,
    color: str,
    mark: str,
) -> None:
    """Draw a line, thinned if it is dense, with marks if it is short."""
    x, y = _thinned(x, y)
    if len(y) > 60:
        mark = ""
    elif np.isfinite(y).sum() == 1:
        mark = "o"  # one point makes no line
    # The two lines differ by more than color: the test line has marks, or is dashed.
    dashed = label == "test" and not mark
    axes.plot(
        x, y, label=label, color=color, marker=mark, markersize=4, linewidth=1.8,
        linestyle=(0, (4, 1.5)) if dashed else "-",
    )  # fmt: skip


def _thinned(
    x: NDArray[np.float64], y: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return at most `_MOST_POINTS` points, each the mean of its finite neighbors."""
    if len(y) <= _MOST_POINTS:
        return x, y
    starts = np.linspace(0, len(y), _MOST_POINTS, endpoint=False).astype(np.int64)
    usable = np.isfinite(x) & np.isfinite(y)
    with np.errstate(invalid="ignore"):  # 0/0 is NaN: no point
        counts = np.add.reduceat(usable.astype(np.int64), starts)
        means = [np.add.reduceat(np.where(usable, v, 0.0), starts) / counts for v in (x, y)]
    return means[0], means[1]


def reliability(bins: Sequence[Bin], ece: str, when: str = "") -> Markup:
    """Draw accuracy against confidence, and below it the number of images in each bin.

    Args:
        bins: from `vitlab.evaluation.metrics.bins`
        ece: expected calibration error, as text
        when: "before" or "after" calibrating; empty where nothing was calibrated
    """
    title = f"{when.capitalize() or 'Calibration'}: ECE {ece}"
    filled = [item for item in bins if item.count]
    centers = [(item.low + item.high) / 2 for item in filled]
    widths = [(item.high - item.low) * 0.92 for item in filled]
    with mpl.rc_context(STYLE):
        figure = new_figure(420, 440)
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3.2, 1))
        above.set_title(title)
        above.bar(centers, [item.accuracy for item in filled], widths, color=BLUE, label="accuracy")
        above.bar(
            centers,
            [item.confidence - item.accuracy for item in filled],
            widths,
            bottom=[item.accuracy for item in filled],
            color=WARM,
            alpha=0.35,
            edgecolor=WARM,
            label="gap to confidence",
        )
        above.plot((0, 1), (0, 1), color=INK, linewidth=1.2, linestyle=(0, (4, 3)), label="perfect")
        above.set(xlim=(0, 1), ylim=(0, 1.02), ylabel="accuracy")
        above.legend(loc="upper left")
        below.bar(centers, [item.count for item in filled], widths, color=MUTED)
        below.set(xlabel="confidence", ylabel="images")
        below.margins(y=0.3)
        below.yaxis.set_major_locator(MaxNLocator(2, integer=True))
        below.yaxis.set_major_formatter(FuncFormatter(_thousands))
        if len(bins) <= 15:
            for center, item in zip(centers, filled, strict=True):
                below.annotate(
                    _thousands(item.count), (center, item.count), (0, 2), fontsize=9, ha="center",
                    textcoords="offset points", color=MUTED,
                )  # fmt: skip
        above.yaxis.set_major_formatter(_PERCENT)
        below.xaxis.set_major_formatter(_PERCENT)
        return svg(figure, f"reliability{when}", f"Reliability diagram. {title}.")


def spread(recalls: Sequence[float]) -> Markup:
    """Draw a histogram of the classes' recalls, for data with too many classes for one table."""
    with mpl.rc_context(STYLE):
        figure = new_figure(420, 280)
        axes = figure.subplots()
        axes.hist(recalls, np.linspace(0, 1, 21).tolist(), rwidth=0.92, color=BLUE)
        axes.set_title("Classes by recall")
        axes.set(xlim=(0, 1), xlabel="recall of the class", ylabel="classes")
        axes.xaxis.set_major_formatter(_PERCENT)
        axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
        median = float(np.median(recalls))
        label = f"Histogram of the recall of {len(recalls)} classes; the median is {median:.1%}."
        return svg(figure, "spread", label)


def picture(image: Picture) -> str:
    """Return a PNG data URI; tiny images keep their pixels, large ones shrink."""
    return _png(_shown(image))


def overlay(image: Picture, attention: NDArray[np.float32]) -> str:
    """Return the picture under its attention map, bright where the map is high, as a data URI."""
    shown = _shown(image)
    finite_map = np.nan_to_num(attention.astype(np.float32), nan=0.0, posinf=0.0, neginf=0.0)
    low, high = float(finite_map.min()), float(finite_map.max())
    # A flat map has nothing to show; stretched, its rounding errors would look like a pattern.
    flat = high - low <= 1e-5 * abs(high)
    scaled = finite_map * 0 if flat else (finite_map - low) / (high - low)
    heat = np.asarray(Image.fromarray(scaled).resize(shown.size, Image.Resampling.BICUBIC))
    heat = heat.clip(0, 1)
    colors = mpl.colormaps["inferno"](heat * 0.92)[..., :3]
    weight = (0.30 + 0.40 * heat)[..., None]
    gray = np.asarray(shown.convert("L").convert("RGB"), dtype=np.float32) / 255
    mixed = (1 - weight) * gray * (0.45 + 0.55 * heat[..., None]) + weight * colors
    return _png(Image.fromarray((mixed.clip(0, 1) * 255).round().astype(np.uint8)))


def _shown(image: Picture) -> Image.Image:
    """Return the picture at about its size on the page: enlarged by whole pixels, or shrunk."""
    shown = Image.fromarray(image.pixels)
    side = max(shown.size)
    if side < _SMALL:
        factor = max(1, _SIDE // side)
        return shown.resize((shown.width * factor, shown.height * factor), Image.Resampling.NEAREST)
    if side > _SIDE:
        shown.thumbnail((_SIDE, _SIDE), Image.Resampling.LANCZOS)
    return shown


def _png(image: Image.Image) -> str:
    buffer = io.BytesIO()
    image.save(buffer, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def _thousands(count: float, _: object = None) -> str:
    """Return a count in at most four characters."""
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / size:.3g}"[:4].rstrip(".") + unit
    return f"{count:.0f}"
