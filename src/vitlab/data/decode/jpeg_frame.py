"""The header of a JPEG in one pass: size, colors and orientation, and where the rows are stated.

Pillow's reader takes five times as long. What is unusual in any way is left to it.
"""

from typing import NamedTuple

from vitlab.data.decode.metadata import orientation

_MOST = 1000  # segments; photos have about ten
_FRAMES = (0xC0, 0xC1, 0xC2)  # baseline, extended and progressive, all with Huffman codes
_TABLES = (0xC4, 0xDB, 0xFE)  # Huffman codes, quantization; comments
_SCAN, _RESTARTS, _EXIF, _ADOBE = 0xDA, 0xDD, 0xE1, 0xEE


class Frame(NamedTuple):
    """What the header of a JPEG states.

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
    """Return what the header of a JPEG file states; None if it is anything but a usual one.

    Usual is one frame of 8 bits and one or three components, Huffman codes, no stray bytes between
    the segments, and no color transform but YCbCr's (ITU-T T.81, annex B).
    """
    if data[:2] != b"\xff\xd8":
        return None
    at, place, kind, restarts, exif = 2, 0, 0, False, b""
    for _ in range(_MOST):
        head = data[at : at + 4]
        if len(head) < 4 or head[0] != 0xFF:
            return None
        marker, end = head[1], at + 2 + (head[2] << 8 | head[3])
        if marker == _SCAN:
            return _frame(data, kind, place, at, restarts, exif)
        if end < at + 4:
            return None
        if marker in _FRAMES:
            if place or end < at + 10:
                return None
            kind, place = marker, at + 5
        elif marker == _RESTARTS:
            restarts = True
        elif marker == _EXIF:
            if not exif and data.startswith(b"Exif\0\0", at + 4):
                exif = data[at + 4 : end]
        elif marker == _ADOBE and data.startswith(b"Adobe", at + 4):
            if data[at + 15 : at + 16] in (b"\0", b""):  # colors stored as RGB
                return None
        elif not (marker in _TABLES or 0xE0 <= marker <= 0xEF):
            return None
        at = end
    return None


def _frame(
    data: bytes, kind: int, place: int, scan: int, restarts: bool, exif: bytes
) -> Frame | None:
    """Read the frame header; the bytes before `place` are marker, length and bits."""
    if not place or data[place - 1] != 8:
        return None
    rows = int.from_bytes(data[place : place + 2])
    columns = int.from_bytes(data[place + 2 : place + 4])
    components, progressive = data[place + 4], kind == _FRAMES[2]
    if not rows or not columns or components not in (1, 3):
        return None
    together = data[scan + 4 : scan + 5] == bytes([components])
    return Frame(
        rows,
        columns,
        components == 1,
        orientation(exif),
        place,
        scan,
        progressive,
        together and not progressive and not restarts,
    )
