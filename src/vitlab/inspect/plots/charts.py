"""Charts of a model: heads and tokens by layer, filters, and positions.

Each takes a title, and `dark` for a dark page; another shape of array is an `OptionError`.
"""

import math
from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from vitlab.inspect.plots.canvas import COSINES, Array, Floats, blank, numbers, themed

SIZE = (5.2, 3.5)  # inches
COLUMNS, TILES = 7, 14  # filters in a row, and tiles of positions per side, as in the ViT paper
HEADS, LAYERS = "(layers, heads)", "(layers + 1,)"


def attention_distance(
    values: Array,
    title: str = "",
    *,
    among: Array | None = None,
    elsewhere: Array | None = None,
    dark: bool = False,
) -> Figure:
    """Draw how far each head looks, as in the ViT paper's Figures 7 and 11.

    Args:
        values: of `vitlab.inspect.attention_distance`, (layers, heads), pixels
        title: of the figure, such as the model's name
        among: the same with `among_patches=True`, which are drawn too
        elsewhere: of `vitlab.inspect.attention_elsewhere`, whose mean is drawn below
        dark: for a dark page

    Raises:
        OptionError: an array of another shape.
    """
    return _heads(values, "attention distance (pixels)", title, among, elsewhere, dark=dark)


def attention_entropy(values: Array, title: str = "", *, dark: bool = False) -> Figure:
    """Draw how widely each head spreads its attention.

    `values` are those of `vitlab.inspect.attention_entropy`, (layers, heads), bits.
    """
    return _heads(values, "attention entropy (bits)", title, dark=dark)


def token_norms(values: Array, title: str = "", *, prefix: int = 0, dark: bool = False) -> Figure:
    """Draw how long tokens are after each block: the mean patch, and the longest one.

    Args:
        values: of `vitlab.inspect.token_norms`, (B, layers + 1, tokens)
        title: of the figure
        prefix: `model.config.prefix`, the class token and registers that are no patches
        dark: for a dark page

    Raises:
        OptionError: an array of another shape.
    """
    patches = numbers(values, 3, "(B, layers + 1, tokens)")[:, :, prefix:]
    lines = {"mean of patches": patches.mean((0, 2)), "longest patch": patches.max((0, 2))}
    return through_depth(lines, "length of the token", title, dark=dark)


def token_similarity(values: Array, title: str = "", *, dark: bool = False) -> Figure:
    """Draw how alike the patches of an image are after each block, the mean of the images.

    `values` are those of `vitlab.inspect.token_similarity`, (B, layers + 1).
    """
    mean = numbers(values, 2, "(B, layers + 1)").mean(0)
    return through_depth({"": mean}, "mean cosine of two patches", title, dark=dark)


def through_depth(
    lines: Mapping[str, Array], unit: str, title: str = "", *, dark: bool = False
) -> Figure:
    """Draw a value for each layer, layer 0 being what enters the first block.

    Args:
        lines: at most two, by name: (layers + 1,)
        unit: of the values
        title: of the figure
        dark: for a dark page
    """
    with themed(dark=dark) as theme:
        figure = blank(SIZE, title)
        axes = figure.subplots()
        looks = ((theme["blue"], "o-"), (theme["warm"], "^--"))
        for (name, values), (color, form) in zip(lines.items(), looks, strict=False):
            axes.plot(numbers(values, 1, LAYERS), form, color=color, ms=4, label=name)
        _by_layer(axes, unit)
        if len(lines) > 1:
            _named_above(axes)
        return figure


def _heads(
    values: Array,
    unit: str,
    title: str,
    among: Array | None = None,
    elsewhere: Array | None = None,
    *,
    dark: bool,
) -> Figure:
    """Draw a point for each head at its layer, and the mean of the heads."""
    found = numbers(values, 2, HEADS)
    layers = np.arange(1, len(found) + 1)
    with themed(dark=dark) as theme:
        below = elsewhere is not None
        figure = blank((SIZE[0], SIZE[1] + 1.1 * below), title)
        heights = (3.0, 1.0)[: 1 + below]
        grid = figure.subplots(1 + below, 1, sharex=True, squeeze=False, height_ratios=heights)
        axes, shown = grid[0, 0], [(found, "a head", "mean of heads", "blue", "-")]
        if among is not None:
            words = "among patches alone"
            shown.append((numbers(among, 2, HEADS), words, f"mean {words}", "muted", "--"))
        for each, name, mean, color, line in shown:
            axes.scatter(
                layers.repeat(each.shape[1]), each.ravel(), s=20, color=theme[color], alpha=0.55,
                linewidths=0, label=name,
            )  # fmt: skip
            axes.plot(layers, each.mean(1), line, color=theme["warm"], lw=1.6, label=mean)
        high = max(float(np.nanmax(each, initial=0)) for each, *_ in shown)
        axes.set_ylim(0, 1.06 * max(high, 1e-6))
        _by_layer(axes, unit)
        _named_above(axes)
        if elsewhere is not None:
            axes.set_xlabel("")
            shares = (100 * numbers(elsewhere, 2, HEADS)).mean(1)
            grid[1, 0].bar(layers, shares, color=theme["blue"], width=0.6)
            grid[1, 0].set_ylim(0, 100)
            _by_layer(grid[1, 0], "% to no patch")
        return figure


def _by_layer(axes: Axes, unit: str) -> None:
    """Name the axes of a chart of layers."""
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(xlabel="layer", ylabel=unit)


def _named_above(axes: Axes) -> None:
    """Name the lines above the axes, where no point is hidden."""
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderaxespad=0, fontsize=9)


def embedding_filters(values: Array, title: str = "", *, dark: bool = False) -> Figure:
    """Draw filters in color, each scaled to its own range, as in the ViT paper's Figure 7.

    `values` are those of `vitlab.inspect.embedding_filters`, (count, rows, columns, channels).
    """
    filters = numbers(values, 4, "(count, rows, columns, channels)")
    rows = math.ceil(len(filters) / COLUMNS)
    with themed(dark=dark):
        figure = blank((5.2, 0.74 * rows + 0.5), title)
        for number, each in enumerate(filters, 1):
            axes = figure.add_subplot(rows, COLUMNS, number)
            axes.imshow(scaled(each), "gray", vmin=0, vmax=1, interpolation="nearest")
            axes.set_axis_off()
        return figure


def scaled(kernel: Floats) -> Floats:
    """Return a filter from 0 to 1: (rows, columns, 3) in color, else (rows, columns) in gray."""
    low, high = float(kernel.min()), float(kernel.max())
    shown = (kernel - low) / max(high - low, 1e-12)
    return shown if shown.shape[-1] == 3 else shown.mean(-1)


def position_similarity(values: Array, title: str = "", *, dark: bool = False) -> Figure:
    """Draw how alike each place is to all places, a tile for each, as in the ViT paper's Figure 7.

    `values` are those of `vitlab.inspect.position_similarity`: cosine, (rows, columns) twice.
    """
    similarity = numbers(values, 4, "(rows, columns, rows, columns)")
    tiles, down, right = tiled(similarity, TILES)
    with themed(dark=dark):
        figure = blank((5.2, 4.6), title)
        axes = figure.subplots()
        drawn = axes.imshow(tiles, cmap=COSINES, vmax=1, interpolation="nearest")
        for axis, name, side, own in (
            (axes.xaxis, "column", similarity.shape[1], right),
            (axes.yaxis, "row", similarity.shape[0], down),
        ):
            apart = side + max(1, similarity.shape[1] // 10)
            middles = [number * apart + (side - 1) / 2 for number in range(len(own))]
            axis.set_ticks(middles, [str(number + 1) for number in own])
            axis.set_label_text(f"{name} of the patch")
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        scale = figure.colorbar(drawn, ax=axes, label="cosine of position embeddings", shrink=0.8)
        scale.outline.set(visible=False)
        return figure


def tiled(similarity: Floats, most: int) -> tuple[Floats, list[int], list[int]]:
    """Return tiles side by side with gaps of NaN, and which rows and columns they are of.

    Args:
        similarity: (rows, columns, rows, columns)
        most: tiles per side; of more, some that are evenly spread
    """
    rows, columns = similarity.shape[:2]
    down, right = (
        sorted({round(each) for each in np.linspace(0, side - 1, min(side, most))})
        for side in (rows, columns)
    )
    gap = max(1, columns // 10)
    padded = np.pad(
        similarity[down][:, right], ((0, 0), (0, 0), (0, gap), (0, gap)), constant_values=np.nan
    )
    flat = padded.transpose(0, 2, 1, 3).reshape(len(down) * (rows + gap), -1)
    return flat[:-gap, :-gap], down, right
