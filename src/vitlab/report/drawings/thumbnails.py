"""Pictures as data URIs, each a few kilobytes.

A picture of few pixels is a PNG of just these, which the page enlarges without blurring them;
anything else is a JPEG.
"""

import base64
import io

import matplotlib as mpl
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitlab.data.sources.source import Source
from vitlab.errors import ImageError
from vitlab.report.drawings.theme import HUES, LEVELS, LIGHT
from vitlab.report.facts import Picture

SIDE = 160  # pixels of the longer side, at most
SMALL = 72  # of a sample of the data
_TINY = 32  # a picture up to this side is kept as it is
_MATRIX = 500  # most pixels of a side of a matrix
_QUALITY = 82


def picture(image: Picture, side: int = SIDE) -> str:
    """Return a data URI of the picture, shrunk to at most `side` pixels."""
    shown = _shrunk(image, side)
    return data_uri(shown, "PNG" if max(shown.size) <= min(side, _TINY) else "JPEG")


def of_source(source: Source, index: int, side: int = SIDE) -> str:
    """Return a data URI of an image of a source, whole; empty if it can no longer be read."""
    try:
        pixels, _ = source.image(index).decode_box(
            3, lambda rows, columns: (0, 0, columns, rows), (side, side)
        )
    except ImageError:
        return ""
    return picture(Picture(np.ascontiguousarray(pixels), source.name(index)), side)


def overlay(image: Picture, attention: NDArray[np.float32]) -> str:
    """Return a data URI of the picture under its attention map, bright where the map is high."""
    shown = _shrunk(image, SIDE)
    size = [round(length * SIDE / max(shown.size)) or 1 for length in shown.size]
    gray = shown.convert("L").resize((size[0], size[1]), Image.Resampling.NEAREST)
    finite = np.nan_to_num(attention.astype(np.float32), nan=0.0, posinf=0.0, neginf=0.0)
    low, high = float(finite.min()), float(finite.max())
    # A flat map has nothing to show; stretched, its rounding errors would look like a pattern.
    flat = high - low <= 1e-5 * abs(high)
    scaled = finite * 0 if flat else (finite - low) / (high - low)
    heat = np.asarray(Image.fromarray(scaled).resize(gray.size, Image.Resampling.BICUBIC))
    heat = heat.clip(0, 1)[..., None]
    colors = mpl.colormaps["inferno"](heat[..., 0] * 0.92)[..., :3]
    weight = 0.30 + 0.40 * heat
    below = np.asarray(gray, dtype=np.float32)[..., None] / 255 * (0.45 + 0.55 * heat)
    mixed = (1 - weight) * below + weight * colors
    pixels = (mixed.clip(0, 1) * 255).round().astype(np.uint8)
    return data_uri(Image.fromarray(pixels), "JPEG")


def scale() -> str:
    """Return a data URI of the colors of the attention maps, from low to high."""
    colors = mpl.colormaps["inferno"](np.linspace(0, 0.92, 64))[None, :, :3]
    return data_uri(Image.fromarray((colors * 255).round().astype(np.uint8)), "PNG")


def matrix(levels: NDArray[np.int64]) -> str:
    """Return a data URI of a confusion matrix of many classes, a pixel per cell.

    Where there are more classes than pixels, a pixel is the strongest of its cells.

    Args:
        levels: shades of the cells, from 0 to `LEVELS`, (K, K); row: true class
    """
    step = -(-len(levels) // _MATRIX)
    starts = np.arange(0, len(levels), step)
    diagonal = np.eye(len(levels), dtype=bool)
    parts = [np.where(own, levels, 0) for own in (~diagonal, diagonal)]
    wrong, right = (
        np.maximum.reduceat(np.maximum.reduceat(part, starts, 0), starts, 1) for part in parts
    )
    image = Image.fromarray(np.where(right > 0, right + LEVELS, wrong).astype(np.uint8), "P")
    palette, alpha = [0, 0, 0], [0]
    for hue in (HUES["w"], HUES["r"]):  # of the light page; translucent, so that it fits the dark
        for level in range(1, LEVELS + 1):
            palette += bytes.fromhex({"blue": "2f7dc4", "warm": "d9700d"}.get(hue, LIGHT[hue][1:]))
            alpha.append(round(55 + 200 * level / LEVELS))
    image.putpalette(palette)
    image.info["transparency"] = bytes(alpha)
    return data_uri(image, "PNG")


def _shrunk(image: Picture, side: int) -> Image.Image:
    shown = Image.fromarray(image.pixels)
    if max(shown.size) > side:
        shown.thumbnail((side, side), Image.Resampling.LANCZOS)
    return shown


def data_uri(image: Image.Image, kind: str) -> str:
    """Return an image as a data URI, of kind PNG or JPEG."""
    buffer = io.BytesIO()
    if kind == "PNG":
        image.save(buffer, "PNG", optimize=True, transparency=image.info.get("transparency"))
    else:
        image.save(buffer, "JPEG", quality=_QUALITY, optimize=True)
    text = base64.b64encode(buffer.getvalue()).decode("ascii")
    return f"data:image/{kind.lower()};base64,{text}"
