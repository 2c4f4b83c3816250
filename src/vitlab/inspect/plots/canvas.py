"""Canvas of all plots in this room: colors, fonts, and how images are shown."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from vitlab.errors import OptionError
from vitlab.pages.palette import DARK, LIGHT, Theme

Array = Tensor | NDArray[Any]
Floats = NDArray[np.float32]

HEAT, COSINES = "inferno", "cividis"  # each also for the color-blind
STYLE: dict[Any, Any] = {
    "font.size": 11, "axes.titlesize": 10, "axes.spines.top": False, "axes.spines.right": False,
    "text.parse_math": False, "legend.frameon": False, "svg.hashsalt": "vitlab",
}  # fmt: skip
COLORS = {
    "ink": ("text.color", "axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor",
            "legend.labelcolor"),
    "muted": ("axes.edgecolor", "xtick.color", "ytick.color"),
    "line": ("grid.color",),
    "card": ("axes.facecolor", "figure.facecolor", "savefig.facecolor", "legend.facecolor"),
}  # fmt: skip


@contextmanager
def themed(*, dark: bool) -> Iterator[Theme]:
    """Give the colors of a theme; within the block figures are made in them."""
    theme = DARK if dark else LIGHT
    own: dict[Any, Any] = {key: theme[color] for color, keys in COLORS.items() for key in keys}
    with mpl.rc_context(STYLE | own):
        yield theme


def numbers(values: Array, axes: int, shape: str) -> Floats:
    """Return a tensor or an array as float32, on the CPU.

    Args:
        values: of a function of `vitlab.inspect`
        axes: how many it must have
        shape: what they are, for the message

    Raises:
        OptionError: another number of axes, or nothing in them.
    """
    if isinstance(values, Tensor):
        values = values.detach().float().cpu().numpy()
    found: Floats = np.asarray(values, np.float32)
    if found.ndim != axes or not found.size:
        raise OptionError(f"values must be {shape}, not of shape {found.shape}")
    return found


def blank(inches: tuple[float, float], title: str) -> Figure:
    """Return a figure without axes, whose layout follows what is drawn."""
    figure = Figure(figsize=inches, dpi=110, layout="constrained")
    if title:
        figure.suptitle(title, fontsize=11, x=0.01, ha="left")
    return figure


def show(
    axes: Axes,
    pixels: NDArray[Any],
    shades: str = "gray",
    low: float | None = 0,
    high: float | None = 255,
    *,
    cover: float = 1,
    extent: tuple[float, float, float, float] | None = None,
    smooth: bool = False,
) -> None:
    """Show an image or a map without axes, each value as a square unless it is to be smooth.

    Args:
        axes: where
        pixels: (rows, columns), or (rows, columns, 3) from 0 to 1 or as uint8
        shades: colors of what has none
        low: the value with the first of them; None for the least
        high: the value with the last of them; None for the largest
        cover: how much of what is below is hidden, from 0 to 1
        extent: left, right, bottom and top, in the units of the axes
        smooth: interpolate between the values
    """
    how = "bicubic" if smooth else "nearest"
    axes.imshow(
        pixels, cmap=shades, interpolation=how, vmin=low, vmax=high, alpha=cover, extent=extent
    )
    axes.set_axis_off()


def in_gray(image: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return the luminance of an image, (rows, columns), from 0 to 255 (ITU-R BT.601)."""
    pixels = image.astype(np.float32)
    if pixels.ndim == 2:
        return pixels
    gray: NDArray[np.float32] = pixels @ np.array([0.299, 0.587, 0.114], np.float32)
    return gray
