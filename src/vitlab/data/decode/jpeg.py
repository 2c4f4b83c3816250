"""Fast, strict JPEG decoding: at a reduced scale, and only the rows that some boxes need.

libjpeg-turbo (through simplejpeg) gives the same pixels as Pillow, at every scale. Its warnings are
treated as errors: a truncated or corrupt file is not filled up with gray. Compared with OpenCV,
kornia-rs and Pillow in docs/performance.md. The header is read here in one pass: Pillow's reader
takes five times as long. What is unusual in any way is left to it.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from vitlab.data.decode.headers import (
    BACK,
    MAX_BYTES,
    MAX_SCANS,
    SCAN,
    turn,
    turn_box,
)
from vitlab.data.decode.metadata import EXIF, START, jpeg_segments, orientation
from vitlab.data.decode.pixels import Box, ChooseBox, Pixels
from vitlab.errors import ImageError, UserError

SCALES = (8, 4, 2)  # what libjpeg-turbo has fast transforms for
_SPARE = 2  # rows beyond the last one needed: its colors may be blended with those of the next
_END = b"\xff\xd9"
_UNREAD = "extraneous bytes before marker 0xd9"
_LOST = ("premature end", "bad huffman code", "instead of rst")
_FRAMES = (0xC0, 0xC1, 0xC2)  # baseline, extended and progressive, all with Huffman codes
_TABLES = (0xC4, 0xDB, 0xFE)  # Huffman codes, quantization; comments
_RESTARTS, _ADOBE = 0xDD, 0xEE


class Frame(NamedTuple):
    """Facts of the header of a JPEG.

    Attributes:
        rows: as stored, before the orientation is applied
        columns: as stored
        gray: whether it has one component, else it has three in YCbCr, or RGB by their names
        orientation: of EXIF, 1 to 8
        place: of the two bytes that state the rows
        scan: where the first scan begins
        progressive: whether each pixel is refined by several scans
        single: whether all pixels are in one scan without restart markers
    """

    rows: int
    columns: int
    gray: bool
    orientation: int
    place: int
    scan: int
    progressive: bool
    single: bool


def frame_of(data: bytes) -> Frame | None:
    """Read the header of a JPEG file; None if it is anything but a usual one.

    Usual is one frame of 8 bits and one or three components, Huffman codes, no stray bytes between
    the segments, and no color transform but YCbCr's (ITU-T T.81, annex B).
    """
    if data[:2] != b"\xff\xd8":
        return None
    follows, place, restarts, exif = 2, 0, False, b""
    for marker, at, end in jpeg_segments(data):
        if at != follows or end < at + 4:
            return None
        if marker == START:
            break
        if marker in _FRAMES and not place and end >= at + 10:
            place = at + 5
        elif marker == _RESTARTS:
            restarts = True
        elif marker == EXIF:
            if not exif and data.startswith(b"Exif\0\0", at + 4):
                exif = data[at + 4 : end]
        elif marker == _ADOBE and data.startswith(b"Adobe", at + 4):
            if data[at + 15 : at + 16] in (b"\0", b""):  # colors stored as RGB
                return None
        elif not (marker in _TABLES or 0xE0 <= marker <= 0xEF):
            return None
        follows = end
    else:
        return None
    # before `place` are the marker, the length and the bits; after it rows, columns and components
    if not place or data[place - 1] != 8 or data[place + 4] not in (1, 3):
        return None
    rows, columns = (int.from_bytes(data[each : each + 2]) for each in (place, place + 2))
    if not rows or not columns:
        return None
    gray = data[place + 4] == 1
    progressive = data[place - 4] == _FRAMES[2]
    together = data[at + 4 : at + 5] == data[place + 4 : place + 5]
    single = together and not progressive and not restarts
    return Frame(rows, columns, gray, orientation(exif), place, at, progressive, single)


def exceeded(frame: Frame, data: bytes, max_pixels: int) -> bool:
    """Return whether a JPEG is larger than `headers.opened` allows, or seems to be; it says how."""
    passes = max(1, data.count(SCAN) / MAX_SCANS) if frame.progressive else 1
    return len(data) > MAX_BYTES or passes * frame.rows * frame.columns > max_pixels


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
    stop = until + _SPARE * scale
    # without an end it may be cut off behind those rows
    if stop < frame.rows and frame.single and data.rfind(_END, frame.scan) > 0:
        # with fewer rows in its header, libjpeg complains of nothing but the bytes left between the
        # last row and the end of such an image
        parts = data[: frame.place], stop.to_bytes(2), memoryview(data)[frame.place + 2 :]
        try:
            return _decode(b"".join(parts), frame, stop, scale)
        except ValueError:
            pass  # as a whole it may be sound
    return _decode(data, frame, frame.rows, scale)


def _decode(data: bytes, frame: Frame, rows: int, scale: int) -> Pixels:
    """Decode a file whose header states so many rows, which may be fewer than it has."""
    import simplejpeg

    shape = (-(-rows // scale), -(-frame.columns // scale), 1 if frame.gray else 3)
    pixels = np.empty(shape, np.uint8)
    try:
        simplejpeg.decode_jpeg(
            data,
            colorspace="GRAY" if frame.gray else "RGB",
            # of full size 0, since a picture of few pixels has as many at 7/8
            min_height=shape[0] if scale > 1 else 0,
            min_width=shape[1] if scale > 1 else 0,
            min_factor=1,
            buffer=pixels,
            strict=True,
        )
    except ValueError as error:
        reason = str(error)
        if _UNREAD in reason and rows < frame.rows:
            return pixels  # all the rows wanted are there, and nothing was wrong in them
        if any(sign in reason.lower() for sign in _LOST):
            raise ImageError(f"damaged JPEG ({reason})") from None
        raise
    return pixels


def jpeg_boxes(
    data: bytes,
    max_pixels: int,
    choices: Sequence[ChooseBox],
    at_least: tuple[float, float],
    cut: bool = True,
) -> list[tuple[Pixels, Box]]:
    """Decode boxes and their surroundings by `decode`, each scale once.

    Args:
        data: an image file
        max_pixels: the most that the image may have
        choices: the boxes, given the rows and columns of the upright image
        at_least: rows and columns that each box must have in the result
        cut: whether what lies below the boxes may be left out

    Returns:
        Upright pixels (rows, columns, 1 or 3) and the box within them, of each; within it they are
        the same for one box as for several. Empty where only Pillow can tell, or several boxes of
        an image that is turned have to be decoded each by itself.

    Raises:
        ImageError: a damaged JPEG.
    """
    frame = frame_of(data)
    if frame is None or exceeded(frame, data, max_pixels):
        return []
    turned = frame.orientation
    if len(choices) > 1 and turned > 1:
        return []
    parts = [_part(frame, choose, at_least) for choose in choices]
    lowest: dict[int, int] = {}
    for scale, until, _ in parts:
        lowest[scale] = max(until if cut else frame.rows, lowest.get(scale, 0))
    try:
        decoded = {scale: decode(data, frame, scale, until) for scale, until in lowest.items()}
    except UserError:
        raise
    except ValueError:  # a warning that may be harmless
        return []
    return [
        (turn(decoded[scale], turned), turn_box(inside, turned, *decoded[scale].shape[:2]))
        for scale, _, inside in parts
    ]


def _part(frame: Frame, choose: ChooseBox, at_least: tuple[float, float]) -> tuple[int, int, Box]:
    """Return the scale to decode a box at, its last row, and where it then is, not yet turned."""
    rows = frame.rows
    columns = frame.columns
    orientation = frame.orientation
    upright = (columns, rows) if orientation >= 5 else (rows, columns)
    box = choose(*upright)
    left, top, right, bottom = turn_box(box, BACK.get(orientation, orientation), *upright)
    high, wide = reversed(at_least) if orientation >= 5 else at_least
    scale = scale_for(right - left, bottom - top, wide, high)
    inside = (left / scale, top / scale, right / scale, bottom / scale)
    return scale, min(rows, math.ceil(bottom)), inside
