"""Zips of eight images, with other members, and changed byte by byte."""

import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

from made_files import png

Writer = Callable[[zipfile.ZipFile], None]


def plain(archive: zipfile.ZipFile, classes: str = "ab", count: int = 4) -> None:
    """Eight images."""
    for kind in classes:
        for n in range(count):
            archive.writestr(f"{kind}/{n}.png", png(n))


def added(*members: tuple[str | zipfile.ZipInfo, bytes]) -> Writer:
    """Eight images and other members."""

    def write(archive: zipfile.ZipFile) -> None:
        plain(archive)
        for name, data in members:
            archive.writestr(name, data)

    return write


def info(name: str, mode: int = 0, **changed: int) -> zipfile.ZipInfo:
    """A member with other facts."""
    found = zipfile.ZipInfo(name)
    found.external_attr = mode << 16
    for key, value in changed.items():
        setattr(found, key, value)
    return found


def patched(find: bytes, put: bytes, count: int = -1) -> Callable[[bytes], bytes]:
    """Bytes with others in place of some."""

    def change(data: bytes) -> bytes:
        assert find in data
        return data.replace(find, put, count)

    return change


def at(place: int, put: bytes, mark: bytes = b"PK\1\2") -> Callable[[bytes], bytes]:
    """Bytes with others at a place of the first entry of the directory."""

    def change(data: bytes) -> bytes:
        start = data.index(mark) + place
        return data[:start] + put + data[start + len(put) :]

    return change


def same(data: bytes) -> bytes:
    return data


def write(file: Path, writer: Writer, change: Callable[[bytes], bytes] = same) -> str:
    """A zip with changed bytes."""
    with warnings.catch_warnings(), zipfile.ZipFile(file, "w") as archive:
        warnings.simplefilter("ignore")  # of a name that is there twice
        writer(archive)
    file.write_bytes(change(file.read_bytes()))
    return str(file)
