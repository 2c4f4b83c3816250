"""Plots of what can be seen without an image: filters and positions."""

import math

import numpy as np
from matplotlib.figure import Figure

from vitlab.inspect.plots.canvas import COSINES, Array, Floats, blank, numbers, show, themed

COLUMNS = 7  # of filters, as in the ViT paper
TILES = 14  # position similarities per side, as in the ViT paper


def embedding_filters(values: Array, title: str = "", *, dark: bool = False) -> Figure:
    """Draw filters in color, each scaled to its own range, as in the ViT paper's Figure 7.

    Args:
        values: of `vitlab.inspect.embedding_filters`, (count, rows, columns, channels)
        title: of the figure
        dark: for a dark page

    Raises:
        OptionError: an array of another shape.
    """
    filters = numbers(values, 4, "(count, rows, columns, channels)")
    rows = math.ceil(len(filters) / COLUMNS)
    with themed(dark=dark):
        figure = blank((5.2, 0.74 * rows + 0.5), title)
        for number, each in enumerate(filters):
            axes = figure.add_subplot(rows, COLUMNS, number + 1)
            show(axes, scaled(each), low=0, high=1)
        return figure


def scaled(kernel: Floats) -> Floats:
    """Return a filter from 0 to 1: (rows, columns, 3) in color, else (rows, columns) in gray."""
    low, high = float(kernel.min()), float(kernel.max())
    shown = (kernel - low) / max(high - low, 1e-12)
    return shown if shown.shape[-1] == 3 else shown.mean(-1)


def position_similarity(values: Array, title: str = "", *, dark: bool = False) -> Figure:
    """Draw how alike each place is to all places, a tile for each, as in the ViT paper's Figure 7.

    Args:
        values: of `vitlab.inspect.position_similarity`, (rows, columns, rows, columns), cosine
        title: of the figure
        dark: for a dark page

    Raises:
        OptionError: an array of another shape.
    """
    similarity = numbers(values, 4, "(rows, columns, rows, columns)")
    rows, columns = similarity.shape[:2]
    tiles, down, right = tiled(similarity, TILES)
    gap = max(1, columns // 10)
    with themed(dark=dark):
        figure = blank((5.2, 4.6), title)
        axes = figure.subplots()
        drawn = axes.imshow(tiles, cmap=COSINES, vmax=1, interpolation="nearest")
        axes.set_xticks(
            [n * (columns + gap) + (columns - 1) / 2 for n in range(len(right))],
            [str(n + 1) for n in right],
        )
        axes.set_yticks(
            [n * (rows + gap) + (rows - 1) / 2 for n in range(len(down))],
            [str(n + 1) for n in down],
        )
        axes.set(xlabel="column of the patch", ylabel="row of the patch")
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0)
        bar = figure.colorbar(drawn, ax=axes, label="cosine of position embeddings", shrink=0.8)
        bar.outline.set(visible=False)
        return figure


def tiled(similarity: Floats, most: int) -> tuple[Floats, list[int], list[int]]:
    """Return tiles side by side with gaps of NaN, and which rows and columns they are of.

    Args:
        similarity: (rows, columns, rows, columns)
        most: tiles per side; of more, some that are evenly spread
    """
    rows, columns = similarity.shape[:2]
    down, right = (_spread(side, most) for side in (rows, columns))
    gap = max(1, columns // 10)
    padded = np.pad(
        similarity[down][:, right], ((0, 0), (0, 0), (0, gap), (0, gap)), constant_values=np.nan
    )
    flat = padded.transpose(0, 2, 1, 3).reshape(len(down) * (rows + gap), -1)
    return flat[:-gap, :-gap], down, right


def _spread(count: int, most: int) -> list[int]:
    """Return at most so many of the numbers from 0, evenly spread."""
    return sorted({round(each) for each in np.linspace(0, count - 1, min(count, most))})
