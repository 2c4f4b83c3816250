"""The values that every step of decoding shares: pixels and boxes."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Pixels = NDArray[np.uint8]
"""(rows, columns, channels)."""

Box = tuple[float, float, float, float]
"""Left, top, right and bottom edge in pixels; fractions are allowed."""

ChooseBox = Callable[[int, int], Box]
"""The box to cut from an image, given its rows and columns."""


def as_image(pixels: Pixels) -> Image.Image:
    """Return pixels of 1, 3 or 4 channels as an image of Pillow."""
    return Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)
