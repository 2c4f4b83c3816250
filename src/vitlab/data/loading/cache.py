"""Small images, decoded once and cached in memory: a CPU that trains has no time to decode them."""

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from vitlab.data.decode.crop_box import whole_box
from vitlab.data.decode.stored import PixelImage
from vitlab.data.images import Images
from vitlab.data.stores import Store, read_ahead_in
from vitlab.data.target import Integers
from vitlab.errors import ImageError

SIDE = 64  # pixels; larger images are few and are decoded every time
MOST = 512 * 1024**2  # bytes of pixels
TOGETHER = 512  # images that are read from another machine


@dataclass(frozen=True, eq=False)
class CachedPixels:
    """A store whose images are in memory as uint8 (n, H, W, C), with the names they had.

    Attributes:
        whole: the store that has them encoded
        pixels: of some of its images
        places: where in `pixels` each of its images is, int64 (len(whole),); -1 where it is not
    """

    whole: Store
    pixels: NDArray[np.uint8]
    places: Integers

    @property
    def in_memory(self) -> bool:
        """Always: no process is needed to decode them."""
        return True

    def __len__(self) -> int:
        return len(self.whole)

    def image(self, number: int) -> PixelImage:
        """Return the pixels of one image."""
        return PixelImage(self.pixels[self.places[number]], self.name(number))

    def name(self, number: int) -> str:
        """As the whole store."""
        return self.whole.name(number)


class PixelCache:
    """The pixels of a store's images, each decoded when it is first asked for.

    Args:
        store: any
        channels: that the model has
        numbers: of the images that may be asked for; None for all
    """

    def __init__(self, store: Store, channels: int, numbers: Integers | None = None) -> None:
        self.store = store
        self.channels = channels
        self._count = len(store) if numbers is None else len(numbers)
        self._pixels: NDArray[np.uint8] | None = None
        if numbers is None:
            self._places = np.arange(len(store))
        else:
            self._places = np.full(len(store), -1)
            self._places[numbers] = np.arange(len(numbers))
        self._is_known = np.zeros(self._count, bool)

    def part(self, images: Images) -> Images | None:
        """Return some images in memory; None if they are not all sound, small and of one size.

        Args:
            images: of the store
        """
        todo = images.rows[~self._is_known[self._places[images.rows]]].tolist()
        for place, number in enumerate(todo):
            if place % TOGETHER == 1:  # the first one tells whether they are small
                read_ahead_in(self.store, np.array(todo[place : place + TOGETHER], np.int64))
            if not self._decode(number):
                return None
        if self._pixels is None:
            return None
        return replace(images, store=CachedPixels(self.store, self._pixels, self._places))

    def _decode(self, number: int) -> bool:
        """Keep the pixels of one image; return whether they can be kept."""
        try:
            image = self.store.image(number)
            pixels, _ = image.decode_box(self.channels, whole_box, (math.inf, math.inf))
        except ImageError:
            return False
        small = max(pixels.shape[:2]) <= SIDE and pixels.nbytes * self._count <= MOST
        if self._pixels is None and small:
            self._pixels = np.empty((self._count, *pixels.shape), np.uint8)
        if self._pixels is None or pixels.shape != self._pixels.shape[1:]:
            return False
        place = self._places[number]
        self._pixels[place] = pixels
        self._is_known[place] = True
        return True


def cached(source: Images, channels: int) -> Images:
    """Return the same images in memory if all have one small size, else as they are.

    What a model sees is the same to the bit, but that training may decode a JPEG at a smaller scale
    where it is not cached.

    Args:
        source: any
        channels: that the model has
    """
    if source.in_memory:
        return source
    return PixelCache(source.store, channels, source.rows).part(source) or source


def shows(source: Images, whole: Images) -> bool:
    """Return whether images, cached or not, are those of a table that is not cached."""
    store = source.store.whole if isinstance(source.store, CachedPixels) else source.store
    return store is whole.store and np.array_equal(source.rows, whole.rows)
