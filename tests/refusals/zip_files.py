"""Zips that are refused: cut off, encrypted, compressed in other ways, or made to harm."""

import struct
from collections.abc import Callable
from pathlib import Path

from made_files import png
from made_zips import Writer, added, at, info, patched, plain, same, write
from refusals.files import register


def doubled_directory(data: bytes) -> bytes:
    """Every entry of the directory twice: members share their bytes."""
    start, end = data.index(b"PK\1\2"), data.rindex(b"PK\5\6")
    directory = data[start:end].replace(b"a/", b"c/").replace(b"b/", b"d/") + data[start:end]
    tail = struct.pack("<4H2IH", 0, 0, 16, 16, len(directory), start, 0)
    return data[:start] + directory + b"PK\5\6" + tail


ZIPS: dict[str, tuple[Writer, Callable[[bytes], bytes]]] = {
    "empty-file": (plain, lambda data: b""),
    "text": (plain, lambda data: b"hello" * 100),
    "no-members": (lambda archive: None, same),
    "cut-off": (plain, lambda data: data[: len(data) // 2]),
    "cut-off-in-the-directory": (plain, lambda data: data[:-40]),
    "garbage-after": (plain, lambda data: data + bytes(70_000)),
    "directory-elsewhere": (plain, patched(b"PK\1\2", b"PK\1\3")),
    "encrypted": (plain, at(8, b"\1\0")),
    "Deflate64": (plain, at(10, b"\x09\0")),
    "bzip2": (plain, at(10, b"\x0c\0")),
    "unknown-method": (plain, at(10, b"\x63\0")),
    "another-disk": (plain, at(34, b"\2\0")),
    "overlapping-members": (plain, doubled_directory),
    "a-member-behind-the-directory": (plain, at(42, b"\xff\xff\xff\x0f")),
    "a-member-of-4-GB": (plain, at(20, b"\xf0\xff\xff\xff")),
    "the-same-name-twice": (added(("a/0.png", png(9))), same),
    "name-in-no-encoding": (added((info("ü/1.png"), b"")), patched(b"\xc3\xbc", b"\xff\xff")),
    "zips-alone": (lambda archive: archive.writestr("train.zip", b"PK"), same),
    "one-class": (lambda archive: plain(archive, "a"), same),
    "classes-and-loose": (lambda archive: archive.writestr("1.png", png(1)), same),
}


@register
def zips(folder: Path) -> None:
    """All of them, by what is wrong."""
    for name, (writer, change) in ZIPS.items():
        write(folder / f"{name}.zip", writer, change)
