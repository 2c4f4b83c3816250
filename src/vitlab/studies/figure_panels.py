"""The three panels of the ViT paper's Figure 7."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import MaxNLocator

from vitlab.inspect.plots.canvas import COSINES, Floats, show, themed
from vitlab.inspect.plots.of_weights import scaled, tiled
from vitlab.pages.palette import Theme

ACROSS = 7  # filters, as in the paper
TILES = 14  # position similarities per side, as in the paper


@dataclass(frozen=True)
class Panels:
    """What the three panels show.

    Attributes:
        title: model and data
        filters: principal components of the first layer's, (count, rows, columns, channels)
        positions: cosine of the position embeddings, (rows, columns, rows, columns)
        distance: mean attention distance, pixels, (layers, heads)
        uniform: that of a head that looks at all patches alike, pixels
    """

    title: str
    filters: Floats
    positions: Floats
    distance: Floats
    uniform: float


def draw(panels: Panels, *, dark: bool = False) -> Figure:
    """Draw filters, positions and distance side by side.

    Args:
        panels: what they show
        dark: for a dark page
    """
    with themed(dark=dark) as theme:
        figure = Figure(figsize=(10.4, 3.9), dpi=110, layout="constrained")
        figure.suptitle(panels.title, fontsize=11, x=0.01, ha="left")
        parts: Any = figure.subfigures(1, 3, width_ratios=(1.3, 1.35, 1.15), wspace=0.03)
        left, center, right = parts
        _filters(left, panels.filters)
        _positions(center, panels.positions)
        _distance(right, panels, theme)
        return figure


def _filters(panel: SubFigure, filters: Floats) -> None:
    count, high, wide = filters.shape[:3]
    across, gap = min(ACROSS, count), max(1, wide // 8)
    down = math.ceil(count / across)
    tiles = np.zeros((down * (high + gap) - gap, across * (wide + gap) - gap, 4))
    for number, each in enumerate(filters):
        top, left = number // across * (high + gap), number % across * (wide + gap)
        shown = scaled(each)
        tile = tiles[top : top + high, left : left + wide]
        tile[..., :3], tile[..., 3] = shown if shown.ndim == 3 else shown[..., None], 1
    axes = panel.subplots()
    axes.set_title("Embedding filters, first components first", loc="left")
    show(axes, tiles)


def _positions(panel: SubFigure, similarity: Floats) -> None:
    tiles, down, right = tiled(similarity, TILES)
    rows, columns = similarity.shape[:2]
    gap = max(1, columns // 10)
    axes = panel.subplots()
    axes.set_title("Position embedding similarity", loc="left")
    drawn = axes.imshow(tiles, cmap=COSINES, vmax=1, interpolation="nearest")
    for axis, chosen, side in ((axes.xaxis, right, columns), (axes.yaxis, down, rows)):
        places = [n * (side + gap) + (side - 1) / 2 for n in range(len(chosen))]
        axis.set_ticks(places, [str(each + 1) for each in chosen])
    axes.set(xlabel="column of the patch", ylabel="row of the patch")
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    bar = panel.colorbar(drawn, ax=axes, label="cosine", shrink=0.75)
    bar.outline.set_visible(False)


def _distance(panel: SubFigure, panels: Panels, theme: Theme) -> None:
    axes, found = panel.subplots(), panels.distance
    axes.set_title("Mean attention distance", loc="left")
    layers = np.arange(1, len(found) + 1)
    axes.axhline(panels.uniform, color=theme["muted"], lw=1, ls=":", label="uniform attention")
    axes.scatter(
        layers.repeat(found.shape[1]), found.ravel(), s=20, alpha=0.6, color=theme["blue"],
        linewidths=0, label="a head",
    )  # fmt: skip
    axes.plot(layers, found.mean(1), color=theme["warm"], label="mean of heads")
    top = 1.08 * max(panels.uniform, float(found.max()))
    axes.set(xlabel="layer", ylabel="distance (pixels)", ylim=(0, top))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(loc="lower right", fontsize=9)
