"""Image files, tables and archives as bytes, which tests of many rooms read."""

import io
import struct
import tarfile
import zipfile
import zlib
from typing import Any

from PIL import Image

from conftest import photo


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    """An image file by Pillow."""
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def png(seed: int, side: int = 16, tint: int = 0) -> bytes:
    """A small picture, by its number."""
    return encoded(photo(seed, side, side, tint))


def tarred(*members: tuple[str, bytes]) -> bytes:
    """A tar file of these members."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return stream.getvalue()


def zipped(*members: tuple[str, bytes]) -> bytes:
    """A zip of these members."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, content in members:
            archive.writestr(name, content)
    return stream.getvalue()


def chunk(kind: bytes, content: bytes) -> bytes:
    """A part of a PNG."""
    checksum = zlib.crc32(kind + content)
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", checksum)


def png_of(rows: int, columns: int, depth: int, color: int, lines: Any, *extra: bytes) -> bytes:
    """A PNG from its packed lines; `extra` chunks go before the pixels."""
    header = struct.pack(">IIBBBBB", columns, rows, depth, color, 0, 0, 0)
    pixels = zlib.compress(b"".join(b"\0" + bytes(line) for line in lines))
    parts = [chunk(b"IHDR", header), *extra, chunk(b"IDAT", pixels), chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def tiff_of(pixels: bytes, tags: dict[int, int | tuple[int, ...]], order: str = "<") -> bytes:
    """A plain one-strip TIFF; a tag's value is a number (32 bits) or a tuple (16 bits each)."""
    tags = {259: 1, 262: 1, 273: 8, 277: 1, 279: len(pixels), **tags}
    directory, tail = b"", b""
    at = 8 + len(pixels)
    after = at + 2 + 12 * len(tags) + 4
    for tag, value in sorted(tags.items()):
        if isinstance(value, int):
            directory += struct.pack(order + "HHII", tag, 4, 1, value)
            continue
        packed = struct.pack(f"{order}{len(value)}H", *value)
        if len(packed) > 4:
            packed, tail = struct.pack(order + "I", after + len(tail)), tail + packed
        directory += struct.pack(order + "HHI", tag, 3, len(value)) + packed.ljust(4, b"\0")
    start = struct.pack(order + "2sHI", b"II" if order == "<" else b"MM", 42, at)
    count = struct.pack(order + "H", len(tags))
    return start + pixels + count + directory + bytes(4) + tail
