"""Fast, strict JPEG decoding: at a reduced scale, and only down to the last row needed.

libjpeg-turbo (through simplejpeg) gives the same pixels as Pillow, at every scale. Its warnings are
treated as errors: a truncated or corrupt file is not filled up with gray. Compared with OpenCV,
kornia-rs and Pillow in docs/performance.md.
"""

import numpy as np

from vitlab.data.decode.jpeg_frame import Frame
from vitlab.data.decode.pixels import Pixels
from vitlab.errors import ImageError

SCALES = (8, 4, 2)  # what libjpeg-turbo has fast transforms for
_SPARE = 2  # rows beyond the last one needed: its colors may be blended with those of the next
_END = b"\xff\xd9"
_UNREAD = "extraneous bytes before marker 0xd9"
_LOST = ("premature end", "bad huffman code", "instead of rst")


def scale_for(width: float, height: float, columns: float, rows: float) -> int:
    """Return the strongest reduction (8, 4, 2, 1) that leaves a box these columns and rows."""
    fits = (s for s in SCALES if width >= s * columns and height >= s * rows)
    return next(fits, 1)


def decode(data: bytes, frame: Frame, scale: int, until: int) -> Pixels:
    """Decode the upper part of a JPEG at 1/scale of its size.

    Args:
        data: a JPEG file
        frame: what its header states
        scale: 1, 2, 4 or 8
        until: the rows wanted, counted before scaling; more may come

    Returns:
        uint8 (n, ceil(columns / scale), 1 or 3), where n covers `until` rows at least.

    Raises:
        ImageError: data is missing or corrupt.
        ValueError: any other warning of libjpeg; the file may be sound.
    """
    rows, columns, gray = frame[:3]
    stop = until + _SPARE * scale
    # without an end it may be cut off behind those rows
    if stop < rows and frame.single and data.rfind(_END, frame.scan) > 0:
        try:
            return _decode(_shortened(data, frame, stop), stop, columns, gray, scale)
        except _UnreadError as rest:  # all the rows wanted are there, and nothing was wrong in them
            return rest.pixels
        except ValueError:
            pass  # as a whole it may be sound
    return _decode(data, rows, columns, gray, scale)


class _UnreadError(ValueError):
    """The rows asked for were decoded; bytes of later rows were left unread."""

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
            raise _UnreadError(pixels) from None
        if any(sign in reason.lower() for sign in _LOST):
            raise ImageError(f"damaged JPEG ({reason})") from None
        raise
    return pixels


def _shortened(data: bytes, frame: Frame, rows: int) -> bytes:
    """Return the file with fewer rows in its header.

    Of a file of a single scan without restart markers, libjpeg then complains of nothing but the
    bytes left between the last row and the end of the image.
    """
    view = memoryview(data)
    return b"".join((view[: frame.place], rows.to_bytes(2), view[frame.place + 2 :]))
