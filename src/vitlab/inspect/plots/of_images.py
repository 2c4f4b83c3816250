"""Plots of one image: a value for each patch, over the image itself."""

import math
from dataclasses import dataclass

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray
from PIL import Image

from vitlab.errors import OptionError
from vitlab.inspect.plots.canvas import (
    BOTH,
    COSINES,
    HEAT,
    Array,
    Floats,
    in_gray,
    numbers,
    show,
    themed,
)

Pixels = NDArray[np.uint8]
Place = tuple[float, float, float, float]  # left, right, bottom, top

SIDE, SMALL = 320, 176  # pixels of the longer side of an image, and of one of many, at most
WIDE = 6.4  # inches
EDGE, GAP, BAR, WORDS, ABOVE, NAME = 0.08, 0.1, 0.12, 0.72, 0.34, 0.24  # inches
COVER = 0.65  # of the image, by a map
MAP = "(rows, columns)"
SHARE = "share of the sum"


@dataclass(frozen=True)
class _Scale:
    """What the colors of a map stand for."""

    unit: str
    shades: str = HEAT
    low: float | None = 0.0
    high: float | None = None


def rollout(
    values: Array, image: Pixels | None = None, title: str = "", *, dark: bool = False
) -> Figure:
    """Draw how much of each patch reaches the classifier.

    Args:
        values: of `vitlab.inspect.rollout`, of one image, (rows, columns)
        image: what the model sees, uint8 (H, W) or (H, W, 3); None for the map alone
        title: of the figure
        dark: for a dark page

    Raises:
        OptionError: an array of another shape.
    """
    return _over(_shares(values), image, title, _Scale(SHARE), dark=dark)


def late_attention(
    values: Array, image: Pixels | None = None, title: str = "", *, dark: bool = False
) -> Figure:
    """Draw where the last layers look; arguments and errors as of `rollout`."""
    return rollout(values, image, title, dark=dark)


def relevance(
    values: Array, image: Pixels | None = None, title: str = "", *, dark: bool = False
) -> Figure:
    """Draw how much each patch speaks for a class; arguments and errors as of `rollout`."""
    return _over(_shares(values), image, title, _Scale(SHARE), dark=dark)


def gradcam(
    values: Array, image: Pixels | None = None, title: str = "", *, dark: bool = False
) -> Figure:
    """Draw where the features are that speak for a class; arguments and errors as of `rollout`."""
    return _over(_shares(values), image, title, _Scale(SHARE), dark=dark)


def occlusion(
    values: Array, image: Pixels | None = None, title: str = "", *, dark: bool = False
) -> Figure:
    """Draw how much a class loses without each square; arguments and errors as of `rollout`.

    What the class needs is orange, what speaks against it purple.
    """
    found = numbers(values, 2, MAP)
    most = max(float(np.abs(found).max()), 1e-12)
    scale = _Scale("loss of log-probability (nats)", BOTH, -most, most)
    return _over(found, image, title, scale, dark=dark)


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
    return _over(found, image, title, _Scale("cosine", COSINES, None, 1), marked=patch, dark=dark)


def norm_map(
    values: Array, image: Pixels | None = None, title: str = "", *, dark: bool = False
) -> Figure:
    """Draw how long each patch's token is; arguments and errors as of `rollout`."""
    found = numbers(values, 2, MAP)
    return _over(found, image, title, _Scale("length of the token", low=None), dark=dark)


def class_attention(
    values: Array, image: Pixels | None = None, title: str = "", *, dark: bool = False
) -> Figure:
    """Draw where each head looks, each from 0 to the largest value, which stands above it.

    Args:
        values: of `vitlab.inspect.class_attention`, of one image, (heads, rows, columns)
        image: what the model sees, uint8 (H, W) or (H, W, 3); None for the maps alone
        title: of the figure
        dark: for a dark page

    Raises:
        OptionError: an array of another shape.
    """
    heads = numbers(values, 3, "(heads, rows, columns)")
    tiles = [_colored(each / max(float(each.max()), 1e-12), image) for each in heads]
    names = [f"head {n}: to {_percent(float(each.max()))}" for n, each in enumerate(heads, 1)]
    return _tiles(tiles, names, title, dark=dark)


def feature_colors(
    values: Array, image: Pixels | None = None, title: str = "", *, dark: bool = False
) -> Figure:
    """Draw patch features as colors, beside the image.

    Args:
        values: of `vitlab.inspect.feature_colors`, of one image, (rows, columns, 3)
        image: what the model sees, uint8 (H, W) or (H, W, 3); None for the colors alone
        title: of the figure
        dark: for a dark page

    Raises:
        OptionError: an array of another shape.
    """
    colors = numbers(values, 3, "(rows, columns, 3)")
    if colors.shape[2] != 3:
        raise OptionError(f"values must be (rows, columns, 3), not of shape {colors.shape}")
    if image is None:
        return _tiles([colors], ["features"], title, dark=dark)
    photo = _in_color(_fitted(image))
    large = _stretched(colors, photo, Image.Resampling.NEAREST)
    return _tiles([photo, large], ["image", "features"], title, dark=dark)


def _shares(values: Array) -> Floats:
    """Return a map that sums to one, of values that are not negative."""
    found = numbers(values, 2, MAP)
    return found / max(float(found.sum()), 1e-30)


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.1 else f"{share:.1%}"


def _fitted(image: Pixels, side: int = SIDE) -> Pixels:
    """Return an image whose longer side is at most so many pixels."""
    small = Image.fromarray(image)
    small.thumbnail((side, side), Image.Resampling.LANCZOS)
    return np.asarray(small)


def _in_color(image: Pixels) -> Floats:
    """Return an image as (H, W, 3), from 0 to 1."""
    colors = image if image.ndim == 3 else image[..., None].repeat(3, 2)
    return np.asarray(colors / 255, np.float32)


def _stretched(
    values: Floats, like: NDArray[np.generic], how: Image.Resampling = Image.Resampling.BICUBIC
) -> Floats:
    """Return a map, or each channel of one, in the size of an image."""
    size, channels = (like.shape[1], like.shape[0]), np.atleast_3d(values)
    rows = [
        np.asarray(Image.fromarray(each).resize(size, how)) for each in channels.T.swapaxes(1, 2)
    ]
    stretched: Floats = np.stack(rows, -1)
    return stretched[..., 0] if values.ndim == 2 else stretched


def _colored(values: Floats, image: Pixels | None) -> Floats:
    """Return a map from 0 to 1 in colors over a gray image, (rows, columns, 3)."""
    if image is None:
        colors: Floats = mpl.colormaps[HEAT](values)[..., :3].astype(np.float32)
        return colors
    photo = _fitted(image, SMALL)
    large = mpl.colormaps[HEAT](_stretched(values, photo).clip(0, 1))[..., :3]
    mixed: Floats = COVER * large + (1 - COVER) * in_gray(photo)[..., None] / 255
    return mixed.astype(np.float32)


def _over(
    values: Floats,
    image: Pixels | None,
    title: str,
    scale: _Scale,
    *,
    marked: tuple[int, int] | None = None,
    dark: bool,
) -> Figure:
    """Draw an image, and beside it a map over the same in gray, with its scale."""
    photo = None if image is None else _fitted(image)
    rows, columns = values.shape if photo is None else photo.shape[:2]
    panels = 1 if photo is None else 2
    wide = (WIDE - 2 * EDGE - 2 * GAP - BAR - WORDS) / 2
    high = min(wide * rows / columns, 2 * wide)
    size = (panels * (wide + GAP) + 2 * EDGE + BAR + WORDS, high + ABOVE + EDGE)
    places = [(left, left + wide, EDGE, EDGE + high) for left in _lefts(panels, wide)]
    low = float(values.min()) if scale.low is None else scale.low
    most = max(low, float(values.max())) if scale.high is None else scale.high
    with themed(dark=dark):
        figure, axes = _sheet(size, title)
        if photo is None:
            show(axes, values, scale.shades, low, most, extent=places[-1])
        else:
            show(axes, photo, extent=places[0])
            show(axes, in_gray(photo), extent=places[-1])
            smooth = _stretched(values, photo).clip(values.min(), values.max())
            show(axes, smooth, scale.shades, low, most, cover=COVER, extent=places[-1])
        if marked is not None:
            _mark(axes, marked, values.shape, places[-1])
        right = places[-1][1] + GAP
        _bar(axes, scale, (low, most), (right, right + BAR, EDGE, EDGE + high))
        axes.set(xlim=(0, size[0]), ylim=(0, size[1]), aspect="auto")
        return figure


def _sheet(size: tuple[float, float], title: str) -> tuple[Figure, Axes]:
    """Return a figure with one axes, in inches: several, and their layout, take most of the time.

    Showing an image changes the limits of the axes: set them afterwards.
    """
    figure = Figure(figsize=size, dpi=110)
    figure.suptitle(title, fontsize=10, x=EDGE / size[0], ha="left", y=1 - 0.06 / size[1])
    return figure, figure.add_axes((0, 0, 1, 1), frameon=False, xticks=[], yticks=[])


def _lefts(count: int, wide: float) -> list[float]:
    """Return where panels begin, in inches."""
    return [EDGE + number * (wide + GAP) for number in range(count)]


def _bar(axes: Axes, scale: _Scale, ends: tuple[float, float], place: Place) -> None:
    """Draw the colors from low to high, with the values at both ends and in the middle."""
    _, right, bottom, top = place
    show(axes, np.linspace(1, 0, 64)[:, None], scale.shades, 0, 1, extent=place)
    for share in (0, 0.5, 1):
        value = ends[0] + share * (ends[1] - ends[0])
        y = bottom + share * (top - bottom)
        where = ("bottom", "center", "top")[round(2 * share)]
        axes.text(right + 0.05, y, f"{value:.3g}", fontsize=8, va=where)
    middle = (bottom + top) / 2
    axes.text(right + 0.6, middle, scale.unit, fontsize=8.5, rotation=90, ha="center", va="center")


def _mark(axes: Axes, patch: tuple[int, int], grid: tuple[int, ...], place: Place) -> None:
    """Draw a frame around a patch."""
    left, right, bottom, top = place
    wide, high = (right - left) / grid[1], (top - bottom) / grid[0]
    corner = (left + patch[1] * wide, top - (patch[0] + 1) * high)
    for color, line in (("white", 3.0), ("black", 1.2)):  # seen on any ground
        axes.add_patch(Rectangle(corner, wide, high, fill=False, edgecolor=color, linewidth=line))


def _tiles(tiles: list[Floats], names: list[str], title: str, *, dark: bool) -> Figure:
    """Draw maps side by side, each with its name above."""
    columns = min(4, len(tiles)) if len(tiles) != 6 else 3
    rows = math.ceil(len(tiles) / columns)
    wide = (WIDE - 2 * EDGE - (columns - 1) * GAP) / max(columns, 2)
    high = min(wide * tiles[0].shape[0] / tiles[0].shape[1], 2 * wide)
    down = high + NAME  # inches from one to the next
    size = (columns * (wide + GAP) - GAP + 2 * EDGE, rows * down + ABOVE + EDGE)
    lefts = _lefts(columns, wide)
    with themed(dark=dark):
        figure, axes = _sheet(size, title)
        for number, (each, name) in enumerate(zip(tiles, names, strict=True)):
            left, bottom = lefts[number % columns], size[1] - ABOVE - (number // columns + 1) * down
            show(axes, each, extent=(left, left + wide, bottom, bottom + high))
            axes.text(left + wide / 2, bottom + high + 0.06, name, fontsize=8.5, ha="center")
        axes.set(xlim=(0, size[0]), ylim=(0, size[1]), aspect="auto")
        return figure
