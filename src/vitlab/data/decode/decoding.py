"""Image bytes to upright uint8 pixels.

Transparent pixels are composited over white unless four channels are asked for. Gray is the ITU-R
601 luma. Samples of 16 bits keep their high byte, which undoes both usual ways of widening 8 bits.
32-bit integers must lie in 0...65535 and are read as 16 bits. Floats are read as 0 (black) to 1
(white) and clipped, but refused outside -1...2, where clipping would destroy the image unnoticed.
JPEGs in CMYK are read as inverted, as Adobe writes them and browsers read them. Colors are those
stored in the file: ICC profiles and gamma are ignored, as is EXIF in text form.
"""

import math
from collections.abc import Collection

from PIL import Image

from vitlab.data.decode import jpeg
from vitlab.data.decode.colors import GRAY, MODES, convert, export, recolor
from vitlab.data.decode.formats import FORMATS
from vitlab.data.decode.headers import MAX_PIXELS, Header, opened
from vitlab.data.decode.orientation import BACK, turn, turn_box
from vitlab.data.decode.pixels import Box, ChooseBox, Pixels
from vitlab.errors import UserError

_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


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

    Args:
        data: The whole file.
        channels: 1 (gray), 3 (RGB) or 4 (RGBA).
        name: What to call the image in an error.
        max_pixels: The most pixels the image, and a tile of a TIFF, may have.
        formats: The formats accepted, from `FORMATS`.
        at_least: Rows and columns that will be needed. A JPEG at least four times larger both ways
            may then be decoded at 1/2, 1/4 or 1/8 of its size, never below twice what is needed:
            take boxes from the shape of the result, not from `shape`.

    Returns:
        Pixels of shape (rows, columns, channels), C-contiguous and writable.

    Raises:
        ImageError: The file is not an image in an accepted format, is damaged, or is too large.
    """
    if channels not in MODES:
        raise ValueError(f"channels must be 1, 3 or 4, not {channels}")
    with opened(data, name, max_pixels, formats) as header:
        if at_least is not None:
            rows, columns = reversed(at_least) if header.orientation >= 5 else at_least
            header.image.draft(None, (2 * columns, 2 * rows))
        return _whole(header, channels)


def decode_box(
    data: bytes,
    channels: int,
    name: str,
    choose: ChooseBox,
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
        ImageError: As `decode`.
    """
    with opened(data, name) as header:
        box = choose(*header.size)
        if (part := _fast(header, box, at_least, cut)) is not None:
            return convert(part[0], channels), part[1]
        return _whole(header, channels), box


def shape(data: bytes, name: str = "image") -> tuple[int, int, int]:
    """Return rows, columns and channels of the upright image, from the header alone.

    Channels are 1 where the file can hold only grays, with or without transparency, else 3. A
    palette counts as color, whatever is in it.

    Raises:
        ImageError: As `decode`.
    """
    with opened(data, name) as header:
        image = header.image
        # 16-bit gray with alpha is the one gray kind that Pillow opens as color
        gray = image.mode in GRAY or (image.format == "PNG" and data[25] == 4)
        return *header.size, 1 if gray else 3


def _whole(header: Header, channels: int) -> Pixels:
    """Decode by Pillow, and turn upright."""
    header.image.load()
    image = recolor(header.image, channels)
    if header.orientation in _TURNS:
        image = image.transpose(_TURNS[header.orientation])
    return export(image, channels)


def _fast(
    header: Header, box: Box, at_least: tuple[float, float], cut: bool
) -> tuple[Pixels, Box] | None:
    """Decode the box and its surroundings by `jpeg.decode`; None where only Pillow can tell."""
    image, orientation = header.image, header.orientation
    supported = image.format == "JPEG" and image.mode in ("L", "RGB")
    if not supported or image.info.get("adobe_transform") == 0:  # colors stored as RGB
        return None
    columns, rows = image.size
    left, top, right, bottom = turn_box(box, BACK.get(orientation, orientation), *header.size)
    high, wide = reversed(at_least) if orientation >= 5 else at_least
    scale = jpeg.scale_for(right - left, bottom - top, wide, high)
    until = min(rows, math.ceil(bottom)) if cut else rows
    try:
        pixels = jpeg.decode(header.data, rows, columns, image.mode == "L", scale, until)
    except UserError:
        raise
    except ValueError:  # a warning that may be harmless
        return None
    inside = (left / scale, top / scale, right / scale, bottom / scale)
    return turn(pixels, orientation), turn_box(inside, orientation, *pixels.shape[:2])
