"""Pictures and maps over pictures as data URIs, each a few kilobytes.

A picture of few pixels is a PNG of just these, which the page enlarges without blurring them;
anything else is a JPEG.
"""

import base64
import io

import matplotlib as mpl
import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray
from PIL import Image

from vitlab.data.images import Images
from vitlab.errors import ImageError

Floats = NDArray[np.float32]
Pixels = NDArray[np.uint8]  # (H, W) or (H, W, 3)

SIDE = 160  # pixels of the longer side, at most
COVER = 0.66  # of the photo, by a map
_TINY = 32  # a picture up to this side is kept as it is
QUALITY = 82  # of a JPEG


def in_colors(pixels: Pixels) -> Pixels:
    """Return what a model sees, (rows, columns, channels), in gray or RGB."""
    shown = pixels[..., 0] if pixels.shape[-1] in (1, 2) else pixels[..., :3]
    return np.ascontiguousarray(shown)


def picture(pixels: Pixels | None, side: int = SIDE, *, gray: bool = False) -> str:
    """Return a data URI of a picture, shrunk to at most `side` pixels; empty without one."""
    if pixels is None:
        return ""
    shown = Image.fromarray(pixels)
    shown = shown.convert("L") if gray else shown
    if max(shown.size) > side:
        shown.thumbnail((side, side), Image.Resampling.LANCZOS)
    return data_uri(shown, "PNG" if max(shown.size) <= min(side, _TINY) else "JPEG")


def of_source(source: Images, index: int, side: int = SIDE) -> str:
    """Return a data URI of an image of a source, whole; empty if it can no longer be read."""
    try:
        pixels, _ = source.image(index).decode_box(
            3, lambda rows, columns: (0, 0, columns, rows), (side, side)
        )
    except ImageError:
        return ""
    return picture(np.ascontiguousarray(pixels), side)


def colored(values: Floats, shades: str, low: float, high: float) -> str:
    """Return a data URI of a map in colors, through which a photo is seen.

    Args:
        values: (rows, columns); what is not finite stays clear
        shades: a color map of matplotlib
        low: the value with its first color
        high: the value with its last color
    """
    scaled = (np.nan_to_num(values) - low) / max(high - low, 1e-30)
    colors: NDArray[np.uint8] = mpl.colormaps[shades](scaled.clip(0, 1), bytes=True)
    colors[..., 3] = np.where(np.isfinite(values), round(255 * COVER), 0)
    return data_uri(Image.fromarray(colors), "PNG")


def in_color(pixels: Floats) -> str:
    """Return a data URI of colors from 0 to 1, (rows, columns, 3)."""
    shown = (255 * np.nan_to_num(pixels).clip(0, 1)).round().astype(np.uint8)
    return data_uri(Image.fromarray(shown), "PNG")


def gradient(shades: str) -> Markup:
    """Return the colors of a scale as CSS, from low to high."""
    colors = mpl.colormaps[shades](np.linspace(0, 1, 9))
    names = ",".join(mpl.colors.to_hex(each) for each in colors)
    return Markup(f"linear-gradient(90deg,{names})")


def data_uri(image: Image.Image, kind: str) -> str:
    """Return an image as a data URI, of kind PNG or JPEG."""
    buffer = io.BytesIO()
    image.save(buffer, kind, optimize=True, quality=QUALITY)
    text = base64.b64encode(buffer.getvalue()).decode("ascii")
    return f"data:image/{kind.lower()};base64,{text}"
