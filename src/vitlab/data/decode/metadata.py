"""JPEG and PNG files without metadata; their EXIF orientation, and how to turn upright by it.

Malformed metadata then cannot fail, warn or cost time in a decoder.
"""

import struct

from vitlab.data.decode.pixels import Box, Pixels

BACK = {6: 8, 8: 6}  # what undoes a quarter turn; every other orientation undoes itself
_MAX_PARTS = 100_000  # segments or chunks; a 256 MB PNG in the usual 8 kB chunks has 33,000


def jpeg_parts(data: bytes) -> tuple[bytes, bytes]:
    """Return the file without application and comment segments, and the first EXIF block.

    JFIF (APP0) and Adobe (APP14) segments stay: they define how colors are stored.
    """
    view, exif, at = memoryview(data), b"", 2
    parts: list[bytes | memoryview] = [data[:2]]
    for _ in range(_MAX_PARTS):
        at = data.find(b"\xff", at)  # Pillow, too, skips bytes that belong to no segment
        if at < 0 or at + 4 > len(data):
            break
        marker = data[at + 1]
        if marker == 0xDA:  # start of scan: pixels to the end
            parts.append(view[at:])
            break
        if marker == 0xFF:  # padding
            at += 1
            continue
        if marker <= 0x01 or 0xD0 <= marker <= 0xD9:  # has no length
            at += 2
            continue
        end = at + 2 + int.from_bytes(data[at + 2 : at + 4])
        if marker == 0xE1 and not exif and data.startswith(b"Exif\0\0", at + 4):
            exif = data[at + 4 : end]
        if marker in (0xE0, 0xEE) or not (0xE0 <= marker <= 0xEF or marker == 0xFE):
            parts.append(view[at:end])
        at = end
    return b"".join(parts), exif


def png_parts(data: bytes) -> tuple[bytes, bytes, int]:
    """Return the file with only the chunks of its first frame, the EXIF block, and sBIT (0: none).

    The IDAT chunks are an animation's first frame, or the still image before it. EXIF may follow
    the pixels. sBIT says how many bits of each sample have a meaning; here the most of any color.
    """
    view, exif, at, bits = memoryview(data), b"", 8, 0
    parts: list[bytes | memoryview] = [data[:8]]
    for _ in range(_MAX_PARTS):
        if at + 8 > len(data):
            break
        length, kind = struct.unpack_from(">I4s", data, at)
        if kind in (b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND"):
            parts.append(view[at : at + 12 + length])
        elif kind == b"eXIf":
            exif = data[at + 8 : at + 8 + length]
        elif kind == b"sBIT":
            bits = max(data[at + 8 : at + 8 + min(length, 3)], default=0)
        at += 12 + length
    return b"".join(parts), exif, bits


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
            tag, kind = struct.unpack_from(order + "HH", exif, at)
            if tag == 274 and kind in (3, 4):
                (value,) = struct.unpack_from(order + ("H" if kind == 3 else "I"), exif, at + 8)
                return value if 1 <= value <= 8 else 1
    except struct.error:
        pass
    return 1


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
