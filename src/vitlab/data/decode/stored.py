"""One image of a source as it is stored: an encoded file, or pixels in memory."""

from dataclasses import dataclass
from io import BytesIO
from typing import Any, Protocol

import numpy as np
from PIL import Image

from vitlab.data.decode import decoding
from vitlab.data.decode.colors import MODES, convert
from vitlab.data.decode.crop import crop_resize
from vitlab.data.decode.formats import ENDINGS, format_of
from vitlab.data.decode.pixels import Box, ChooseBox, Pixels
from vitlab.errors import ImageError

_AS_THEY_ARE = ("JPEG", "PNG", "WEBP")  # formats that a copy keeps byte for byte


class StoredImage(Protocol):
    """One image, not yet decoded or cropped. Every method may raise `ImageError`."""

    @property
    def name(self) -> str:
        """What to call the image in a message."""

    def shape(self) -> tuple[int, int, int]:
        """Return rows, columns and channels (1: gray, else 3, or those of pixels in memory)."""

    def decode(self, channels: int) -> Pixels:
        """Return the whole image, (rows, columns, channels)."""

    def decode_box(
        self, channels: int, choose: ChooseBox, at_least: tuple[float, float], *, cut: bool = False
    ) -> tuple[Pixels, Box]:
        """Return what one box of the image needs, and the box within it; see `decoding`."""

    def content(self) -> bytes:
        """Return the bytes by which the image is recognized: the file, or the pixels."""

    def compact(self, side: int, quality: int) -> tuple[bytes, str]:
        """Return a file for a copy of the data, and the ending of its name.

        Args:
            side: limit of the shorter side of an encoded image, in pixels
            quality: of a JPEG, 1 to 95
        """


@dataclass(frozen=True)
class EncodedImage:
    """The bytes of an image file."""

    data: bytes
    name: str

    def shape(self) -> tuple[int, int, int]:
        """Return rows, columns and channels, from the header alone."""
        return decoding.shape(self.data, self.name)

    def decode(self, channels: int) -> Pixels:
        """Return the whole image, (rows, columns, channels)."""
        return decoding.decode(self.data, channels, self.name)

    def decode_box(
        self, channels: int, choose: ChooseBox, at_least: tuple[float, float], *, cut: bool = False
    ) -> tuple[Pixels, Box]:
        """Return what one box of the image needs, and the box within it; see `decoding`."""
        return decoding.decode_box(self.data, channels, self.name, choose, at_least, cut=cut)

    def content(self) -> bytes:
        """Return the file."""
        return self.data

    def compact(self, side: int, quality: int) -> tuple[bytes, str]:
        """Return the file itself, or a JPEG of it whose shorter side is `side`.

        It is decoded completely in any case. Only JPEG, PNG and WebP files that are small enough
        stay as they are.

        Raises:
            ImageError: it cannot be decoded.
        """
        rows, columns, channels = self.shape()
        ratio = min(1.0, side / min(rows, columns))
        new = max(1, round(rows * ratio)), max(1, round(columns * ratio))
        least = 2.0 * new[0], 2.0 * new[1]
        pixels, box = self.decode_box(channels, lambda r, c: (0, 0, c, r), least)
        kind = format_of(self.data)
        if ratio == 1 and kind in _AS_THEY_ARE:
            return self.data, ENDINGS[kind][0]
        return _encoded(crop_resize(pixels, box, *new, "bicubic"), "JPEG", quality=quality)


@dataclass(frozen=True)
class PixelImage:
    """Pixels in memory, (rows, columns, channels)."""

    pixels: Pixels
    name: str

    def shape(self) -> tuple[int, int, int]:
        """Return rows, columns and channels."""
        rows, columns, channels = self.pixels.shape
        return rows, columns, channels

    def decode(self, channels: int) -> Pixels:
        """Return the pixels with other channels, gray as ITU-R 601 luma.

        Raises:
            ImageError: channels that cannot be converted.
        """
        have = self.pixels.shape[2]
        if have != channels and (have not in (1, 3) or channels not in MODES):
            raise ImageError(
                f"{self.name}: images of {have} channels cannot be converted to {channels}"
            )
        return convert(self.pixels, channels)

    def decode_box(
        self, channels: int, choose: ChooseBox, at_least: tuple[float, float], *, cut: bool = False
    ) -> tuple[Pixels, Box]:
        """Return all pixels, and the box within them."""
        pixels = self.decode(channels)
        return pixels, choose(*pixels.shape[:2])

    def content(self) -> bytes:
        """Return the pixels, row by row."""
        return self.pixels.tobytes()

    def compact(self, side: int, quality: int) -> tuple[bytes, str]:
        """Return a PNG of the same pixels."""
        return _encoded(self.pixels, "PNG")


def _encoded(pixels: Pixels, kind: str, **options: Any) -> tuple[bytes, str]:
    """Return an image file of a format, and the ending of its name."""
    stream = BytesIO()
    image = Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else np.asarray(pixels))
    image.save(stream, kind, **options)
    return stream.getvalue(), ENDINGS[kind][0]
