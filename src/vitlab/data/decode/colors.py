"""Decoded images of any mode to 8-bit gray, RGB or RGBA."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from PIL import Image
from PIL.TiffImagePlugin import TiffImageFile

from vitlab.data.decode.pixels import Pixels
from vitlab.errors import ImageError

MODES = {1: "L", 3: "RGB", 4: "RGBA"}
GRAY = ("1", "L", "LA", "La", "I", "F", "I;16", "I;16B", "I;16L", "I;16N")
Tags = Mapping[int, Any]  # of a TIFF
_BAND = 2**20  # pixels that Pillow exports at a time


def recolored(image: Image.Image, channels: int) -> Pixels:
    """Return the pixels of a decoded image of any mode in gray, RGB or RGBA.

    It is done in bands, because Pillow makes up to three copies of what it converts and exports.

    Args:
        image: decoded
        channels: 1, 3 or 4

    Returns:
        A new array of shape (rows, columns, channels).

    Raises:
        ImageError: numbers outside the range that can be read.
    """
    tags: Tags = image.tag_v2 if isinstance(image, TiffImageFile) else {}
    if image.mode == "RGBA" and image.format == "BMP" and not image.getchannel("A").getbbox():
        image = image.convert("RGB")  # an alpha that is 0 throughout was never written
    pixels = np.empty((image.height, image.width, channels), np.uint8)
    band = max(1, _BAND // image.width)
    for top in range(0, image.height, band):
        part = image
        if band < image.height:
            part = image.crop((0, top, image.width, min(top + band, image.height)))
        own = np.asarray(_recolor(part, channels, tags))
        pixels[top : top + band] = own.reshape(-1, image.width, channels)
    return pixels


def _recolor(image: Image.Image, channels: int, tags: Tags) -> Image.Image:
    """Bring a part of an image to L, RGB or RGBA."""
    wanted = MODES[channels]
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        image = _to_8_bits(image, tags)
    elif image.mode == "La":
        image = image.convert("LA")  # the only conversion that Pillow has from it
    if image.has_transparency_data:
        image = image if image.mode == "RGBA" else image.convert("RGBA")
        if channels < 4:
            opaque = Image.new("RGB", image.size, "white")
            opaque.paste(image, mask=image)
            image = opaque
    elif image.mode not in MODES.values():
        image = image.convert("RGB")  # Pillow converts some modes to nothing else
    return image if image.mode == wanted else image.convert(wanted)


def _to_8_bits(image: Image.Image, tags: Tags) -> Image.Image:
    """Bring integers of 12, 16 or 32 bits, or floats, to L, or LA if one gray is transparent."""
    values = np.asarray(image)
    low, high = values.min(), values.max()
    if image.mode == "F":
        if not (low >= -1 and high <= 2):  # nor if it is NaN
            raise ImageError(
                f"floats from {low} to {high}; only 0 to 1 is supported: convert to 8 bits first"
            )
        gray = np.rint(255 * values.clip(0, 1)).astype(np.uint8)
    else:
        if low < 0 or high > 65535:
            raise ImageError(
                f"integers from {low} to {high}; only 0 to 65535 is supported: convert them first"
            )
        gray = (values >> (4 if tags.get(258) == (12,) else 8)).astype(np.uint8)
    if tags.get(262) == 0:  # white is zero: Pillow inverts only up to 8 bits
        gray = 255 - gray
    result = Image.fromarray(gray)
    key = image.info.get("transparency")
    if isinstance(key, int):
        alpha = Image.fromarray(np.where(values == key, 0, 255).astype(np.uint8))
        result = Image.merge("LA", (result, alpha))
    return result


def convert(pixels: Pixels, channels: int) -> Pixels:
    """Bring 8-bit gray or RGB pixels, (rows, columns, 1 or 3), to other channels."""
    have = pixels.shape[2]
    if have == channels:
        return pixels
    image = Image.fromarray(np.ascontiguousarray(pixels[:, :, 0] if have == 1 else pixels))
    return recolored(image, channels)
