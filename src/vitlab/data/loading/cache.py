"""Small images, decoded once and cached in memory: a CPU that trains has no time to decode them."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitlab.data.decode.pixels import Pixels
from vitlab.data.decode.stored import PixelImage
from vitlab.data.sources.protocol import Derived, Source
from vitlab.errors import ImageError

SIDE = 64  # pixels; larger images are few and are decoded every time
MOST = 512 * 1024**2  # bytes of pixels


@dataclass(frozen=True)
class CachedImages(Derived):
    """A source whose images are in memory as uint8 (n, H, W, C), with the names they had."""

    images: NDArray[np.uint8]

    @property
    def in_memory(self) -> bool:
        """Always: no process is needed to decode them."""
        return True

    def image(self, index: int) -> PixelImage:
        """Return the pixels of one image."""
        return PixelImage(self.images[index], self.name(index))


def cached(source: Source, channels: int) -> Source:
    """Return the same images in memory if all have one small size, else the source itself.

    What a model sees of lossless images is the same to the bit; a JPEG is decoded as a whole here.

    Args:
        source: any
        channels: that the model has
    """
    if source.in_memory or not len(source):
        return source
    first = _pixels(source, 0, channels)
    if first is None or max(first.shape[:2]) > SIDE or first.nbytes * len(source) > MOST:
        return source
    images = np.empty((len(source), *first.shape), np.uint8)
    for index in range(len(source)):
        image = _pixels(source, index, channels)
        if image is None or image.shape != first.shape:
            return source
        images[index] = image
    return CachedImages(source, images)


def _pixels(source: Source, index: int, channels: int) -> Pixels | None:
    """Return the pixels of one image, or None if it is damaged."""
    try:
        return source.image(index).decode(channels)
    except ImageError:
        return None
