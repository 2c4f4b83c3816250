"""The center of an image that is resized first, as a box of the image as it is."""

import math
from typing import TypeVar

from torch import Tensor

from vitlab.images import ImageSpec

Side = TypeVar("Side", float, Tensor)  # of an image, or of a graph


def resized_box(rows: Side, columns: Side, spec: ImageSpec) -> tuple[Side, Side, Side, Side]:
    """Return the part of an image that is its center once the whole is resized to whole pixels.

    So timm, torchvision and transformers prepare images: the size and the share that is kept decide
    one side, rounded down, and so the other, rounded down too (that of a rectangle half to even, as
    by timm). One resize of this box gives the pixels of both steps, but for 1 in 5,000 that differ
    by a level, because Pillow keeps its edges in single precision.

    Args:
        rows: of the image; in an exported graph a tensor of double precision
        columns: likewise
        spec: size, crop, fit, and how the offset is rounded

    Returns:
        Left, top, right, bottom.
    """
    high, wide = (math.floor(side / spec.crop + 1e-6) for side in spec.size)
    tall = high * rows // columns
    long = wide * columns // rows
    if high != wide:
        tall = _half(2 * rows / (columns / wide))
        long = _half(2 * columns / (rows / high))
    left, right = _middle(columns, long, wide, spec.size[1], spec)
    top, bottom = _middle(rows, tall, high, spec.size[0], spec)
    return left, top, right, bottom


def _middle(side: Side, most: Side, least: int, kept: int, spec: ImageSpec) -> tuple[Side, Side]:
    """Return where the central pixels of a resized side begin and end in the image."""
    whole = least + (most - least) * ((most > least) & (spec.fit == "crop"))
    start = (whole - kept) // 2 if spec.center == "floor" else _half(whole - kept)
    return start * side / whole, (start + kept) * side / whole


def _half(number: Side) -> Side:
    """Return half of a number, rounded half to even, as by Python and torchvision."""
    whole = number // 1
    return (whole + ((whole != number) | (whole % 4 == 3))) // 2
