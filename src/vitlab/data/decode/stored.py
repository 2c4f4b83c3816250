"""One image of a source as it is stored: an encoded file, or pixels in memory.

Files are decoded to upright uint8 pixels. Transparent pixels are composited over white unless four
channels are asked for. Gray is the ITU-R 601 luma. Samples of 16 bits keep their high byte, which
undoes both usual ways of widening 8 bits; of gray whose file says that it fills fewer bits (TIFF:
12-bit samples, SMaxSampleValue, MaxSampleValue) the highest 8 of these. 32-bit integers are read as
16 bits, and must lie in 0...65535 where the file does not say more. What lies wholly below 256 and
is not said to is refused, since it would be black. Floats are read as 0 (black) to 1 (white) and
clipped, but refused outside -1...2, where clipping would destroy the image unnoticed. JPEGs in CMYK
are read as inverted, as Adobe writes them and browsers read them. Colors are those stored in the
file: ICC profiles and gamma are ignored, as is EXIF in text form.
"""

import sys
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from io import BytesIO

import numpy as np

from vitlab.data.decode.colors import GRAY, MODES, SAMPLES, convert, recolored
from vitlab.data.decode.crop import crop_resize
from vitlab.data.decode.crop_box import whole_box
from vitlab.data.decode.formats import ENDINGS, FORMATS, format_of, reader_of
from vitlab.data.decode.headers import (
    MAX_PIXELS,
    Header,
    complaints_are_errors,
    explained_image,
    opened,
    turn,
)
from vitlab.data.decode.jpeg import jpeg_boxes
from vitlab.data.decode.pixels import Box, ChooseBox, Pixels, as_image
from vitlab.errors import ImageError

_AS_THEY_ARE = ("JPEG", "PNG", "WEBP")  # formats that a copy keeps byte for byte


class StoredImage(ABC):
    """One image, not yet decoded or cropped. Every method may raise `ImageError`.

    Attributes:
        name: what to call it in a message
        is_sound: whether its pixels are a spectrogram
    """

    name: str
    is_sound = False

    @abstractmethod
    def shape(self) -> tuple[int, int, int]:
        """Return rows, columns and channels (1: gray, else 3, or those of pixels in memory)."""

    @abstractmethod
    def decode(self, channels: int) -> Pixels:
        """Return the whole image, (rows, columns, channels)."""

    @abstractmethod
    def content(self) -> bytes:
        """Return the bytes by which the image is recognized: the file, or the pixels."""

    def decode_box(
        self, channels: int, choose: ChooseBox, at_least: tuple[float, float], *, cut: bool = False
    ) -> tuple[Pixels, Box]:
        """Return the pixels of a box and its surroundings, here all, and the box within them."""
        pixels = self.decode(channels)
        return pixels, choose(*pixels.shape[:2])

    def fitted(
        self, size: tuple[int, int], channels: int, choose: ChooseBox | None
    ) -> Pixels | None:
        """Return the part that a model sees, where its kind is not resized, as sounds: here None.

        Args:
            size: its rows and columns
            channels: of the result
            choose: a random box of the whole; None for the usual part
        """
        return None

    def compact(self, side: int, quality: int) -> tuple[bytes, str]:
        """Return a file for a copy of the data, here a PNG, and the ending of its name.

        Args:
            side: limit of the shorter side of an encoded image, in pixels
            quality: of a JPEG, 1 to 95
        """
        return _encoded(self.decode(self.shape()[2]), "PNG", quality)


@dataclass(frozen=True)
class EncodedImage(StoredImage):
    """The bytes of an image file.

    Attributes:
        data: the whole file
        name: what to call it in an error
        formats: the formats accepted, from `FORMATS`
        max_pixels: the most pixels the image, and a tile of a TIFF, may have
    """

    data: bytes
    name: str = "image"
    formats: Collection[str] = FORMATS
    max_pixels: int = MAX_PIXELS

    def shape(self) -> tuple[int, int, int]:
        """Return rows, columns and channels of the upright image, from the header alone.

        Channels are 1 where the file can hold only grays, with or without transparency, else 3. A
        palette counts as color, whatever is in it.

        Raises:
            ImageError: as `decode`.
        """
        with self._opened() as header:
            image = header.image
            # 16-bit gray with alpha is the one gray kind that Pillow opens as color
            gray = image.mode in GRAY or (image.format == "PNG" and self.data[25] == 4)
            return *header.size, 1 if gray else 3

    def decode(self, channels: int) -> Pixels:
        """Decode the first frame, upright, in the colors asked for.

        Args:
            channels: 1 (gray), 3 (RGB) or 4 (RGBA)

        Returns:
            Pixels of shape (rows, columns, channels), C-contiguous and writable.

        Raises:
            ImageError: the file is not an image in an accepted format, is damaged, or is too large.
        """
        with self._opened() as header:
            return _whole(header, channels)

    def decode_box(
        self, channels: int, choose: ChooseBox, at_least: tuple[float, float], *, cut: bool = False
    ) -> tuple[Pixels, Box]:
        """Decode what one box of the image needs: the fast way for JPEGs, `decode`'s for the rest.

        A JPEG is decoded at 1/2, 1/4 or 1/8 of its size where the box then still has the rows and
        columns asked for, and with `cut` down to the last row of the box only. The pixels are those
        that Pillow decodes at that scale. A truncated or corrupt JPEG is refused.

        Args:
            channels: 1 (gray), 3 (RGB) or 4 (RGBA)
            choose: the box, given the rows and columns of the upright image
            at_least: rows and columns that the box must have in the result
            cut: whether what lies below the box may be left out; damage there goes unnoticed

        Returns:
            Upright pixels (rows, columns, channels), a view at times, and the box within them.

        Raises:
            ImageError: as `decode`.
        """
        if found := self.decode_boxes(channels, [choose], at_least, cut):
            return found[0]
        with self._opened() as header:
            box = choose(*header.size)
            return _whole(header, channels), box

    def decode_boxes(
        self, channels: int, choices: Sequence[ChooseBox], at_least: tuple[float, float], cut: bool
    ) -> list[tuple[Pixels, Box]]:
        """Decode a JPEG once for several boxes of it: of each, what `decode_box` returns.

        Returns:
            An empty list where each box has to be decoded by itself.

        Raises:
            ImageError: as `decode`.
        """
        if "JPEG" not in self.formats:
            return []
        with explained_image(self.name):
            found = jpeg_boxes(self.data, self.max_pixels, choices, at_least, cut)
            return [(convert(pixels, channels), box) for pixels, box in found]

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
        pixels, box = self.decode_box(channels, whole_box, least)
        kind = format_of(self.data)
        if ratio == 1 and kind in _AS_THEY_ARE:
            return self.data, ENDINGS[kind][0]
        return _encoded(crop_resize(pixels, box, *new, "bicubic"), "JPEG", quality)

    def _opened(self) -> AbstractContextManager[Header]:
        return opened(self.data, self.name, self.max_pixels, self.formats)


@dataclass(frozen=True)
class Recording(StoredImage):
    """A file that is seen as a picture but is none: a sound, or a film.

    Attributes:
        data: the whole file
    """

    data: bytes
    name: str

    def content(self) -> bytes:
        """Return the file."""
        return self.data

    def compact(self, side: int, quality: int) -> tuple[bytes, str]:
        """Refuse: a copy of the data is one of pictures."""
        raise ImageError(f"{self.name}: sounds and films cannot be copied as small pictures")


@dataclass(frozen=True)
class PixelImage(StoredImage):
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

    def content(self) -> bytes:
        """Return the pixels, row by row."""
        return self.pixels.tobytes()


def _encoded(pixels: Pixels, kind: str, quality: int) -> tuple[bytes, str]:
    """Return an image file, a PNG whatever the quality, or a JPEG, and the ending of its name."""
    stream = BytesIO()
    as_image(pixels).save(stream, kind, quality=quality)
    return stream.getvalue(), ENDINGS[kind][0]


def _check_colors(header: Header) -> None:
    """Refuse colors of 16 bits whose upper bytes, all that Pillow keeps, are empty or nearly so."""
    image = header.image
    bits, _ = image.info[SAMPLES]
    most = max(each.getextrema()[1] for each in image.split()[:3])
    if most >= 2 ** max(bits - 8, 0):
        return
    lower = reader_of(str(image.format))(BytesIO(header.data))
    swap = {"B": "L", "L": "B", "N": "B" if sys.byteorder == "little" else "L"}
    for number, each in enumerate(lower.tile):  # their bytes in the other order
        first, *rest = each.args if isinstance(each.args, tuple) else (each.args,)
        other = f"{first[:-1]}{swap.get(first[-1], '')}"
        lower.tile[number] = each._replace(args=(other, *rest) if rest else other)
    if np.asarray(lower)[..., :3].any():
        raise ImageError(
            f"colors of 16 bits that are below {2 ** max(bits, 8):,}, so black: save it with 8 bits"
        )


def _whole(header: Header, channels: int) -> Pixels:
    """Decode by Pillow, and turn upright."""
    image = header.image
    wide = image.mode in ("RGB", "RGBA") and any(";16" in str(each.args) for each in image.tile)
    with complaints_are_errors(image):
        image.load()
        if wide:
            _check_colors(header)
    pixels = recolored(header.image, channels)
    return np.ascontiguousarray(turn(pixels, header.orientation))
