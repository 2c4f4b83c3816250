"""Signatures of images, to recognize them again: a thumbnail of 1.2 kB and a checksum.

The thumbnail is the whole image squeezed into a square, so that copies of another size or shape
have the same one. A set that needs more than `IN_MEMORY` bytes lies in a temporary file instead.
"""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitlab.data.decode.crop import crop_resize
from vitlab.data.decode.crop_box import whole_box
from vitlab.data.decode.stored import Recording
from vitlab.data.hashes import DIGEST, digest, number_of
from vitlab.data.images import Images
from vitlab.data.loading.loader import in_chunks
from vitlab.errors import ImageError

SIDE = 32  # of the brightness thumbnail
COLOR_SIDE = 8  # of the two color thumbnails
SIGNATURE = np.dtype(
    [
        ("luma", np.uint8, (SIDE, SIDE)),
        ("chroma", np.uint8, (2, COLOR_SIDE, COLOR_SIDE)),
        ("sides", np.uint8),
        ("digests", np.void, DIGEST),
    ]
)
IN_MEMORY = 512 * 1024**2
_CHUNK = 64  # images that a worker processes at a time
_LARGEST = 255


@dataclass(frozen=True, eq=False)
class Signatures:
    """The thumbnails and checksums of n images.

    Attributes:
        rows: one `SIGNATURE` for each image, (n,): brightness, Cb and Cr, the shorter side in
            pixels (at most 255; 0 if damaged), the checksum of the stored bytes
        damaged: messages about the images that cannot be decoded
    """

    rows: NDArray[np.void]
    damaged: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.rows)

    def among(self, other: "Signatures") -> list[int]:
        """Return the images, none of them damaged, whose bytes are also among others."""
        same = np.isin(self.rows["digests"], other.rows["digests"])
        return np.flatnonzero(same & (self.rows["sides"] > 0)).tolist()

    @staticmethod
    def blank(images: int) -> "Signatures":
        """Return room for the signatures of so many images, in memory or in a temporary file."""
        if SIGNATURE.itemsize * images <= IN_MEMORY:
            return Signatures(np.zeros(images, SIGNATURE))
        with tempfile.TemporaryFile(prefix="vitlab-") as file:  # freed with the array
            return Signatures(np.memmap(file, SIGNATURE, "w+", shape=(images,)))


def signatures(
    source: Images,
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
    done = 0
    for each in in_chunks(source, _signed, _CHUNK, workers):
        found.rows[done : done + len(each)] = each.rows
        found.damaged.extend(each.damaged)
        done += len(each)
        progress(done)
    return found


def _signed(source: Images, indices: range) -> Signatures:
    """Decode some images of a source."""
    part = Signatures.blank(len(indices))
    for row, index in enumerate(indices):
        try:
            part.rows[row] = thumbnail(source, index)
        except ImageError as error:
            part.damaged.append(str(error))
    return part


def thumbnail(
    source: Images, index: int
) -> tuple[NDArray[np.uint8], NDArray[np.uint8], int, bytes]:
    """Return one image's brightness (32, 32), colors (2, 8, 8), shorter side and checksum.

    Only copies of a sound or a film are alike.

    Raises:
        ImageError: it cannot be decoded.
    """
    image = source.image(index)
    pixels, box = image.decode_box(3, whole_box, (64, 64))
    if isinstance(image, Recording):  # they look alike: only copies are the same noise
        noise = np.random.default_rng(number_of(image.content()))
        pixels, box = noise.integers(0, 256, (SIDE, SIDE, 3), np.uint8), (0, 0, SIDE, SIDE)
    small = Image.fromarray(crop_resize(pixels, box, SIDE, SIDE, "bicubic")).convert("YCbCr")
    planes = np.asarray(small).transpose(2, 0, 1)
    colors = planes[1:].reshape(2, COLOR_SIDE, SIDE // COLOR_SIDE, COLOR_SIDE, -1).mean((2, 4))
    side = min(*pixels.shape[:2], _LARGEST)
    return planes[0], np.rint(colors).astype(np.uint8), side, digest(image.content())
