"""The image size and channels that a model for some images should have."""

import math

import numpy as np

from vitlab.data.sources.protocol import Source
from vitlab.errors import ImageError
from vitlab.images import Size

SAMPLES = 64  # images whose headers are read
SMALL = 256  # pixels per side up to which images of one size are used at their own size
USUAL = 224


def input_shape(source: Source) -> tuple[Size, int]:
    """Return the image size and channels that fit a source.

    Images that all have one small size keep it, others are resized to 224x224; one channel if all
    are gray, else three. The headers of 64 images are read, evenly spaced.
    """
    shapes: set[tuple[int, int, int]] = set()
    places = np.linspace(0, len(source) - 1, num=min(SAMPLES, len(source)), dtype=int)
    for index in np.unique(places):
        try:
            shapes.add(source.image(int(index)).shape())
        except ImageError:  # reported when it is decoded
            continue
    sizes = {(rows, columns) for rows, columns, _ in shapes}
    channels = max((channels for _, _, channels in shapes), default=3)
    if len(sizes) != 1 or max(size := next(iter(sizes))) > SMALL:
        return USUAL, channels
    rows, columns = size
    return rows if rows == columns else size, channels


def divided(size: Size, patch: int, least: int = 1) -> tuple[Size, list[str]]:
    """Return the image size nearest to another that a patch divides, and a remark if it differs.

    Args:
        size: in pixels
        patch: side in pixels
        least: patches that each side must have
    """
    rows, columns = (size, size) if isinstance(size, int) else size
    near = [max(least, math.floor(side / patch + 0.5)) * patch for side in (rows, columns)]
    if near == [rows, columns]:
        return size, []
    return (near[0], near[1]), [
        f"images of {rows}x{columns} pixels are resized to {near[0]}x{near[1]}, which the patch of "
        f"{patch} divides"
    ]
