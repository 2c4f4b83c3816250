"""The fast way through a JPEG: smaller where that will do, no further down than needed, strictly.

libjpeg-turbo (by simplejpeg) gives the same pixels as Pillow, at every scale. It is asked to treat
each of libjpeg's warnings as an error: a file whose data break off or cannot be followed is not
filled up with gray. Measured against OpenCV, kornia-rs and Pillow in docs/performance.md.
"""

import numpy as np
from numpy.typing import NDArray

from vitlab.errors import UserError

Pixels = NDArray[np.uint8]

SCALES = (8, 4, 2)  # what libjpeg-turbo has fast transforms for
_SPARE = 8  # rows beyond the last one needed, at a scale of 1: colors are smoothed across rows
_UNREAD = "extraneous bytes before marker 0xd9"
_LOST = ("premature end", "bad huffman code", "instead of rst")


def scale_for(width: float, height: float, columns: float, rows: float) -> int:
    """The strongest reduction (8, 4, 2, 1) at which a box still has so many columns and rows."""
    fits = (s for s in SCALES if width >= s * columns and height >= s * rows)
    return next(fits, 1)


def decode(data: bytes, rows: int, columns: int, gray: bool, scale: int, until: int) -> Pixels:
    """The upper part of a JPEG at 1/scale of its size.

    Args:
        data: a JPEG file with one or three components of 8 bits
        rows: its height
        columns: its width
        gray: whether it has one component
        scale: 1, 2, 4 or 8
        until: the rows wanted, counted before scaling; more may come

    Returns:
        uint8 (n, ceil(columns / scale), 1 or 3), where n covers `until` rows at least.

    Raises:
        ValueError: what libjpeg has to say about the file (a `UserError` where data is lost).
    """
    stop = until + _SPARE * scale
    if stop < rows and (short := _shortened(data, stop)):
        try:
            return _decode(short, stop, columns, gray, scale)
        except _Unread as told:  # all the rows wanted are there, and nothing was wrong in them
            return told.pixels
        except ValueError:
            pass  # of several scans, say; as a whole it may be sound
    return _decode(data, rows, columns, gray, scale)


class _Unread(ValueError):  # noqa: N818
    """The rows asked for were decoded; bytes that belong to later rows were left."""

    def __init__(self, pixels: Pixels) -> None:
        self.pixels = pixels


def _decode(data: bytes, rows: int, columns: int, gray: bool, scale: int) -> Pixels:
    import simplejpeg

    shape = (-(-rows // scale), -(-columns // scale), 1 if gray else 3)
    pixels = np.empty(shape, np.uint8)
    try:
        simplejpeg.decode_jpeg(
            data,
            colorspace="GRAY" if gray else "RGB",
            min_height=shape[0] if scale > 1 else 0,
            min_width=shape[1] if scale > 1 else 0,
            min_factor=1,
            buffer=pixels,
            strict=True,
        )
    except ValueError as error:
        reason = str(error)
        if _UNREAD in reason:
            raise _Unread(pixels) from None
        if any(sign in reason.lower() for sign in _LOST):
            raise UserError(f"damaged JPEG ({reason})") from None
        raise
    return pixels


def _shortened(data: bytes, rows: int) -> bytes:
    """The file with a header that claims fewer rows; empty where the trick cannot be checked.

    It can in a file of a single scan without restart markers: libjpeg then complains of nothing but
    the bytes left between the last row and the end of the image.
    """
    at = 2
    found = -1
    while at + 4 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if marker == 0xDA:
            ends = data.rfind(b"\xff\xd9", at) > 0  # else it may be cut off behind those rows
            if found < 0 or not ends:
                return b""
            changed = bytearray(data)
            changed[found + 5 : found + 7] = rows.to_bytes(2)
            return bytes(changed)
        if marker == 0xDD:  # restart interval
            return b""
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            if marker > 0xC1:  # progressive, lossless, arithmetic
                return b""
            found = at
        at += 2 + int.from_bytes(data[at + 2 : at + 4])
    return b""
