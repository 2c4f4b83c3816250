"""The box of an image that is cut out: the whole of it, its center, or a random one."""

import math
from collections.abc import Sequence

from vitlab.data.decode.pixels import Box

DRAWS = 22
"""Uniform random numbers that `random_box` needs: two for each of ten attempts, two to place it."""


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
