"""What a model for some images should look like at its input."""

from collections import Counter

import numpy as np

from vitlab.data.decode import decode
from vitlab.data.decode.decode import BadImage
from vitlab.data.sources.sources import Source
from vitlab.images import Size

LOOKS = 64  # images whose headers are read
SMALL = 256  # pixels a side up to which images of one size are taken as they are
USUAL = 224


def input_shape(source: Source) -> tuple[Size, int]:
    """Image size and channels that fit a source.

    Images that all have one small size keep it, others are brought to 224x224; one channel where
    all are gray, else three. Sixty-four images are looked at, evenly spread.
    """
    shapes: Counter[tuple[int, int, int]] = Counter()
    places = np.linspace(0, len(source) - 1, num=min(LOOKS, len(source)), dtype=int)
    for index in np.unique(places):
        try:
            item = source.read(int(index))
            if isinstance(item, bytes):
                shapes[decode.shape(item, source.name(int(index)))] += 1
            else:
                shapes[item.shape[0], item.shape[1], item.shape[2]] += 1
        except BadImage:  # told of when it is decoded
            continue
    sizes = {(rows, columns) for rows, columns, _ in shapes}
    channels = max((channels for _, _, channels in shapes), default=3)
    if len(sizes) != 1 or max(rows_columns := next(iter(sizes))) > SMALL:
        return USUAL, channels
    rows, columns = rows_columns
    return rows if rows == columns else rows_columns, channels
