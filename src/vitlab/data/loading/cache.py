"""Small images, decoded once and cached in memory: a CPU that trains has no time to decode them."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitlab.data.decode.crop import whole_box
from vitlab.data.decode.formats import format_of
from vitlab.data.decode.stored import EncodedImage, PixelImage
from vitlab.data.sources.source import Derived, Source
from vitlab.data.sources.tar_shards import read_ahead
from vitlab.errors import ImageError
from vitlab.images import ImageSpec

SIDE = 64  # pixels; larger images are few and are decoded every time
MOST = 512 * 1024**2  # bytes of pixels
TOGETHER = 512  # images that are read from another machine


@dataclass(frozen=True)
class CachedImages(Derived):
    """A source whose images are in memory as uint8 (n, H, W, C), with the names they had.

    Attributes:
        images: pixels
        numbers: where in `images` each image of the source is
        lossless: whether none of them is a JPEG, of which a part may be decoded at a smaller scale
    """

    images: NDArray[np.uint8]
    numbers: NDArray[np.int64]
    lossless: bool

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
        self.source, self.channels = source, channels
        self._images: NDArray[np.uint8] | None = None
        self._known = np.zeros(len(source), bool)
        self._lossless = np.zeros(len(source), bool)

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
        if self._images is None:
            return None
        return CachedImages(source, self._images, numbers, bool(self._lossless[numbers].all()))

    def _decode(self, number: int) -> bool:
        """Keep the pixels of one image; return whether they can be kept."""
        try:
            stored = self.source.image(number)
            pixels, _ = stored.decode_box(self.channels, whole_box, (math.inf, math.inf))
        except ImageError:
            return False
        small = max(pixels.shape[:2]) <= SIDE and pixels.nbytes * len(self.source) <= MOST
        if self._images is None and small:
            self._images = np.empty((len(self.source), *pixels.shape), np.uint8)
        if self._images is None or pixels.shape != self._images.shape[1:]:
            return False
        jpeg = isinstance(stored, EncodedImage) and format_of(stored.data) == "JPEG"
        self._images[number], self._known[number], self._lossless[number] = pixels, True, not jpeg
        return True


def cached(source: Source, channels: int) -> Source:
    """Return the same images in memory if all have one small size, else the source itself.

    What a model sees of lossless images is the same to the bit; a JPEG is decoded as a whole here.

    Args:
        source: any
        channels: that the model has
    """
    if source.in_memory:
        return source
    return PixelCache(source, channels).part(source, np.arange(len(source))) or source


def shows(source: Source, whole: Source, spec: ImageSpec) -> bool:
    """Return whether a model that is tested sees the same bits of a source as of another one.

    Args:
        source: the other one, cached or not, or something else
        whole: not cached
        spec: what the model's images must be
    """
    if isinstance(source, CachedImages):
        # `fitted_image` scales a JPEG down that is four times as large
        sides = zip(source.images.shape[1:3], spec.size, strict=True)
        small = spec.fit != "native" and any(side < 4 * needed for side, needed in sides)
        source = source.whole if source.lossless or small else source
    return source is whole
