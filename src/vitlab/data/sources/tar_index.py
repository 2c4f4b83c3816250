"""Index of a tar shard: the places of its images, read from the headers once and cached.

The folder is VITLAB_CACHE, else XDG_CACHE_HOME/vitlab, else ~/.cache/vitlab. The reader of headers
takes no member out, and follows no link.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from vitlab.data.decode.formats import SUFFIXES
from vitlab.data.labels import Label
from vitlab.data.sources.columns import SEPARATOR, label_in
from vitlab.data.sources.remote import is_url, read_part, reason, stamp
from vitlab.errors import DataError, UserError
from vitlab.files import check_regular, write_text
from vitlab.places import cache_folder

BLOCK = 512
MAX_MEMBERS = 10_000_000
MAX_HEADER = 2**20  # bytes of a long name, or of a pax header

Read = Callable[[int, int], bytes]
"""Read bytes of a file: from an offset, and how many (fewer at its end)."""


class DamagedError(Exception):
    """What is wrong with an archive, and at which byte."""

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(f"damaged at byte {offset:,}: {reason}")


@dataclass(frozen=True)
class Member:
    """A regular file in an archive: its name, where its bytes begin and how many they are."""

    name: str
    offset: int
    size: int


def members(read: Read, total: int) -> Iterator[Member]:
    """Yield the regular files of an archive of `total` bytes, in order.

    Raises:
        DamagedError: an invalid header, contents that reach beyond the end, or no end mark.
    """
    offset, name, size = 0, b"", -1  # the latter two where an extra header gives them
    for _ in range(MAX_MEMBERS):
        block = read(offset, BLOCK)
        if len(block) < BLOCK:
            raise DamagedError(offset, "the archive is cut off: tar's closing blocks are missing")
        if not block.strip(b"\0"):
            return
        kind = block[156:157]
        length = _number(block[124:136])
        if not _sound(block) or length < 0:
            raise DamagedError(offset, "not a tar header" if offset else "not a tar file")
        extra = kind in (b"L", b"x")
        if not extra and size >= 0:
            length = size
        if (start := offset + BLOCK) + length > total:
            raise DamagedError(
                offset, f"the file ends before the {length:,} bytes that should follow"
            )
        if extra:
            if length > MAX_HEADER:
                raise DamagedError(offset, f"an implausible header of {length:,} bytes")
            content = read(start, length)
            if kind == b"L":
                name = content.rstrip(b"\0")
            else:
                name, size = _pax(content, name, size)
        elif kind not in (b"g", b"K"):  # neither a global header nor a link's target
            if kind in (b"0", b"\0", b"7"):
                yield Member((name or _short_name(block)).decode("utf-8", "replace"), start, length)
            name, size = b"", -1
        offset = start + -(-length // BLOCK) * BLOCK
    raise DamagedError(offset, f"more than {MAX_MEMBERS:,} members")


def _sound(block: bytes) -> bool:
    """Return whether the header's checksum is right (old programs wrote signed sums)."""
    stored = _number(block[148:156])
    rest = block[:148] + b" " * 8 + block[156:]
    total = sum(rest)
    return stored == total or stored == total - 256 * sum(byte > 127 for byte in rest)


def _number(field: bytes) -> int:
    """Return an octal or binary number; -1 for anything else."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:])
    digits = field.strip(b" \0")
    return int(digits, 8) if re.fullmatch(rb"[0-7]+", digits) else 0 if not digits else -1


def _short_name(block: bytes) -> bytes:
    """Return the name of at most 100 bytes, after its prefix in ustar archives."""
    name = block[:100].split(b"\0")[0]
    prefix = block[345:500].split(b"\0")[0] if block[257:263] == b"ustar\0" else b""
    return prefix + b"/" + name if prefix else name


def _pax(content: bytes, name: bytes, size: int) -> tuple[bytes, int]:
    """Return name and size from a pax header, or those given if it has none."""
    at = 0
    while found := re.compile(rb"(\d{1,9}) ([^=]+)=").match(content, at):
        end = at + int(found[1])
        value = content[found.end() : end - 1]
        if end <= found.end():
            break
        if found[2] == b"path":
            name = value
        elif found[2] == b"size" and value.isdigit() and len(value) < 19:
            size = int(value)
        at = end
    return name, size


LABELS = ("cls", "json", "txt")  # the first of these that exists has the label
_MAX_LABEL = 2**20  # bytes
_VERSION = 2
_FEW, _MANY = 2**12, 2**20  # bytes of a request for headers: of large members, and of small ones
_SMALL = 2**14  # bytes to the next header that are read rather than skipped


@dataclass(frozen=True)
class Index:
    """The images of one shard: their keys, where their bytes lie, and their labels.

    Attributes:
        unlabeled: why the first image without a label has none; empty if all have one
        stamp: the state of the shard
    """

    keys: list[str]
    offsets: list[int]
    sizes: list[int]
    labels: list[Label | None]
    unlabeled: str = ""
    stamp: str = ""


def index_shard(place: str) -> Index:
    """Return the index of a shard: from the cache, or by reading through its headers once.

    Raises:
        DataError: the shard is missing, damaged or empty.
        SourceError: another machine, which has it, did not give it.
    """
    try:
        with _opened(place) as (read, total, state):
            file = cache_folder("shards") / f"{hashlib.sha256(state.encode()).hexdigest()}.json"
            if (cached := _load(file)) is not None:
                return cached
            index = replace(_scan(read, total, place), stamp=state)
    except DamagedError as error:
        raise DataError(f"{place} is {error}") from None
    except OSError as error:
        raise DataError(f"cannot read {place}: {reason(error)}") from None
    with suppress(UserError):  # without a cache it is read through again
        write_text(file, json.dumps({"version": _VERSION, **vars(index)}))
    return index


def _scan(read: Read, total: int, place: str) -> Index:
    """Read through the headers of a shard."""
    images: dict[str, tuple[int, int]] = {}
    texts: dict[str, dict[str, bytes]] = {}
    prefixes: dict[str, str] = {}  # of the keys in each folder: paths are slow to take apart
    for member in members(read, total):
        base = member.name.rpartition("/")[2]
        stem, _, kind = base.partition(".")
        if not stem:  # hidden, or a folder
            continue
        head, kind = member.name[: -len(base)], kind.lower()
        if head not in prefixes:
            prefixes[head] = str(PurePosixPath(head, "x"))[:-1]
        key = prefixes[head] + stem
        if f".{kind}" in SUFFIXES:
            if key in images:
                raise DataError(f"{place} has two images named {key!r}")
            images[key] = member.offset, member.size
        elif kind in LABELS:
            if kind in texts.setdefault(key, {}):
                raise DataError(f"{place} has {key}.{kind} twice")
            if member.size > _MAX_LABEL:
                raise DataError(f"{place}: {key}.{kind} has {member.size:,} bytes: not a label")
            texts[key][kind] = read(member.offset, member.size)
    if not images:
        raise DataError(f"{place} contains no images ({', '.join(sorted(SUFFIXES))})")
    labels: list[Label | None] = []
    unlabeled = ""
    for key in images:
        try:
            labels.append(_label(texts.get(key, {}), f"{place} {key}"))
        except DataError as error:
            labels.append(None)
            unlabeled = unlabeled or str(error)
    offsets, sizes = zip(*images.values(), strict=True)
    return Index(list(images), list(offsets), list(sizes), labels, unlabeled)


def _label(texts: dict[str, bytes], where: str) -> Label:
    """Return the label among an image's members."""
    for kind in (kind for kind in LABELS if kind in texts):
        try:
            text = texts[kind].decode("utf-8").strip()
            row = json.loads(text) if kind == "json" else None
        except (ValueError, RecursionError):
            raise DataError(f"{where}.{kind} is not UTF-8 text, or not JSON") from None
        if kind != "json" and text and "\n" not in text:
            return text
        for key, separator in (("labels", SEPARATOR), ("label", "")):
            if isinstance(row, dict) and key in row:
                return label_in(row[key], separator, f"{where}.json")
    raise DataError(
        f"{where} has no label: put a .cls or .txt of one line beside it, "
        'or a .json with "label" or "labels"'
    )


@contextmanager
def _opened(place: str) -> Iterator[tuple[Read, int, str]]:
    """Open a local or remote file: yields how to read it, its size, and a stamp of its state."""
    if is_url(place):
        state = stamp(place)
        yield _Headers(place, state.size).read, state.size, state.text
        return
    check_regular(Path(place))
    with Path(place).open("rb", buffering=0) as file:
        found = os.fstat(file.fileno())
        own = f"{Path(place).resolve()} {found.st_size} {found.st_mtime_ns}"
        yield lambda offset, count: os.pread(file.fileno(), count, offset), found.st_size, own


@dataclass
class _Headers:
    """Reads the headers of a remote shard: a few kB at a time, or more where members are small.

    Attributes:
        place, total: the shard, and its size
        start, data: what was read last
        size: of a request
    """

    place: str
    total: int
    start: int = 0
    data: bytes = b""
    size: int = _FEW

    def read(self, offset: int, count: int) -> bytes:
        """Return some bytes, fewer at the end."""
        end, known = min(offset + count, self.total), self.start + len(self.data)
        if not self.start <= offset <= end <= known:
            near = self.data and self.start <= offset < known + _SMALL
            self.size = min(2 * self.size, _MANY) if near else _FEW
            size = min(max(count, self.size), self.total - offset)
            self.start, self.data = offset, read_part(self.place, offset, max(0, size))
        return self.data[offset - self.start : end - self.start]


def _load(file: Path) -> Index | None:
    """Return a cached index; None if there is none, or none that is valid."""
    try:
        stored: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        if stored.pop("version") != _VERSION:
            return None
        index = Index(**stored)
        lengths = {len(each) for each in (index.keys, index.offsets, index.sizes, index.labels)}
        whole = all(type(number) is int and number >= 0 for number in index.offsets + index.sizes)
        spelled = all(isinstance(label, str | list | None) for label in index.labels)
        return index if len(lengths) == 1 and whole and spelled else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
