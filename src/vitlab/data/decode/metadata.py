"""Image files without their metadata: the parts that pixels need, and the EXIF orientation.

What follows the standards is left as it is. A file that is odd is handed on from there as it is: it
is for its decoder to refuse.
"""

import re
import struct
from collections.abc import Iterator

START, EXIF = 0xDA, 0xE1  # markers of JPEG segments: a scan, and what may be EXIF
ORIENTATION = 274  # a tag of TIFF and EXIF
_COLORS = {0xE0: 14, 0xEE: 12}  # application segments that say how colors are stored, their bytes
_KEYS = {0: (2,), 2: (6,), 3: range(1, 257)}  # bytes of a PNG's tRNS, by its kind of color
_MAX_PARTS = 100_000  # segments or chunks; a 256 MB PNG in the usual 8 kB chunks has 33,000
_CONTROL = b"\x21\xf9\4"  # of a GIF: its transparent color
# An item by ISO/IEC 14496-12, 8.11.6: version 2 or 3, flags, its number, no protection, its type.
_EXIF_ITEM = re.compile(rb"infe(?:\x02.{5}|\x03.{7})\0\0Exif", re.DOTALL)


def jpeg_parts(data: bytes) -> tuple[bytes, bytes]:
    """Return the file without application and comment segments, and the first EXIF block.

    JFIF (APP0) and Adobe (APP14) segments stay if they are as long as libjpeg asks for: they define
    how colors are stored.
    """
    view = memoryview(data)
    exif = b""
    parts: list[bytes | memoryview] = [data[:2]]
    for marker, at, end in jpeg_segments(data):
        if marker == EXIF and not exif and data.startswith(b"Exif\0\0", at + 4):
            exif = data[at + 4 : end]
        if marker in _COLORS:
            wanted = end - at - 4 >= _COLORS[marker]
        else:
            wanted = not (0xE0 <= marker <= 0xEF or marker == 0xFE)
        if wanted:
            parts.append(view[at:end])
    return b"".join(parts), exif


def jpeg_segments(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield marker, start and end of each segment; the last is the first scan, to the end."""
    at = 2
    for _ in range(_MAX_PARTS):
        at = data.find(b"\xff", at)  # Pillow, too, skips bytes that belong to no segment
        if at < 0 or at + 4 > len(data):
            return
        marker = data[at + 1]
        if marker == START:  # of a scan
            yield marker, at, len(data)
            return
        if marker == 0xFF:  # padding
            at += 1
        elif marker <= 0x01 or 0xD0 <= marker <= 0xD9:  # has no length
            at += 2
        else:
            end = at + 2 + int.from_bytes(data[at + 2 : at + 4])
            yield marker, at, end
            at = end


def png_parts(data: bytes) -> tuple[bytes, bytes]:
    """Return the file with only the chunks of its first frame, and the EXIF block.

    The IDAT chunks are an animation's first frame, or the still image before it. EXIF may follow
    the pixels. A transparent color of a length that its kind of pixels does not have is left out,
    as libpng does.
    """
    view = memoryview(data)
    exif = b""
    at = 8
    parts: list[bytes | memoryview] = [data[:8]]
    for _ in range(_MAX_PARTS):
        if at + 8 > len(data):
            break
        length, kind = struct.unpack_from(">I4s", data, at)
        wanted = kind in (b"IHDR", b"PLTE", b"IDAT", b"IEND")
        if wanted or (kind == b"tRNS" and length in _KEYS.get(data[25], ())):
            parts.append(view[at : at + 12 + length])
        elif kind == b"eXIf":
            exif = data[at + 8 : at + 8 + length]
        at += 12 + length
    return b"".join(parts), exif


def gif_parts(data: bytes) -> bytes:
    """Return the file without the extensions before its first picture but for the transparency."""
    at = 13 + (3 * 2 ** ((data[10] & 7) + 1) if len(data) > 10 and data[10] & 0x80 else 0)
    parts = [data[:at]]
    dropped = False
    for _ in range(_MAX_PARTS):
        if data[at : at + 1] != b"\x21":
            break
        start = at
        at = at + 2
        while at < len(data) and data[at]:  # its blocks, each after its length
            at += 1 + data[at]
        at += 1
        if data.startswith(_CONTROL, start):
            parts.append(data[start:at])
        else:
            dropped = True
    return b"".join([*parts, data[at:]]) if dropped else data


def avif_parts(data: bytes) -> bytes:
    """Return the file with its EXIF renamed, so that it is no EXIF.

    Its orientation does not count: the file says by transformations of its own how it is turned, as
    ISO/IEC 23008-12 has it, and Pillow goes by these.
    """
    found = _EXIF_ITEM.search(data)
    return data if found is None else data[: found.end() - 4] + b"free" + data[found.end() :]


def webp_size(data: bytes) -> tuple[int, int]:
    """Return columns and rows from the first chunk of a WebP file."""
    kind = data[12:16]
    if kind == b"VP8X":
        return 1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little")
    if kind == b"VP8L":
        bits = int.from_bytes(data[21:25], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    columns, rows = struct.unpack_from("<HH", data, 26)
    return columns & 0x3FFF, rows & 0x3FFF


def exif_bytes(value: object) -> bytes:
    """Return what a reader gives as EXIF, if it is any: it may be None, text or an object."""
    return bytes(value) if isinstance(value, bytes | bytearray | memoryview) else b""


def orientation(exif: bytes) -> int:
    """Return the orientation, 1 to 8, in the first directory of an EXIF block (1 if malformed)."""
    exif = exif.removeprefix(b"Exif\0\0")
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(exif[:4])
    if order is None:
        return 1
    try:
        (start,) = struct.unpack_from(order + "I", exif, 4)
        (count,) = struct.unpack_from(order + "H", exif, start)
        for at in range(start + 2, start + 2 + 12 * count, 12):
            tag, kind, amount = struct.unpack_from(order + "HHI", exif, at)
            if tag == ORIENTATION and kind in (3, 4) and amount:
                (value,) = struct.unpack_from(order + ("H" if kind == 3 else "I"), exif, at + 8)
                return value if 1 <= value <= 8 else 1
    except struct.error:
        pass
    return 1
