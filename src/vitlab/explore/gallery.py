"""The images that are open: their bytes, and what a person sees of them."""

import asyncio
import hashlib
from dataclasses import dataclass
from io import BytesIO
from typing import Any

from PIL import Image

from vitlab.data.decode.pixels import Pixels
from vitlab.errors import ImageError
from vitlab.explore.lru import Kept
from vitlab.serve.decoders import Decoders, Wanted

SIDE = 1024  # most pixels per side of the picture on the page
MOST_BYTES = 2**28  # of all files and pictures
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")


@dataclass(frozen=True)
class OpenImage:
    """An image that is open.

    Attributes:
        id: of its content: the same file twice is the same image
        name: as whoever opened it calls it
        data: of the file
        size: rows and columns of the upright image
        picture: of the page, a PNG
    """

    id: str
    name: str
    data: bytes
    size: tuple[int, int]
    picture: bytes

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return len(self.data) + len(self.picture)

    def described(self) -> dict[str, Any]:
        """Return what the page is told."""
        rows, columns = self.size
        return {"id": self.id, "name": self.name, "width": columns, "height": rows}


class Gallery:
    """Images that are open; those used longest ago are closed where there are too many.

    Args:
        decoders: that turn files into pixels
    """

    def __init__(self, decoders: Decoders) -> None:
        self._decoders = decoders
        self._open: Kept[str, OpenImage] = Kept(MOST_BYTES)
        self._order: list[str] = []

    def get(self, identity: str) -> OpenImage | None:
        """Return an image; None if it is not open."""
        return self._open.get(identity)

    def described(self) -> list[dict[str, Any]]:
        """Return what the page is told about the images, in the order of their opening."""
        found = map(self._open.peek, self._order)
        return [each.described() for each in found if each is not None]

    async def open(self, data: bytes, name: str) -> OpenImage:
        """Open an image.

        Args:
            data: of a file
            name: what to call it

        Raises:
            ImageError: it cannot be decoded, or is too large.
            ServiceError: the process that decoded it was killed.
        """
        identity = hashlib.sha256(data).hexdigest()[:16]
        if (found := self._open.get(identity)) is not None:
            return found
        decoded = await self._decoders.decode(data, name, "open", Wanted.preview(SIDE))
        if decoded.error:
            raise ImageError(decoded.error)
        picture = await asyncio.to_thread(as_png, decoded.pixels)
        image = OpenImage(identity, name, data, decoded.size, picture)
        self._open.put(identity, image)
        if identity not in self._order:
            self._order.append(identity)
        return image


def as_png(pixels: Pixels) -> bytes:
    """Return an image (rows, columns, 3) as a file, quickly rather than small."""
    file = BytesIO()
    Image.fromarray(pixels).save(file, "PNG", compress_level=1)
    return file.getvalue()
