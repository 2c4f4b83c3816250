"""Pictures of what is inside a model, as figures of matplotlib: for files and for the page."""

import math
from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray
from PIL import Image

from vitlab.report.inside.looked import Floats, SeenImage

MAPS, COSINES = "inferno", "cividis"  # both rise in lightness, also for the color-blind
TILES = 14  # position similarities per side, as in the ViT paper
STYLE: dict[Any, Any] = {
    "font.size": 11,
    "axes.titlesize": 11,
    "svg.hashsalt": "vitlab",
    "text.parse_math": False,
}
LAYER = "layer"
WIDE = 6.4  # inches


def of_heads(values: Floats, unit: str, title: str) -> Figure:
    """Draw a point per head against its layer, as in the ViT paper's Figures 7 and 11.

    Args:
        values: (layers, heads)
        unit: of the values
        title: of the figure
    """
    with mpl.rc_context(STYLE):
        figure, axes = _single((5.2, 3.6), title)
        layers = np.repeat(np.arange(1, len(values) + 1), values.shape[1])
        colors = np.tile(np.linspace(0, 0.85, values.shape[1]), len(values))
        axes.scatter(
            layers, np.sort(values, 1).ravel(), c=colors, cmap="viridis", s=18, vmin=0, vmax=1
        )
        axes.plot(
            range(1, len(values) + 1), values.mean(1), color="0.35", lw=1, label="mean of heads"
        )
        axes.set(xlabel=LAYER, ylabel=unit, ylim=(0, 1.05 * float(values.max())))
        axes.legend(frameon=False, loc="best")
        return figure


def of_depth(values: Floats, unit: str, title: str) -> Figure:
    """Draw one value per layer, layer 0 being what enters the first block.

    Args:
        values: (layers + 1,)
        unit: of the values
        title: of the figure
    """
    with mpl.rc_context(STYLE):
        figure, axes = _single((5.2, 3.2), title)
        axes.plot(range(len(values)), values, marker="o", ms=4, color="#0a4c8a")
        axes.set(xlabel=LAYER, ylabel=unit)
        return figure


def of_filters(filters: Floats, title: str) -> Figure:
    """Draw filters in color, each scaled to its own range, as in the ViT paper's Figure 7.

    Args:
        filters: (count, rows, columns, channels)
        title: of the figure
    """
    with mpl.rc_context(STYLE):
        columns = 7
        rows = math.ceil(len(filters) / columns)
        figure = _blank((5.2, 0.74 * rows + 0.5), title)
        for number, each in enumerate(filters):
            axes = figure.add_subplot(rows, columns, number + 1)
            low, high = float(each.min()), float(each.max())
            shown = (each - low) / max(high - low, 1e-12)
            _pixels(axes, shown if shown.shape[-1] == 3 else shown.mean(-1, keepdims=True))
        return figure


def of_positions(similarity: Floats, title: str) -> Figure:
    """Draw the similarity of each place with all places, as tiles, as in the ViT paper's Figure 7.

    Args:
        similarity: (rows, columns, rows, columns)
        title: of the figure
    """
    with mpl.rc_context(STYLE):
        rows, columns = similarity.shape[:2]
        down, right = (_spread(side, TILES) for side in (rows, columns))
        gap = max(1, columns // 10)
        tiles = np.pad(
            similarity[down][:, right], ((0, 0), (0, 0), (0, gap), (0, gap)), constant_values=np.nan
        )
        mosaic = tiles.transpose(0, 2, 1, 3).reshape(len(down) * (rows + gap), -1)
        figure, axes = _single((5.2, 4.6), title)
        drawn = axes.imshow(mosaic[:-gap, :-gap], cmap=COSINES, vmax=1, interpolation="nearest")
        axes.set_xticks(
            [n * (columns + gap) + columns / 2 for n in range(len(right))],
            [str(n + 1) for n in right],
        )
        axes.set_yticks(
            [n * (rows + gap) + rows / 2 for n in range(len(down))], [str(n + 1) for n in down]
        )
        axes.set(xlabel="column of the patch", ylabel="row of the patch")
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0)
        figure.colorbar(drawn, ax=axes, label="cosine", shrink=0.8)
        return figure


def of_map(image: SeenImage, values: Floats, title: str) -> Figure:
    """Draw an image, and a map of its patches over it.

    Args:
        image: with its picture
        values: (rows, columns), not negative
        title: of the figure
    """
    with mpl.rc_context(STYLE):
        figure = _blank((WIDE, 3.3), title)
        left, right = figure.subplots(1, 2)
        _pixels(left, image.picture.pixels)
        rows, columns = image.picture.pixels.shape[:2]
        gray = np.asarray(Image.fromarray(image.picture.pixels).convert("L"))
        right.imshow(gray, cmap="gray", vmin=0, vmax=255)
        smooth = Image.fromarray(values.astype(np.float32)).resize((columns, rows), 2)
        drawn = right.imshow(np.asarray(smooth), cmap=MAPS, alpha=0.65, vmin=0)
        right.set_axis_off()
        figure.colorbar(drawn, ax=right, label="share of the sum" if title else "", shrink=0.85)
        return figure


def of_tiles(tiles: Sequence[NDArray[np.float32]], names: Sequence[str], title: str) -> Figure:
    """Draw maps side by side, each scaled to its own range.

    Args:
        tiles: (rows, columns) each, or (rows, columns, 3) from 0 to 1
        names: above each
        title: of the figure
    """
    with mpl.rc_context(STYLE):
        columns = min(6, len(tiles))
        rows = math.ceil(len(tiles) / columns)
        figure = _blank((WIDE, WIDE / max(columns, 3) * 1.12 * rows + 0.5), title)
        for number, (each, name) in enumerate(zip(tiles, names, strict=True)):
            axes = figure.add_subplot(rows, columns, number + 1)
            _pixels(axes, each)
            axes.set_title(name, fontsize=9)
        return figure


def _blank(inches: tuple[float, float], title: str) -> Figure:
    figure = Figure(figsize=inches, dpi=110, layout="constrained")
    figure.suptitle(title, fontsize=11, x=0.01, ha="left")
    return figure


def _single(inches: tuple[float, float], title: str) -> tuple[Figure, Axes]:
    figure = _blank(inches, title)
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure, axes


def _pixels(axes: Axes, pixels: NDArray[np.float32] | NDArray[np.uint8]) -> None:
    """Show RGB, grays (uint8, or a last axis of one), or a map."""
    gray = pixels.dtype == np.uint8 or pixels.shape[2:] == (1,)
    axes.imshow(pixels, cmap="gray" if gray else MAPS, interpolation="nearest")
    axes.set_axis_off()


def _spread(count: int, most: int) -> list[int]:
    """Return at most so many of the numbers from 0, evenly spread."""
    return sorted({round(each) for each in np.linspace(0, count - 1, min(count, most))})
