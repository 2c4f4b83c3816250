"""Fast, strict JPEG decoding: at a reduced scale, and only the rows that some boxes need.

libjpeg-turbo (through simplejpeg) gives the same pixels as Pillow, at every scale. Its warnings are
treated as errors: a truncated or corrupt file is not filled up with gray. Compared with OpenCV,
kornia-rs and Pillow in docs/performance.md.
"""

import math
from collections.abc import Sequence

import numpy as np

from vitlab.data.decode import jpeg
from vitlab.data.decode.headers import exceeded
from vitlab.data.decode.jpeg_frame import Frame, frame_of
from vitlab.data.decode.metadata import BACK, turn, turn_box
from vitlab.data.decode.pixels import Box, ChooseBox, Pixels
from vitlab.errors import ImageError, UserError

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


def jpeg_boxes(
    data: bytes,
    max_pixels: int,
    choices: Sequence[ChooseBox],
    at_least: tuple[float, float],
    cut: bool = True,
) -> list[tuple[Pixels, Box]] | None:
    """Decode boxes and their surroundings by `jpeg.decode`, each scale once.

    Args:
        data: an image file
        max_pixels: the most that the image may have
        choices: the boxes, given the rows and columns of the upright image
        at_least: rows and columns that each box must have in the result
        cut: whether what lies below the boxes may be left out

    Returns:
        Upright pixels (rows, columns, 1 or 3) and the box within them, of each; within it they are
        the same for one box as for several. None where only Pillow can tell, or several boxes of
        an image that is turned have to be decoded each by itself.

    Raises:
        ImageError: a damaged JPEG.
    """
    frame = frame_of(data)
    if frame is None or exceeded(frame, data, max_pixels):
        return None
    turned = frame.orientation
    if len(choices) > 1 and turned > 1:
        return None
    parts = [_part(frame, choose, at_least) for choose in choices]
    lowest: dict[int, int] = {}
    for scale, until, _ in parts:
        lowest[scale] = max(until if cut else frame.rows, lowest.get(scale, 0))
    try:
        decoded = {scale: jpeg.decode(data, frame, scale, until) for scale, until in lowest.items()}
    except UserError:
        raise
    except ValueError:  # a warning that may be harmless
        return None
    return [
        (turn(decoded[scale], turned), turn_box(inside, turned, *decoded[scale].shape[:2]))
        for scale, _, inside in parts
    ]


def _part(frame: Frame, choose: ChooseBox, at_least: tuple[float, float]) -> tuple[int, int, Box]:
    """Return the scale to decode a box at, its last row, and where it then is, not yet turned."""
    rows, columns, orientation = frame.rows, frame.columns, frame.orientation
    upright = (columns, rows) if orientation >= 5 else (rows, columns)
    box = choose(*upright)
    left, top, right, bottom = turn_box(box, BACK.get(orientation, orientation), *upright)
    high, wide = reversed(at_least) if orientation >= 5 else at_least
    scale = jpeg.scale_for(right - left, bottom - top, wide, high)
    inside = (left / scale, top / scale, right / scale, bottom / scale)
    return scale, min(rows, math.ceil(bottom)), inside
