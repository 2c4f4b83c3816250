"""The box of an image that the model sees: a random one to train, the center to evaluate."""

import math
from collections.abc import Sequence
from typing import TypeVar

from torch import Tensor

from vitlab.data.decode.pixels import Box
from vitlab.images import ImageSpec

Side = TypeVar("Side", float, Tensor)  # of an image, or of a graph
DRAWS = 22
"""Uniform random numbers that `random_box` needs: two for each of ten attempts, two to place it."""


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


def whole_box(rows: int, columns: int, crop: float = 1.0) -> Box:
    """Return the whole image, or the centered share `crop` in (0, 1] of each side."""
    return center_box(rows, columns, rows, columns, crop)


def center_box(rows: int, columns: int, high: float, wide: float, crop: float) -> Box:
    """Return the largest centered box of the aspect ratio `high` by `wide`, scaled by `crop`."""
    left = (columns - min(columns, rows * wide / high) * crop) / 2
    top = (rows - min(rows, columns * high / wide) * crop) / 2
    return left, top, columns - left, rows - top


def random_box(
    rows: int,
    columns: int,
    out_rows: int,
    out_columns: int,
    area: tuple[float, float],
    aspect: tuple[float, float],
    draws: Sequence[float],
) -> Box:
    """Return the random crop of Inception training (Szegedy et al., 2015).

    All randomness is in `draws`. Each of up to ten attempts takes two draws: one for the box's
    share of the image's area, uniform in `area`, one for its aspect ratio (width over height,
    relative to the output's), log-uniform in `aspect`. The first box that fits is placed by
    the last two draws. If none fits, the result is the largest centered box whose aspect ratio is
    in the range.

    Args:
        rows: Height of the image.
        columns: Width of the image.
        out_rows: Height of the output.
        out_columns: Width of the output.
        area: Least and greatest share of the area.
        aspect: Least and greatest aspect ratio; 1 is the output's own.
        draws: `DRAWS` numbers in [0, 1).

    Returns:
        A box within the image.
    """
    own = out_columns / out_rows
    low = math.log(aspect[0])
    high = math.log(aspect[1])
    for attempt in range(0, DRAWS - 2, 2):
        share = area[0] + (area[1] - area[0]) * draws[attempt]
        ratio = own * math.exp(low + (high - low) * draws[attempt + 1])
        width = math.sqrt(rows * columns * share * ratio)
        height = width / ratio
        if width <= columns and height <= rows:
            left = (columns - width) * draws[-2]
            top = (rows - height) * draws[-1]
            return left, top, left + width, top + height
    ratio = min(max(columns / rows, own * aspect[0]), own * aspect[1])
    return center_box(rows, columns, 1.0, ratio, 1.0)
