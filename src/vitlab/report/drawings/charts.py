"""The other drawings of a report: calibration, and the classes where they are many.

Names of classes and files never pass through here; the template writes (and escapes) them.
"""

from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
from markupsafe import Markup
from matplotlib.ticker import FuncFormatter, MaxNLocator

from vitlab.evaluation.reliability import Bin
from vitlab.report.drawings.curves import PERCENT
from vitlab.report.drawings.drawing import (
    BLUE,
    CARD,
    INK,
    MUTED,
    STYLE,
    WARM,
    WIDTH,
    new_figure,
    svg,
)

FEW = 10  # images: the accuracy of a bin with fewer says little


def reliability(bins: Sequence[Bin], ece: str, when: str = "") -> Markup:
    """Draw accuracy and confidence of each bin, and below them its number of images.

    Args:
        bins: from `vitlab.evaluation.reliability.bins`
        ece: expected calibration error, as text
        when: "before" or "after" calibrating; empty where nothing was calibrated
    """
    filled = [item for item in bins if item.count]
    centers = [(item.low + item.high) / 2 for item in filled]
    width = 0.86 * (bins[0].high - bins[0].low)
    with mpl.rc_context(STYLE):
        figure = new_figure(WIDTH, 350)
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3.6, 1))
        above.plot((0, 1), (0, 1), color=MUTED, linewidth=1.2, linestyle=(0, (4, 3)))
        for center, item in zip(centers, filled, strict=True):
            faint = 0.35 if item.count < FEW else 1.0
            above.bar(center, item.accuracy, width, color=BLUE, alpha=faint)
            sides = (center - width / 2, center + width / 2)
            for color, extra in ((CARD, 2.4), (WARM, 0.0)):  # orange stands out from blue by a rim
                above.plot(
                    (center, center), (item.accuracy, item.confidence), color=color,
                    linewidth=1.8 + extra, alpha=faint, solid_capstyle="butt",
                )  # fmt: skip
                above.plot(
                    sides, (item.confidence, item.confidence), color=color,
                    linewidth=3 + extra, alpha=faint, solid_capstyle="butt",
                )  # fmt: skip
        below.bar(centers, [item.count for item in filled], width, color=MUTED)
        above.set(xlim=(0, 1), ylim=(0, 1.04), ylabel="accuracy")
        below.set(xlabel="confidence", ylabel="images")
        below.set_yticks([])  # the numbers stand above the bars
        below.margins(y=0.45)
        if len(bins) <= 15:
            texts = [_thousands(item.count) for item in filled]
            lift = 12 if any(len(text) > 2 for text in texts) else 0  # of every other one
            for number, (center, item) in enumerate(zip(centers, filled, strict=True)):
                below.annotate(
                    texts[number], (center, item.count), (0, 2 + lift * (number % 2)),
                    textcoords="offset points", fontsize=11, ha="center", color=INK,
                )  # fmt: skip
        above.yaxis.set_major_formatter(PERCENT)
        below.xaxis.set_major_formatter(PERCENT)
        title = f"{when.capitalize() or 'Calibration'}: ECE {ece}"
        return svg(figure, f"reliability{when}", f"Reliability diagram. {title}.")


def spread(recalls: Sequence[float]) -> Markup:
    """Draw a histogram of the classes' recalls, for data with too many classes to look at each."""
    with mpl.rc_context(STYLE):
        figure = new_figure(WIDTH, 240)
        axes = figure.subplots()
        axes.hist(recalls, np.linspace(0, 1, 21).tolist(), rwidth=0.92, color=BLUE)
        axes.set(xlim=(0, 1), xlabel="recall of the class", ylabel="classes")
        axes.xaxis.set_major_formatter(PERCENT)
        axes.yaxis.set_major_locator(MaxNLocator(5, integer=True, prune="lower"))
        median = float(np.median(recalls))
        label = f"Histogram of the recall of {len(recalls)} classes; the median is {median:.1%}."
        return svg(figure, "spread", label)


def sorted_counts(counts: Sequence[int]) -> Markup:
    """Draw the number of training images of each class, largest first, for very many classes."""
    with mpl.rc_context(STYLE):
        figure = new_figure(WIDTH, 240)
        axes = figure.subplots()
        largest_first = sorted(counts, reverse=True)
        axes.step(range(len(counts)), largest_first, where="mid", color=BLUE, linewidth=1.6)
        axes.fill_between(range(len(counts)), largest_first, step="mid", color=BLUE, alpha=0.2)
        axes.set(xlim=(0, len(counts) - 1), xlabel="classes, largest first", ylabel="images")
        axes.set_ylim(bottom=0)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(5, integer=True, prune="lower"))
        axes.yaxis.set_major_formatter(FuncFormatter(_thousands))
        most, least = largest_first[0], largest_first[-1]
        label = f"Training images of {len(counts)} classes: from {most:,} down to {least:,}."
        return svg(figure, "counts", label)


def _thousands(count: float, _: object = None) -> str:
    """Return a count in at most four characters."""
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / size:.3g}"[:4].rstrip(".") + unit
    return f"{count:.0f}"
