"""What is kept of an image to recognize it again: a thumbnail of 1.2 kB and a checksum.

The thumbnail is the whole image squeezed into a square, so that copies of another size or shape
have the same one. A set that needs more than `IN_MEMORY` bytes lies in a temporary file instead.
"""

import hashlib
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch.utils.data import Dataset

from vitlab.data.decode.crop import crop_resize
from vitlab.data.loading.loader import choose_workers, in_order
from vitlab.data.sources.source import Source
from vitlab.data.sources.tar_shards import read_ahead
from vitlab.errors import ImageError

SIDE = 32  # of the brightness thumbnail
COLOR_SIDE = 8  # of the two color thumbnails
DIGEST = 16  # bytes
IN_MEMORY = 512 * 1024**2
_CHUNK = 64  # images that a worker processes at a time
_LARGEST = 255


@dataclass(frozen=True, eq=False)
class Signatures:
    """The thumbnails and checksums of n images.

    Attributes:
        luma: brightness, uint8 (n, 32, 32)
        chroma: Cb and Cr, uint8 (n, 2, 8, 8)
        sides: the shorter side of each image in pixels, at most 255, uint8 (n,); 0 if damaged
        digests: of the stored bytes, uint8 (n, 16)
        damaged: messages about the images that cannot be decoded, by index
    """

    luma: NDArray[np.uint8]
    chroma: NDArray[np.uint8]
    sides: NDArray[np.uint8]
    digests: NDArray[np.uint8]
    damaged: dict[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.luma)

    @cached_property
    def keys(self) -> NDArray[np.void]:
        """The checksums as values that can be compared and sorted, (n,)."""
        return np.ascontiguousarray(self.digests).view(f"V{DIGEST}")[:, 0]

    @staticmethod
    def blank(images: int) -> "Signatures":
        """Return room for the signatures of so many images, in memory or in a temporary file."""
        size = (SIDE**2 + 2 * COLOR_SIDE**2 + 1 + DIGEST) * images

        def room(shape: tuple[int, ...]) -> NDArray[np.uint8]:
            if size <= IN_MEMORY:
                return np.zeros((images, *shape), np.uint8)
            with tempfile.TemporaryFile(prefix="vitlab-") as file:  # freed with the array
                return np.memmap(file, np.uint8, "w+", shape=(images, *shape))

        colors = (2, COLOR_SIDE, COLOR_SIDE)
        return Signatures(room((SIDE, SIDE)), room(colors), room(()), room((DIGEST,)))


def joined_signatures(parts: Sequence[Signatures]) -> Signatures:
    """Return the signatures of several sources, one after the other."""
    starts = np.cumsum([0, *map(len, parts)]).tolist()
    damaged = {
        start + index: text
        for start, part in zip(starts, parts, strict=False)
        for index, text in part.damaged.items()
    }
    luma, chroma, sides, digests = (
        np.concatenate([getattr(part, name) for part in parts])
        for name in ("luma", "chroma", "sides", "digests")
    )
    return Signatures(luma, chroma, sides, digests, damaged)


def signatures(
    source: Source,
    *,
    workers: int | None = None,
    progress: Callable[[int], None] = lambda images: None,
) -> Signatures:
    """Decode every image of a source once, at a reduced scale where possible.

    Args:
        source: the images
        workers: processes that decode; None to choose
        progress: called now and then with the number of images done

    Raises:
        WorkerDiedError: a process that decodes images died.
    """
    found = Signatures.blank(len(source))
    chunks, done = _Chunks(source), 0
    processes = choose_workers(source, workers)
    for each in in_order(chunks, range(len(chunks)), processes):
        part = slice(done, done + len(each))
        found.luma[part], found.chroma[part] = each.luma, each.chroma
        found.sides[part], found.digests[part] = each.sides, each.digests
        found.damaged.update(each.damaged)
        done += len(each)
        progress(done)
    return found


def thumbnail(
    source: Source, index: int
) -> tuple[NDArray[np.uint8], NDArray[np.uint8], int, bytes]:
    """Return one image's brightness (32, 32), colors (2, 8, 8), shorter side and checksum.

    Raises:
        ImageError: it cannot be decoded.
    """
    image = source.image(index)
    pixels, box = image.decode_box(3, lambda rows, columns: (0, 0, columns, rows), (64, 64))
    small = Image.fromarray(crop_resize(pixels, box, SIDE, SIDE, "bicubic")).convert("YCbCr")
    planes = np.asarray(small).transpose(2, 0, 1)
    colors = planes[1:].reshape(2, COLOR_SIDE, SIDE // COLOR_SIDE, COLOR_SIDE, -1).mean((2, 4))
    side = min(*pixels.shape[:2], _LARGEST)
    return planes[0], np.rint(colors).astype(np.uint8), side, digest(image.content())


def digest(content: bytes) -> bytes:
    """Return the checksum by which equal files are recognized."""
    return hashlib.blake2b(content, digest_size=DIGEST).digest()


@dataclass(frozen=True)
class _Chunks(Dataset[Signatures]):
    source: Source

    def __len__(self) -> int:
        return -(-len(self.source) // _CHUNK)

    def __getitem__(self, k: int) -> Signatures:
        indices = range(k * _CHUNK, min((k + 1) * _CHUNK, len(self.source)))
        read_ahead(self.source, indices)
        part = Signatures.blank(len(indices))
        for row, index in enumerate(indices):
            try:
                luma, chroma, side, key = thumbnail(self.source, index)
            except ImageError as error:
                part.damaged[index] = str(error)
                key = digest(f"damaged {index}".encode())
            else:
                part.luma[row], part.chroma[row], part.sides[row] = luma, chroma, side
            part.digests[row] = np.frombuffer(key, np.uint8)
        return part
