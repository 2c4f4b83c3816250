"""Canvas of all plots in this room: colors and fonts."""

import functools
import warnings
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

FALLBACKS = (  # fonts of systems that have what Matplotlib's own font lacks, such as Chinese
    "Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans CJK KR", "Noto Sans SC", "PingFang SC",
    "Hiragino Sans", "Apple SD Gothic Neo", "Microsoft YaHei", "Malgun Gothic", "SimHei",
    "WenQuanYi Zen Hei", "WenQuanYi Micro Hei", "Droid Sans Fallback", "Arial Unicode MS",
    "Noto Sans Devanagari", "Noto Sans Thai", "Nirmala UI", "Unifont",
)  # fmt: skip


class Drawing(Figure):
    """A figure that says nothing of characters that no font here has: they are drawn as boxes."""

    def draw(self, renderer: Any) -> None:
        """Draw everything."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph")
            super().draw(renderer)

    def get_tightbbox(self, *given: Any, **named: Any) -> Any:
        """Return the box around everything, as notebooks ask for it."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph")
            return super().get_tightbbox(*given, **named)


@functools.cache
def families() -> tuple[str, ...]:
    """Return the fonts to draw text with: the usual one, and those here that have more."""
    from matplotlib.font_manager import get_font_names

    there = set(get_font_names())
    return "DejaVu Sans", *(name for name in FALLBACKS if name in there)


@contextmanager
def themed(*, dark: bool) -> Iterator[Theme]:
    """Give the colors of a theme; within the block figures are made in them."""
    theme = DARK if dark else LIGHT
    own: dict[Any, Any] = {key: theme[color] for color, keys in COLORS.items() for key in keys}
    with mpl.rc_context(STYLE | own | {"font.family": [*families()]}):
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
    figure = Drawing(figsize=inches, dpi=110, layout="constrained")
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
