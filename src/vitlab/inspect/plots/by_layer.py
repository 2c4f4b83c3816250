"""Plots of what changes from layer to layer."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from vitlab.inspect.plots.canvas import COSINES, Array, Floats, blank, numbers, themed

SIZE = (5.2, 3.5)  # inches
HEADS = "(layers, heads)"


def attention_distance(values: Array, title: str = "", *, dark: bool = False) -> Figure:
    """Draw how far each head looks, as in the ViT paper's Figures 7 and 11.

    Args:
        values: of `vitlab.inspect.attention_distance`, (layers, heads), pixels
        title: of the figure, such as the model's name
        dark: for a dark page

    Raises:
        OptionError: an array of another shape.
    """
    return _heads(values, "attention distance (pixels)", title, dark=dark)


def attention_entropy(values: Array, title: str = "", *, dark: bool = False) -> Figure:
    """Draw how widely each head spreads its attention.

    Args:
        values: of `vitlab.inspect.attention_entropy`, (layers, heads), bits
        title: of the figure
        dark: for a dark page

    Raises:
        OptionError: an array of another shape.
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

    Args:
        values: of `vitlab.inspect.token_similarity`, (B, layers + 1)
        title: of the figure
        dark: for a dark page

    Raises:
        OptionError: an array of another shape.
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

    Raises:
        OptionError: an array of another shape.
    """
    with themed(dark=dark) as theme:
        figure, axes = _layers(SIZE, title)
        looks = ((theme["blue"], "o", "-"), (theme["warm"], "^", "--"))
        for (name, values), (color, marker, dash) in zip(lines.items(), looks, strict=False):
            axes.plot(
                numbers(values, 1, "(layers + 1,)"),
                color=color, marker=marker, linestyle=dash, ms=4, label=name,
            )  # fmt: skip
        axes.set(xlabel="layer", ylabel=unit)
        if len(lines) > 1:
            _named_above(axes)
        return figure


def cka(
    values: Array, title: str = "", *, names: Sequence[str] = ("", ""), dark: bool = False
) -> Figure:
    """Draw how alike the layers of two models are, layer 0 at the bottom left.

    Args:
        values: of `vitlab.inspect.cka`, (layers, other layers)
        title: of the figure
        names: of the model, which goes up, and of the other one, which goes right
        dark: for a dark page

    Raises:
        OptionError: an array of another shape.
    """
    table = numbers(values, 2, "(layers, other layers)")
    with themed(dark=dark):
        figure, axes = _layers((5.2, 4.4), title)
        drawn = axes.imshow(table, cmap=COSINES, vmin=0, vmax=1, origin="lower")
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set(
            xlabel=f"layer of {names[1]}" if names[1] else "layer",
            ylabel=f"layer of {names[0]}" if names[0] else "layer",
        )
        axes.spines[:].set_visible(False)
        figure.colorbar(drawn, ax=axes, label="CKA (1: alike but for a rotation)").outline.set(
            visible=False
        )
        return figure


def _heads(values: Array, unit: str, title: str, *, dark: bool) -> Figure:
    """Draw a point for each head at its layer, and the mean of the heads."""
    found = numbers(values, 2, HEADS)
    layers = np.arange(1, len(found) + 1)
    with themed(dark=dark) as theme:
        figure, axes = _layers(SIZE, title)
        axes.scatter(
            layers.repeat(found.shape[1]), found.ravel(), s=20, color=theme["blue"], alpha=0.55,
            linewidths=0, label="a head",
        )  # fmt: skip
        axes.plot(layers, found.mean(1), color=theme["warm"], lw=1.6, label="mean of heads")
        axes.set(xlabel="layer", ylabel=unit, ylim=(0, _room(found)))
        _named_above(axes)
        return figure


def _named_above(axes: Axes) -> None:
    """Name the lines above the axes, where no point is hidden."""
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderaxespad=0, fontsize=9)


def _room(found: Floats) -> float:
    """Return the upper end of an axis from 0."""
    return 1.06 * max(float(np.nanmax(found, initial=0)), 1e-6)


def _layers(inches: tuple[float, float], title: str) -> tuple[Figure, Axes]:
    """Return a figure with one axis of layers."""
    figure = blank(inches, title)
    axes = figure.subplots()
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure, axes
