"""Maps over images: a value for each patch, in color over the image in gray."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray
from PIL import Image

from vitlab.errors import OptionError
from vitlab.inspect.plots.canvas import COSINES, HEAT, Array, Drawing, in_gray, numbers, themed

Pixels = NDArray[np.uint8]

SIDE, SMALL = 320, 176  # pixels of the longer side of an image, and of one of many, at most
WIDE, WORDS, EDGE = 6.4, 1.0, 0.1  # inches: the whole, a scale, the lower edge
ABOVE, NAME = 0.3, 0.2  # inches: the title, a panel's name
COVER = 0.65  # of the image, by a map
MAP = "(rows, columns)"


@dataclass(frozen=True)
class _Layer:
    """Pixels that lie over those before them, and what their colors stand for."""

    pixels: NDArray[np.generic]
    shades: str = "gray"
    low: float = 0
    high: float = 255
    cover: float = 1
    unit: str = ""


def rollout(
    values: Array, image: Pixels | None = None, title: str = "", *, dark: bool = False
) -> Figure:
    """Draw how much of each patch reaches the classifier, as shares of the map's sum.

    Args:
        values: of `vitlab.inspect.rollout`, of one image, (rows, columns)
        image: what the model sees, uint8 (H, W) or (H, W, 3); None for the map alone
        title: of the figure
        dark: for a dark page

    Raises:
        OptionError: an array of another shape.
    """
    found = numbers(values, 2, MAP)
    shares = found / max(float(found.sum()), 1e-30)
    layer = _Layer(shares, HEAT, 0, float(shares.max()), unit="share of the sum")
    return _over(layer, image, title, dark=dark)


# Where the last layers look, and what speaks for a class: shares of the sum too.
late_attention = relevance = gradcam = rollout


def similar_patches(
    values: Array,
    image: Pixels | None = None,
    title: str = "",
    *,
    patch: tuple[int, int] | None = None,
    dark: bool = False,
) -> Figure:
    """Draw how alike each patch is to one; arguments and errors as of `rollout`.

    Args:
        values: of `vitlab.inspect.similar_patches`, of one image, (rows, columns)
        image: what the model sees
        title: of the figure
        patch: row and column of the patch they are compared with, from 0; None for none
        dark: for a dark page
    """
    found = numbers(values, 2, MAP)
    low = float(found.min())
    layer = _Layer(found, COSINES, low, max(low, 1), unit="cosine")
    return _over(layer, image, title, marked=patch, dark=dark)


def norm_map(
    values: Array, image: Pixels | None = None, title: str = "", *, dark: bool = False
) -> Figure:
    """Draw how long each patch's token is; arguments and errors as of `rollout`."""
    found = numbers(values, 2, MAP)
    layer = _Layer(found, HEAT, float(found.min()), float(found.max()), unit="length of the token")
    return _over(layer, image, title, dark=dark)


def class_attention(
    values: Array, image: Pixels | None = None, title: str = "", *, dark: bool = False
) -> Figure:
    """Draw where each head looks, each from 0 to the largest value, which stands above it.

    Args:
        values: of `vitlab.inspect.class_attention`, of one image, (heads, rows, columns)
        image: what the model sees, uint8 (H, W) or (H, W, 3); None for the maps alone
        title: of the figure
        dark: for a dark page
    """
    heads = numbers(values, 3, "(heads, rows, columns)")
    photo = None if image is None else _fitted(image, SMALL)
    most = [max(float(each.max()), 1e-12) for each in heads]
    panels = [
        _over_gray(_Layer(each, HEAT, 0, high), photo)
        for each, high in zip(heads, most, strict=True)
    ]
    names = [
        f"head {n}: to {high:{'.0%' if high >= 0.1 else '.1%'}}" for n, high in enumerate(most, 1)
    ]
    return _sheet(panels, names, title, dark=dark)


def feature_colors(
    values: Array, image: Pixels | None = None, title: str = "", *, dark: bool = False
) -> Figure:
    """Draw patch features as colors, beside the image.

    Args:
        values: of `vitlab.inspect.feature_colors`, of one image, (rows, columns, 3)
        image: what the model sees, uint8 (H, W) or (H, W, 3); None for the colors alone
        title: of the figure
        dark: for a dark page
    """
    colors = numbers(values, 3, "(rows, columns, 3)")
    if colors.shape[2] != 3:
        raise OptionError(f"values must be (rows, columns, 3), not of shape {colors.shape}")
    panels, names = [[_Layer(colors)]], ["features"]
    if image is not None:
        panels, names = [[_Layer(_fitted(image))], *panels], ["image", *names]
    return _sheet(panels, names, title, dark=dark)


def _fitted(image: Pixels, side: int = SIDE) -> Pixels:
    """Return an image whose longer side is at most so many pixels."""
    small = Image.fromarray(image)
    small.thumbnail((side, side), Image.Resampling.LANCZOS)
    return np.asarray(small)


def _over_gray(layer: _Layer, photo: Pixels | None) -> list[_Layer]:
    """Return a map over an image in gray, or by itself."""
    return [layer] if photo is None else [_Layer(in_gray(photo)), replace(layer, cover=COVER)]


def _over(
    layer: _Layer,
    image: Pixels | None,
    title: str,
    *,
    marked: tuple[int, int] | None = None,
    dark: bool,
) -> Figure:
    """Draw an image, and beside it a map over the same in gray, with its scale."""
    photo = None if image is None else _fitted(image)
    panels = [_over_gray(layer, photo)]
    if photo is not None:
        panels.insert(0, [_Layer(photo)])
    return _sheet(panels, [], title, marked=marked, dark=dark)


def _sheet(
    panels: Sequence[Sequence[_Layer]],
    names: Sequence[str],
    title: str,
    *,
    marked: tuple[int, int] | None = None,
    dark: bool,
) -> Figure:
    """Draw panels side by side, each with its name above, the last with its scale if it has a unit.

    Their places are computed at once: matplotlib's own layout would take most of the time.
    """
    columns = 3 if len(panels) == 6 else min(4, len(panels))
    rows, last = math.ceil(len(panels) / columns), panels[-1][-1]
    high, wide = panels[0][0].pixels.shape[:2]
    right = WORDS if last.unit else 0
    side = (WIDE - right) / max(columns, 2)  # inches of a panel
    above = ABOVE + (NAME if names else 0)
    size = columns * side + right, above + rows * (min(side * high / wide, 2 * side) + EDGE)
    with themed(dark=dark):
        figure = Drawing(size, dpi=110)
        figure.suptitle(title, fontsize=10, x=0.01, ha="left", y=1 - 0.06 / size[1])
        ends = {"top": 1 - above / size[1], "right": 1 - right / size[0]}
        figure.subplots_adjust(left=0.01, bottom=EDGE / size[1], **ends, wspace=0.03, hspace=0.15)
        grid = figure.subplots(rows, columns, squeeze=False).ravel()
        for axes in grid:
            axes.set_axis_off()
        for axes, panel in zip(grid, panels, strict=False):
            for each in panel:
                axes.imshow(
                    each.pixels, each.shades, vmin=each.low, vmax=each.high, alpha=each.cover,
                    interpolation="bicubic" if each.cover < 1 else "nearest",
                    extent=(0, wide, high, 0),  # of the image, which its maps share
                )  # fmt: skip
        for axes, name in zip(grid, names, strict=False):
            axes.set_title(name, fontsize=8.5, pad=3)
        axes = grid[len(panels) - 1]
        if marked is not None:
            down, across = high / last.pixels.shape[0], wide / last.pixels.shape[1]
            corner = marked[1] * across, marked[0] * down
            for color, line in (("white", 3.0), ("black", 1.2)):  # seen on any ground
                frame = Rectangle(corner, across, down, fill=False, edgecolor=color, linewidth=line)
                axes.add_patch(frame)
        if last.unit:
            beside = axes.inset_axes((1.03, 0, 0.04, 1))
            scale = ScalarMappable(Normalize(last.low, last.high), last.shades)
            figure.colorbar(scale, cax=beside, label=last.unit).outline.set(visible=False)
            beside.tick_params(labelsize=8)
        return figure
