"""Small images, decoded once and cached in memory: a CPU that trains has no time to decode them."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitlab.data.decode.crop_box import whole_box
from vitlab.data.decode.stored import PixelImage
from vitlab.data.sources.ahead import read_ahead
from vitlab.data.sources.source import Derived, Source
from vitlab.errors import ImageError

SIDE = 64  # pixels; larger images are few and are decoded every time
MOST = 512 * 1024**2  # bytes of pixels
TOGETHER = 512  # images that are read from another machine


@dataclass(frozen=True)
class CachedImages(Derived):
    """A source whose images are in memory as uint8 (n, H, W, C), with the names they had.

    Attributes:
        images: pixels
        numbers: where in `images` each image of the source is
    """

    images: NDArray[np.uint8]
    numbers: NDArray[np.int64]

    @property
    def in_memory(self) -> bool:
        """Always: no process is needed to decode them."""
        return True

    def image(self, index: int) -> PixelImage:
        """Return the pixels of one image."""
        return PixelImage(self.images[self.numbers[index]], self.name(index))


class PixelCache:
    """The pixels of a source's images, each decoded when it is first asked for.

    Args:
        source: any
        channels: that the model has
    """

    def __init__(self, source: Source, channels: int) -> None:
        self.source = source
        self.channels = channels
        self._images: NDArray[np.uint8] | None = None
        self._known = np.zeros(len(source), bool)

    def part(self, source: Source, numbers: NDArray[np.int64]) -> CachedImages | None:
        """Return some images in memory; None if they are not all sound, small and of one size.

        Args:
            source: these images, which lends its names and labels
            numbers: theirs in the source that is decoded
        """
        todo = numbers[~self._known[numbers]].tolist()
        for place, number in enumerate(todo):
            if place % TOGETHER == 1:  # the first one tells whether they are small
                read_ahead(self.source, todo[place : place + TOGETHER])
            if not self._decode(number):
                return None
        return None if self._images is None else CachedImages(source, self._images, numbers)

    def _decode(self, number: int) -> bool:
        """Keep the pixels of one image; return whether they can be kept."""
        try:
            image = self.source.image(number)
            pixels, _ = image.decode_box(self.channels, whole_box, (math.inf, math.inf))
        except ImageError:
            return False
        small = max(pixels.shape[:2]) <= SIDE and pixels.nbytes * len(self.source) <= MOST
        if self._images is None and small:
            self._images = np.empty((len(self.source), *pixels.shape), np.uint8)
        if self._images is None or pixels.shape != self._images.shape[1:]:
            return False
        self._images[number], self._known[number] = pixels, True
        return True


def cached(source: Source, channels: int) -> Source:
    """Return the same images in memory if all have one small size, else the source itself.

    What a model sees is the same to the bit, but that training may decode a JPEG at a smaller scale
    where it is not cached.

    Args:
        source: any
        channels: that the model has
    """
    if source.in_memory:
        return source
    return PixelCache(source, channels).part(source, np.arange(len(source))) or source


def shows(source: Source, whole: Source) -> bool:
    """Return whether a source, cached or not, has the images of one that is not cached."""
    return (source.whole if isinstance(source, CachedImages) else source) is whole
