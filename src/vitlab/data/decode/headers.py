"""Image headers: checked before anything is decoded, in one place for all files; EXIF orientation.

Every file is treated as hostile. The header is checked first: the format, the size of the file, the
number of pixels. Whatever Pillow raises on a bad file leaves this module as `ImageError`.

Metadata never makes an image damaged. JPEG, PNG, GIF and AVIF files are handed to Pillow without
it (`metadata`), TIFFs to a reader that passes it over (`tiff`): what is malformed there then cannot
fail, warn or cost time. What a reader says of a file (`Image.info`) counts only where it has the
type that is due.

Pillow's warnings neither reach the user nor become errors. WebP and BMP readers never warn, and the
readers are called directly, so that the process-wide `PIL.Image.MAX_IMAGE_PIXELS` plays no part.
That leaves GIF, TIFF and HEIF, whose readers warn about odd files: they are decoded under
`warnings.catch_warnings`. It swaps the process-wide filters for a moment and is not thread-safe in
Python 3.11, so a lock admits one of them at a time. The formats a server should accept (JPEG, PNG,
WebP) never take that lock.
"""

import logging
import os
import re
import sys
import tempfile
import threading
import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from io import BytesIO

from PIL import Image
from PIL.ImageFile import ImageFile
from PIL.TiffImagePlugin import TiffImageFile

from vitlab.data.decode.colors import drop_odd_transparency, note_samples
from vitlab.data.decode.formats import FORMATS, HEAD, advice, format_of, image_kind, reader_of
from vitlab.data.decode.metadata import (
    ORIENTATION,
    avif_parts,
    exif_bytes,
    gif_parts,
    jpeg_parts,
    orientation,
    png_parts,
    webp_size,
)
from vitlab.data.decode.pixels import Box, Pixels
from vitlab.errors import ImageError, UserError
from vitlab.values import either

BACK = {6: 8, 8: 6}  # what undoes a quarter turn; every other orientation undoes itself
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
MAX_PIXELS = 50_000_000
MAX_SIDE = 65_535  # what a JPEG can have
# Of formats whose decoders take 16 and 12 bytes for a pixel, so that no image takes over 512 MB.
MAX_PIXELS_OF = {"WEBP": 32_000_000, "AVIF": 40_000_000}
MAX_BYTES = 256 * 2**20
"""Room for the largest uncompressed file: 50 million RGBA pixels are 200 MB."""

MAX_SCANS = 50  # of a progressive JPEG with the most pixels allowed; ten are usual
SCAN = b"\xff\xda"  # a few bytes each, yet each is a pass over a progressive JPEG
_LOCK = threading.Lock()
STDERR = 2
# Of libtiff: `Fax4Decode: Bad code word at line 55 of strip 0 (x 94).`
_LINE = re.compile(rb"(?!vitlab)[A-Za-z_][\w.]*: [^\n]+\.\n?")
_MOST = 2**16  # bytes of it that are looked at
# else its lines go to stderr, without the image's name, in programs that set up no logging
logging.getLogger("PIL").addHandler(logging.NullHandler())


@dataclass(frozen=True)
class Header:
    """An opened image file whose pixels are not yet decoded.

    Attributes:
        image: Pillow's reader of it
        orientation: the EXIF orientation, 1 to 8, still to be applied
        data: the file without its metadata
    """

    image: ImageFile
    orientation: int
    data: bytes

    @property
    def size(self) -> tuple[int, int]:
        """Rows and columns of the upright image."""
        columns, rows = self.image.size
        return (columns, rows) if self.orientation >= 5 else (rows, columns)


@contextmanager
def opened(
    data: bytes, name: str, max_pixels: int = MAX_PIXELS, formats: Collection[str] = FORMATS
) -> Iterator[Header]:
    """Open an image file; whatever goes wrong in the block becomes `ImageError`.

    Args:
        data: the whole file
        name: what to call the image in an error
        max_pixels: the most pixels the image, and a tile of a TIFF, may have
        formats: the formats accepted, from `FORMATS`

    Raises:
        ImageError: the file is not an image in an accepted format, is damaged, or is too large.
    """
    with explained_image(name):
        kind = format_of(data)
        if kind == "HEIF" and kind not in FORMATS and formats == FORMATS:
            reader_of(kind)  # which says what is missing
        if kind not in formats:
            named = either(each.replace("WEBP", "WebP") for each in formats)
            other = image_kind(data[:HEAD])
            but = f", but {other}: {advice(other)}" if advice(other) else ""
            raise ImageError(f"not a {named} image{but}" if data else "the file is empty")
        if len(data) > MAX_BYTES:
            raise ImageError(f"{len(data):,} bytes exceed the limit of {MAX_BYTES:,}")
        with unheard() if kind in ("GIF", "TIFF", "HEIF") else nullcontext():
            yield _read_header(data, kind, min(max_pixels, MAX_PIXELS_OF.get(kind, max_pixels)))


@contextmanager
def unheard() -> Iterator[None]:
    """Keep Pillow's warnings from the user; one thread at a time."""
    with _LOCK, warnings.catch_warnings(action="ignore"):
        yield


@contextmanager
def complaints_are_errors(image: Image.Image) -> Iterator[None]:
    """Keep libtiff's lines from the user's terminal; the first of them is an error of a TIFF.

    They are without the image's name, about data that is damaged. Pillow turns off the library's
    warnings, not its errors, after many of which it decodes on and fills up with black. What other
    threads write in the meantime is written afterwards.

    Raises:
        ImageError: the library complained.
    """
    terminal = None
    with suppress(OSError):  # there may be none
        terminal = os.dup(STDERR) if image.format == "TIFF" else None
    if terminal is None:
        yield
        return
    with tempfile.TemporaryFile() as file:
        with suppress(OSError, ValueError, AttributeError):  # Python's own may be closed
            sys.stderr.flush()
        os.dup2(file.fileno(), STDERR)
        try:
            yield
        finally:
            os.dup2(terminal, STDERR)
            os.close(terminal)
            file.seek(0)
            said = file.read(_MOST).splitlines(keepends=True)
            found = [line for line in said if _LINE.fullmatch(line)]
            with suppress(OSError):
                os.write(STDERR, b"".join(line for line in said if line not in found))
    if found:
        raise ImageError(f"damaged TIFF ({found[0].decode('utf-8', 'replace').strip()[:200]})")


@contextmanager
def explained_image(name: str) -> Iterator[None]:
    """Turn whatever goes wrong in the block into `ImageError`, in one line that names the image."""
    try:
        yield
    except Exception as error:
        # Pillow has raised every kind of exception here, MemoryError and AssertionError included
        reason = str(error)
        if not isinstance(error, UserError):
            reason = f"damaged or unsupported image ({type(error).__name__}: {reason[:200]})"
        raise ImageError(" ".join(f"{name}: {reason}".split())) from error


def _read_header(data: bytes, kind: str, max_pixels: int) -> Header:
    """Read the header, check the size, find the orientation; decode nothing."""
    exif = b""
    if kind == "JPEG":
        data, exif = jpeg_parts(data)
    elif kind == "PNG":
        data, exif = png_parts(data)
    elif kind == "GIF":
        data = gif_parts(data)
    elif kind == "AVIF":
        data = avif_parts(data)
    elif kind == "WEBP":
        check_size(*webp_size(data), max_pixels)  # the reader allocates its canvas at once
    image = reader_of(kind)(BytesIO(data))
    check_size(*image.size, max_pixels)
    note_samples(image, image)
    drop_odd_transparency(image)
    if kind == "PNG":
        _mend_png_key(image, data[24])
    if kind == "JPEG" and "progressive" in image.info:
        scans = data.count(SCAN)
        if scans * image.width * image.height > MAX_SCANS * max_pixels:
            raise ImageError(f"a progressive JPEG with {scans:,} scans takes too long to decode")
    if isinstance(image, TiffImageFile):
        check_size(image.tag_v2.get(322, 1), image.tag_v2.get(323, 1), max_pixels)  # a tile
        return Header(image, 1, data)  # Pillow turns a TIFF itself
    return Header(image, orientation(exif or exif_bytes(image.info.get("exif"))), data)


def check_size(columns: int, rows: int, max_pixels: int) -> None:
    """Refuse an image of so many pixels, or so long a side."""
    if columns * rows > max_pixels:
        raise ImageError(f"{columns} x {rows} pixels exceed the limit of {max_pixels:,}")
    if max(columns, rows) > MAX_SIDE:  # Pillow keeps a pointer per row
        raise ImageError(f"{columns} x {rows} pixels exceed the limit of {MAX_SIDE:,} per side")


def upright(picture: Image.Image) -> Image.Image:
    """Return a turned copy of an image in memory, without metadata; what that may be is not known.

    Raises:
        Exception: of any kind, by Pillow: its pixels cannot be decoded.
    """
    picture.load()
    try:
        turned = picture.getexif().get(ORIENTATION, 1)
    except Exception:  # of whatever type the program that made it left there
        turned = orientation(exif_bytes(picture.info.get("exif")))
    method = _TURNS.get(turned) if isinstance(turned, int) else None
    image = picture.copy() if method is None else picture.transpose(method)
    drop_odd_transparency(image)
    for key in image.info.keys() - {"transparency"}:
        del image.info[key]
    return image


def _mend_png_key(image: ImageFile, depth: int) -> None:
    """Bring a PNG's transparent color to the 8 bits of its pixels, which Pillow leaves undone."""
    key = image.info.get("transparency")
    if image.mode == "L" and isinstance(key, int):
        top = 2**depth - 1
        image.info["transparency"] = (key & top) * (255 // top)
    elif image.mode == "RGB" and isinstance(key, tuple) and depth == 16:
        image.info["transparency"] = tuple(value >> 8 for value in key)


def turn(pixels: Pixels, orientation: int) -> Pixels:
    """Turn stored pixels (rows, columns, channels) upright, as a view; EXIF orientations 1 to 8."""
    if orientation in (3, 4, 6, 7):
        pixels = pixels[::-1]
    if orientation in (2, 3, 7, 8):
        pixels = pixels[:, ::-1]
    return pixels.transpose(1, 0, 2) if orientation >= 5 else pixels


def turn_box(box: Box, orientation: int, rows: int, columns: int) -> Box:
    """Return where a box of stored pixels (rows, columns) lies in the upright image."""
    left, top, right, bottom = box
    if orientation in (3, 4, 6, 7):
        top, bottom = rows - bottom, rows - top
    if orientation in (2, 3, 7, 8):
        left, right = columns - right, columns - left
    return (top, left, bottom, right) if orientation >= 5 else (left, top, right, bottom)
