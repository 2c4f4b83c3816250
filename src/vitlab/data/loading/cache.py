"""Small images, decoded once and kept: a CPU that trains has no time to decode them every epoch."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitlab.data.decode import decode
from vitlab.data.decode.decode import BadImage
from vitlab.data.labels import Labels
from vitlab.data.sources.sources import Arrays, Source, Subset

SIDE = 64  # pixels; larger images are few and are decoded as they come
MOST = 512 * 1024**2  # bytes of pixels


@dataclass(frozen=True)
class Kept:
    """A source whose images are in memory as uint8 (n, H, W, C), by the names they had."""

    whole: Source
    images: NDArray[np.uint8]

    @property
    def classes(self) -> tuple[str, ...]:
        """As the source has them."""
        return self.whole.classes

    @property
    def labels(self) -> Labels:
        """As the source has them."""
        return self.whole.labels

    def __len__(self) -> int:
        return len(self.images)

    def read(self, index: int) -> NDArray[np.uint8]:
        """Pixels, (H, W, C)."""
        return self.images[index]

    def name(self, index: int) -> str:
        """As the source calls it."""
        return self.whole.name(index)


def kept(source: Source, channels: int) -> Source:
    """The same images in memory where all are of one small size and whole, else the source itself.

    What a model sees of lossless ones is the same to the bit; a JPEG is decoded as a whole here.

    Args:
        source: any
        channels: that the model has
    """
    inner = source.whole if isinstance(source, Subset) else source
    if isinstance(inner, Arrays) or not len(source):
        return source
    first = _read(source, 0, channels)
    if first is None or max(first.shape[:2]) > SIDE or first.nbytes * len(source) > MOST:
        return source
    images = np.empty((len(source), *first.shape), np.uint8)
    for index in range(len(source)):
        image = _read(source, index, channels)
        if image is None or image.shape != first.shape:
            return source
        images[index] = image
    return Kept(source, images)


def _read(source: Source, index: int, channels: int) -> NDArray[np.uint8] | None:
    """The pixels of one image, or None where it is damaged."""
    try:
        item = source.read(index)
        if isinstance(item, bytes):
            return decode.decode(item, channels, source.name(index))
        return item
    except BadImage:
        return None
