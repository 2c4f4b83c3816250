"""Maps of patches as images of one pixel a patch, which the page lays over a photo.

A browser enlarges them, so that a map takes a few hundred bytes and a photo is stored once.
"""

import matplotlib as mpl
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitlab.report.drawings.thumbnails import data_uri
from vitlab.report.facts import Picture

Floats = NDArray[np.float32]

COVER = 0.66  # of the photo, by a map


def translucent(values: Floats, shades: str, low: float, high: float) -> str:
    """Return a data URI of a map in colors, through which a photo is seen.

    Args:
        values: (rows, columns); what is not finite stays clear
        shades: a color map of matplotlib
        low: the value with its first color
        high: the value with its last color
    """
    colors = _colored(values, shades, low, high)
    colors[..., 3] = np.where(np.isfinite(values), round(255 * COVER), 0)
    return data_uri(Image.fromarray(colors), "PNG")


def opaque(values: Floats, shades: str, low: float, high: float) -> str:
    """Return a data URI of a map in colors; what is not finite stays clear."""
    colors = _colored(values, shades, low, high)
    colors[..., 3] = np.where(np.isfinite(values), 255, 0)
    return data_uri(Image.fromarray(colors), "PNG")


def in_color(pixels: Floats) -> str:
    """Return a data URI of colors from 0 to 1, (rows, columns, 3) or gray (rows, columns).

    What is not finite stays clear.
    """
    pixels = pixels if pixels.ndim == 3 else pixels[..., None].repeat(3, 2)
    seen = np.isfinite(pixels).all(-1, keepdims=True)
    whole = np.concatenate([np.where(seen, pixels, 0), seen], -1)
    return data_uri(Image.fromarray((255 * whole.clip(0, 1)).round().astype(np.uint8)), "PNG")


def gradient(shades: str) -> str:
    """Return the colors of a scale as CSS, from low to high."""
    colors = mpl.colormaps[shades](np.linspace(0, 1, 9))
    return "linear-gradient(90deg," + ",".join(mpl.colors.to_hex(each) for each in colors) + ")"


def grayed(image: Picture) -> Picture:
    """Return a picture without its colors."""
    return Picture(np.asarray(Image.fromarray(image.pixels).convert("L")), image.name)


def _colored(values: Floats, shades: str, low: float, high: float) -> NDArray[np.uint8]:
    scaled = (np.nan_to_num(values) - low) / max(high - low, 1e-30)
    colors: NDArray[np.uint8] = mpl.colormaps[shades](scaled.clip(0, 1), bytes=True)
    return colors
