"""Small images, decoded once and cached in memory: a CPU that trains has no time to decode them."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitlab.data.decode.formats import format_of
from vitlab.data.decode.pixels import Pixels
from vitlab.data.decode.stored import EncodedImage, PixelImage, StoredImage
from vitlab.data.sources.protocol import Derived, Source
from vitlab.errors import ImageError

SIDE = 64  # pixels; larger images are few and are decoded every time
MOST = 512 * 1024**2  # bytes of pixels


@dataclass(frozen=True)
class CachedImages(Derived):
    """A source whose images are in memory as uint8 (n, H, W, C), with the names they had.

    Attributes:
        images: their pixels
        exact: whether a model sees the same bits as of the files: none of them is a JPEG
    """

    images: NDArray[np.uint8]
    exact: bool

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
    first, exact = _decoded(source, 0, channels)
    if first is None or max(first.shape[:2]) > SIDE or first.nbytes * len(source) > MOST:
        return source
    images = np.empty((len(source), *first.shape), np.uint8)
    for index in range(len(source)):
        pixels, lossless = _decoded(source, index, channels)
        if pixels is None or pixels.shape != first.shape:
            return source
        images[index], exact = pixels, exact and lossless
    return CachedImages(source, images, exact)


def shows(source: Source, whole: Source) -> bool:
    """Return whether a model sees the same bits of a source as of another one, cached or not."""
    if isinstance(source, CachedImages) and source.exact:
        source = source.whole
    return source is whole


def _decoded(source: Source, index: int, channels: int) -> tuple[Pixels | None, bool]:
    """Return the pixels of one image, None if it is damaged, and whether it is not a JPEG."""
    try:
        image = source.image(index)
        return image.decode(channels), not _is_jpeg(image)
    except ImageError:
        return None, False


def _is_jpeg(image: StoredImage) -> bool:
    return isinstance(image, EncodedImage) and format_of(image.data) == "JPEG"
