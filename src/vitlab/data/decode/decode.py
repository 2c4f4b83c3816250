"""Image bytes to upright uint8 pixels.

Every file is treated as hostile. The header is checked first: the format, the size of the file,
the number of pixels. Whatever Pillow raises on a bad file leaves this module as `BadImage`.

Pillow's warnings neither reach the user nor become errors. JPEG and PNG files are handed to Pillow
without their metadata, WebP and BMP readers never warn, and the readers are called directly, so
that the process-wide `PIL.Image.MAX_IMAGE_PIXELS` plays no part. That leaves GIF and TIFF, whose
readers warn about odd tags: they are decoded under `warnings.catch_warnings`. It swaps the
process-wide filters for a moment and is not thread-safe in Python 3.11, so a lock admits one GIF
or TIFF at a time. The formats a server should accept (JPEG, PNG, WebP) never take that lock.

Colors are those stored in the file: ICC profiles and gamma are ignored, as is EXIF in text form.
"""

import math
import struct
import threading
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from io import BytesIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.ImageFile import ImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.TiffImagePlugin import TiffImageFile
from PIL.WebPImagePlugin import WebPImageFile

from vitlab.data.decode import jpeg, metadata
from vitlab.data.decode.orientation import BACK, Box, turn, turn_box
from vitlab.errors import UserError

Pixels = NDArray[np.uint8]

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
MAX_PIXELS = 50_000_000
MAX_BYTES = 256 * 2**20
"""Room for the largest plain file: 50 million RGBA pixels, uncompressed, are 200 MB."""

_READERS: dict[str, type[ImageFile]] = {
    "JPEG": JpegImageFile,
    "PNG": PngImageFile,
    "WEBP": WebPImageFile,
    "GIF": GifImageFile,
    "BMP": BmpImageFile,
    "TIFF": TiffImageFile,
}
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
_GRAY = ("1", "L", "LA", "La", "I", "F", "I;16", "I;16B", "I;16L", "I;16N")
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_MAX_SCANS = 50  # of a progressive JPEG with the most pixels allowed; ten are usual
_BAND = 2**22  # pixels that Pillow exports at a time
_LOCK = threading.Lock()


class BadImage(UserError):  # noqa: N818
    """An image that cannot be used: one line that names it and says what is wrong."""


def decode(
    data: bytes,
    channels: int,
    name: str = "image",
    *,
    max_pixels: int = MAX_PIXELS,
    formats: Collection[str] = FORMATS,
    at_least: tuple[int, int] | None = None,
) -> Pixels:
    """Decode the first frame, upright, in the colors asked for.

    Transparent pixels are laid over white unless four channels are asked for. Gray is the ITU-R
    601 luma. Samples of 16 bits keep their high byte, which undoes both usual ways of widening 8
    bits. 32-bit integers must lie in 0...65535 and are read as 16 bits. Floats are read as 0
    (black) to 1 (white) and clipped, but refused outside -1...2, where clipping would destroy the
    image unseen. JPEGs in CMYK are read as inverted, as Adobe writes them and browsers read them.

    Args:
        data: The whole file.
        channels: 1 (gray), 3 (RGB) or 4 (RGBA).
        name: What to call the image in an error.
        max_pixels: The most pixels the image, and a tile of a TIFF, may have.
        formats: The formats accepted, from `FORMATS`.
        at_least: Rows and columns that will be needed. A JPEG at least four times larger both ways
            may then be decoded at 1/2, 1/4 or 1/8 of its size, never below twice what is needed:
            take boxes from the shape of the result, not from `size`.

    Returns:
        Pixels of shape (rows, columns, channels), C-contiguous and writable.

    Raises:
        BadImage: The file is not an image in an accepted format, is damaged, or is too large.
    """
    if channels not in _MODES:
        raise ValueError(f"channels must be 1, 3 or 4, not {channels}")
    with _opened(data, name, max_pixels, formats) as (image, orientation, _):
        if at_least is not None:
            rows, columns = reversed(at_least) if orientation >= 5 else at_least
            image.draft(None, (2 * columns, 2 * rows))
        image.load()
        flat = _recolor(image, channels)
        if orientation in _TURNS:
            flat = flat.transpose(_TURNS[orientation])
        return _export(flat, channels)


def decode_box(
    data: bytes,
    channels: int,
    name: str,
    choose: Callable[[int, int], Box],
    at_least: tuple[float, float],
    *,
    cut: bool = False,
) -> tuple[Pixels, Box]:
    """Decode what one box of an image needs: the fast way for JPEGs, `decode`'s for the rest.

    A JPEG is decoded at 1/2, 1/4 or 1/8 of its size where the box then still has the rows and
    columns asked for, and with `cut` down to the last row of the box only. The pixels are those
    that Pillow decodes at that scale. A JPEG whose data break off or make no sense is refused.

    Args:
        data: The whole file.
        channels: 1 (gray), 3 (RGB) or 4 (RGBA).
        name: What to call the image in an error.
        choose: The box, given the rows and columns of the upright image.
        at_least: Rows and columns that the box must have in the result.
        cut: Whether what lies below the box may be left out. Damage there then goes unnoticed.

    Returns:
        Upright pixels (rows, columns, channels), a view at times, and the box within them.

    Raises:
        BadImage: As `decode`.
    """
    with _opened(data, name, MAX_PIXELS, FORMATS) as (image, orientation, plain):
        sides = reversed(image.size) if orientation < 5 else image.size
        box = choose(*sides)
        if (flat := _fast(image, orientation, plain, box, at_least, cut)) is not None:
            return _with_channels(flat[0], channels), flat[1]
        image.load()
        turned = _recolor(image, channels)
        if orientation in _TURNS:
            turned = turned.transpose(_TURNS[orientation])
        return _export(turned, channels), box


def _fast(
    image: ImageFile,
    orientation: int,
    data: bytes,
    box: Box,
    at_least: tuple[float, float],
    cut: bool,
) -> tuple[Pixels, Box] | None:
    """The box and its surroundings by `jpeg.decode`; None where only Pillow can tell."""
    plain = image.format == "JPEG" and image.mode in ("L", "RGB")
    if not plain or image.info.get("adobe_transform") == 0:  # colors stored as RGB
        return None
    columns, rows = image.size
    upright = (columns, rows) if orientation >= 5 else (rows, columns)
    left, top, right, bottom = turn_box(box, BACK.get(orientation, orientation), *upright)
    high, wide = reversed(at_least) if orientation >= 5 else at_least
    scale = jpeg.scale_for(right - left, bottom - top, wide, high)
    until = min(rows, math.ceil(bottom)) if cut else rows
    try:
        pixels = jpeg.decode(data, rows, columns, image.mode == "L", scale, until)
    except UserError:
        raise
    except ValueError:  # a warning that may be harmless
        return None
    inside = (left / scale, top / scale, right / scale, bottom / scale)
    return turn(pixels, orientation), turn_box(inside, orientation, *pixels.shape[:2])


def _with_channels(pixels: Pixels, channels: int) -> Pixels:
    """Grays or RGB in the colors asked for."""
    have = pixels.shape[2]
    if have == channels:
        return pixels
    image = Image.fromarray(np.ascontiguousarray(pixels[:, :, 0] if have == 1 else pixels))
    return _export(image.convert(_MODES[channels]), channels)


def size(data: bytes, name: str = "image") -> tuple[int, int]:
    """Rows and columns of the upright image, from the header alone; errors as in `decode`."""
    return shape(data, name)[:2]


def shape(data: bytes, name: str = "image") -> tuple[int, int, int]:
    """Rows, columns and channels of the upright image, from the header; errors as in `decode`.

    Channels are 1 where the file can hold only grays, with or without transparency, else 3. A
    palette counts as color, whatever is in it.
    """
    with _opened(data, name, MAX_PIXELS, FORMATS) as (image, orientation, _):
        # 16-bit gray with alpha is the one gray kind that Pillow opens as color
        gray = image.mode in _GRAY or (image.format == "PNG" and data[25] == 4)
        columns, rows = reversed(image.size) if orientation >= 5 else image.size
        return rows, columns, 1 if gray else 3


@contextmanager
def _opened(
    data: bytes, name: str, max_pixels: int, formats: Collection[str]
) -> Iterator[tuple[ImageFile, int, bytes]]:
    """The one boundary: whatever goes wrong inside becomes `BadImage`, and Pillow is silent.

    Yields:
        The opened image, its pixels not yet decoded, the EXIF orientation still to be applied, and
        the file without its metadata.
    """
    try:
        kind = kind_of(data)
        if kind not in formats:
            raise UserError(f"not a {', '.join(formats)} image" if data else "the file is empty")
        if len(data) > MAX_BYTES:
            raise UserError(f"{len(data):,} bytes; at most {MAX_BYTES:,} are read")
        with ExitStack() as stack:
            if kind in ("GIF", "TIFF"):
                stack.enter_context(_LOCK)
                stack.enter_context(warnings.catch_warnings(action="ignore"))
            yield _open(data, kind, max_pixels)
    except Exception as error:
        # Pillow has raised every kind of exception here, MemoryError and AssertionError included
        reason = str(error)
        if not isinstance(error, UserError):
            reason = f"damaged or unsupported image ({type(error).__name__}: {reason[:200]})"
        raise BadImage(" ".join(f"{name}: {reason}".split())) from error


def kind_of(data: bytes) -> str:
    """The format by the file's first bytes; empty if it is none of `FORMATS`."""
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return "WEBP"
    signatures = {
        "JPEG": (b"\xff\xd8\xff",),
        "PNG": (b"\x89PNG\r\n\x1a\n",),
        "GIF": (b"GIF87a", b"GIF89a"),
        "BMP": (b"BM",),
        "TIFF": (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"),
    }
    return next((kind for kind, starts in signatures.items() if data.startswith(starts)), "")


def _open(data: bytes, kind: str, max_pixels: int) -> tuple[ImageFile, int, bytes]:
    """Read the header, check the size, find the orientation; decode nothing."""
    exif = b""
    if kind == "JPEG":
        data, exif = metadata.jpeg_parts(data)
    elif kind == "PNG":
        data, exif = metadata.png_parts(data)
    elif kind == "WEBP":
        _check_size(*_webp_size(data), max_pixels)  # the reader allocates its canvas at once
    image = _READERS[kind](BytesIO(data))
    _check_size(*image.size, max_pixels)
    if kind == "PNG":
        _mend_png_key(image, data[24])
    if kind == "JPEG" and "progressive" in image.info:
        scans = data.count(b"\xff\xda")  # a few bytes each, yet each is a pass over the image
        if scans * image.width * image.height > _MAX_SCANS * max_pixels:
            raise UserError(f"a progressive JPEG with {scans:,} scans takes too long to decode")
    if isinstance(image, TiffImageFile):
        _check_size(image.tag_v2.get(322, 1), image.tag_v2.get(323, 1), max_pixels)  # a tile
        image.info.pop("xmp", None)  # else Pillow may take an orientation from it as well
        return image, 1, data  # Pillow turns a TIFF itself
    return image, metadata.orientation(exif or image.info.get("exif", b"")), data


def _check_size(columns: int, rows: int, max_pixels: int) -> None:
    if columns * rows > max_pixels:
        raise UserError(f"{columns} x {rows} pixels; at most {max_pixels:,} pixels are decoded")


def _webp_size(data: bytes) -> tuple[int, int]:
    """Columns and rows, from the first chunk of a WebP file."""
    kind = data[12:16]
    if kind == b"VP8X":
        return 1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little")
    if kind == b"VP8L":
        bits = int.from_bytes(data[21:25], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    columns, rows = struct.unpack_from("<HH", data, 26)
    return columns & 0x3FFF, rows & 0x3FFF


def _mend_png_key(image: ImageFile, depth: int) -> None:
    """Bring a PNG's transparent color to the 8 bits of its pixels, which Pillow leaves undone."""
    key = image.info.get("transparency")
    if image.mode == "L" and isinstance(key, int):
        top = 2**depth - 1
        image.info["transparency"] = (key & top) * (255 // top)
    elif image.mode == "RGB" and isinstance(key, tuple) and depth == 16:
        image.info["transparency"] = tuple(value >> 8 for value in key)


def _recolor(image: Image.Image, channels: int) -> Image.Image:
    """Bring a decoded image of any mode to L, RGB or RGBA."""
    wanted = _MODES[channels]
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        image = _to_8_bits(image)
    elif image.mode == "La":
        image = image.convert("LA")  # the only conversion that Pillow has from it
    elif image.mode == "RGBA" and image.format == "BMP" and not image.getchannel("A").getbbox():
        image = image.convert("RGB")  # an alpha that is 0 throughout was never written
    if image.has_transparency_data:
        image = image if image.mode == "RGBA" else image.convert("RGBA")
        if channels < 4:
            opaque = Image.new("RGB", image.size, "white")
            opaque.paste(image, mask=image)
            image = opaque
    elif image.mode not in _MODES.values():
        image = image.convert("RGB")  # Pillow takes some modes nowhere else
    return image if image.mode == wanted else image.convert(wanted)


def _to_8_bits(image: Image.Image) -> Image.Image:
    """Bring integers of 12, 16 or 32 bits, or floats, to L, or LA if one gray is transparent."""
    values = np.asarray(image)
    tags = image.tag_v2 if isinstance(image, TiffImageFile) else {}
    low, high = values.min(), values.max()
    if image.mode == "F":
        if not (low >= -1 and high <= 2):  # nor if it is NaN
            raise UserError(f"floats from {low} to {high}; 0 to 1 is read, convert to 8 bits first")
        gray = np.rint(255 * values.clip(0, 1)).astype(np.uint8)
    else:
        if low < 0 or high > 65535:
            raise UserError(f"integers from {low} to {high}; 0 to 65535 is read, convert it first")
        gray = (values >> (4 if tags.get(258) == (12,) else 8)).astype(np.uint8)
    if tags.get(262) == 0:  # white is zero: Pillow inverts only up to 8 bits
        gray = 255 - gray
    result = Image.fromarray(gray)
    key = image.info.get("transparency")
    if isinstance(key, int):
        alpha = Image.fromarray(np.where(values == key, 0, 255).astype(np.uint8))
        result = Image.merge("LA", (result, alpha))
    return result


def _export(image: Image.Image, channels: int) -> Pixels:
    """The pixels as an array; in bands, because Pillow makes three copies of what it exports."""
    pixels = np.empty((image.height, image.width, channels), np.uint8)
    band = max(1, _BAND // image.width)
    for top in range(0, image.height, band):
        part = image
        if band < image.height:
            part = image.crop((0, top, image.width, min(top + band, image.height)))
        pixels[top : top + band] = np.asarray(part).reshape(-1, image.width, channels)
    return pixels
