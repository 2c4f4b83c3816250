"""Paths of images: millions of them in two arrays, and which of them a list may name.

And reading one, and naming some.
"""

import codecs
import errno
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitlab.data.column_file import open_columns
from vitlab.data.decode.headers import MAX_BYTES
from vitlab.errors import DataError, ImageError
from vitlab.files import follow_links, read_bytes

SHOWN = 3  # names that a line lists


def some(names: Sequence[str]) -> str:
    """Return the first names of a list, for a message."""
    return ", ".join(names[:SHOWN]) + (", …" if len(names) > SHOWN else "")


def read_image(file: Path, name: str) -> bytes:
    """Return the bytes of an image file.

    Raises:
        ImageError: it cannot be read, or is too large.
    """
    try:
        return read_bytes(file, MAX_BYTES)
    except (OSError, ValueError) as error:
        raise ImageError(f"{name}: {reason(error)}") from None


def read_text(file: Path, limit: int) -> str:
    """Return the text of a file beside images: a list, names.

    UTF-8, or UTF-16 with its mark, as spreadsheets on Windows write it.

    Raises:
        DataError: it cannot be read, is too large, or is in another encoding.
    """
    try:
        content = read_bytes(file, limit)
    except OSError as error:
        raise DataError(f"cannot read {file}: {reason(error)}") from None
    return decode_text(content, str(file))


def decode_text(content: bytes, title: str) -> str:
    """Return the text of a file, as `read_text`.

    Raises:
        DataError: it is in another encoding.
    """
    marks = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
    encoding = "utf-16" if content.startswith(marks) and len(content) % 2 == 0 else "utf-8-sig"
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        raise DataError(
            f"cannot read {title}: it is not UTF-8 text (byte {error.start:,}): save it as UTF-8 "
            "(in Excel, CSV UTF-8)"
        ) from None


@dataclass(frozen=True, eq=False)
class Names(Sequence[str]):
    """A sequence of texts: their bytes, concatenated, and where each ends."""

    text: NDArray[np.uint8]
    ends: NDArray[np.int64]
    _file: list[Path] = field(default_factory=list, init=False, repr=False)  # that has them, too

    def map_from(self, file: Path) -> None:
        """Take the same names from a file of columns, which a spawned process is sent instead."""
        columns = open_columns(file, check=False)
        if columns is not None:
            object.__setattr__(self, "text", columns["text"])
            object.__setattr__(self, "ends", columns["ends"])
            self._file[:] = [file]

    def __reduce__(self) -> tuple[Any, ...]:
        """Send the path of a file that has the names, or, without one, the names."""
        if self._file and open_columns(self._file[0], check=False) is not None:
            return names_in, (self._file[0],)
        return Names, (np.array(self.text), np.array(self.ends))

    @classmethod
    def of(cls, texts: Iterable[str]) -> "Names":
        """Pack texts; file names that are not valid Unicode are preserved."""
        pieces = [os.fsencode(text) for text in texts]
        text = np.frombuffer(b"".join(pieces), np.uint8)
        return cls(text, np.cumsum([len(piece) for piece in pieces], dtype=np.int64))

    @classmethod
    def joined(cls, parts: Sequence["Names"]) -> "Names":
        """Return the texts of several sequences, one after the other."""
        starts = np.cumsum([0, *(len(part.text) for part in parts)])
        ends = [part.ends + start for part, start in zip(parts, starts, strict=False)]
        return cls(np.concatenate([part.text for part in parts]), np.concatenate(ends))

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, index: int) -> str:  # type: ignore[override]  # no slices
        place = range(len(self))[index]  # resolves negative indices, refuses those out of range
        start = self.ends[place - 1] if place else 0
        return os.fsdecode(self.text[start : self.ends[place]].tobytes())


def names_in(file: Path) -> Names:
    """Return the names in a file of columns.

    Raises:
        DataError: it is not there any more.
    """
    columns = open_columns(file, check=False)
    if columns is None:
        raise DataError(f"{file} was removed while it was used: try again")
    names = Names(columns["text"], columns["ends"])
    names.map_from(file)
    return names


@dataclass
class Inside:
    """Which paths are inside of some folders, links followed.

    A list or a table often comes from elsewhere: it must not decide which files of this machine are
    read. (The files in class folders are not named by a list; links among them are the user's own,
    and are followed.)

    Attributes:
        roots: the folders; paths are relative to the first
        anywhere: the user trusts the list or table, so that every path will do
    """

    roots: tuple[Path, ...]
    anywhere: bool = False
    _known: dict[str, bool] = field(default_factory=dict)  # folders that were looked at

    def holds(self, path: Path) -> bool:
        """Return whether a path, absolute or relative to the working folder, is inside."""
        if self.anywhere:
            return True
        folder, name = os.path.split(path)
        if folder not in self._known:
            self._known[folder] = self._is_inside(Path(folder))
        if name in ("", os.curdir, os.pardir) or os.path.islink(path):  # noqa: PTH114
            return self._is_inside(path)
        return self._known[folder]

    def _is_inside(self, path: Path) -> bool:
        try:
            whole = follow_links(path)
            roots = [follow_links(root) for root in self.roots]
        except (OSError, ValueError):  # a null character, for example
            return False
        return any(whole.is_relative_to(root) for root in roots) and not _is_ring(whole)


def _is_ring(path: Path) -> bool:
    """Return whether a path of followed links has a ring of them."""
    try:
        path.stat()
    except OSError as error:
        return error.errno == errno.ELOOP
    return False


def reason(error: BaseException) -> str:
    """Return in a few words why a file could not be read."""
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    if isinstance(error, FileNotFoundError):
        text = "no such file"
    return " ".join(str(text).split())[:200]
