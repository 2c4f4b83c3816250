"""Canvas of all plots in this room: colors and fonts."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
import numpy as np
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


def in_gray(image: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return the luminance of an image, (rows, columns), from 0 to 255 (ITU-R BT.601)."""
    pixels = image.astype(np.float32)
    if pixels.ndim == 2:
        return pixels
    gray: NDArray[np.float32] = pixels @ np.array([0.299, 0.587, 0.114], np.float32)
    return gray
