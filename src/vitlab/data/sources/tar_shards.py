"""WebDataset shards: tar files in which an image and its label share a name.

    00000017.jpg  00000017.cls        00000018.jpg  00000018.json ({"label": …} or {"labels": […]})

Every shard is indexed once, by its headers alone, so that any image can then be read by its number,
from a disk or over a network: batch k stays a pure function of (seed, k), which no stream of shards
through a shuffling buffer can be. Nothing is unpacked, unpickled or run. Indices are cached in
VITLAB_CACHE, else XDG_CACHE_HOME/vitlab, else ~/.cache/vitlab.
"""

import hashlib
import json
import os
import random
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from vitlab.data.cells import is_missing
from vitlab.data.decode.formats import (
    CLIPS,
    FORMATS,
    HEAD,
    LISTED,
    SUFFIXES,
    image_kind,
    unread_lines,
)
from vitlab.data.decode.headers import MAX_BYTES
from vitlab.data.folder_names import is_system_name
from vitlab.data.images import Images
from vitlab.data.settings import Columns
from vitlab.data.sources.cell_table import CellTable, open_rows
from vitlab.data.sources.file_tree import ARCHIVES, BESIDE, MOST_LOOKED_INTO
from vitlab.data.sources.folders import holds_images
from vitlab.data.sources.paths import Names, reason, some
from vitlab.data.sources.remote import THREADS, KeptParts, expand, read_part, read_whole, stamp
from vitlab.data.sources.request import (
    NO_LABELS,
    Found,
    Part,
    Request,
    by_split,
    split_file_lines,
)
from vitlab.data.sources.shards import Shards
from vitlab.data.sources.tar_folders import open_by_folder
from vitlab.data.sources.urls import is_url
from vitlab.data.target import Integers
from vitlab.errors import DataError, RefusedError, UserError
from vitlab.files import check_regular, read_bytes, write_text
from vitlab.places import cache_folder, note_cache_file
from vitlab.units import counted

CLASSES = "classes.txt"  # beside the shards: the classes by number, one name per line


def open_shards(request: Request) -> Found | None:
    """Open shards by name, glob, brace range or folder; None for other data."""
    data = request.data
    path = request.path
    if path.is_dir():  # beside photographs, an archive is something else
        files = [] if holds_images(path) else sorted(path.glob("*.tar"))
        places = [str(file) for file in files if not is_system_name(file.name)]
    else:
        places = expand(data if is_url(data) else str(path)) if data.endswith(".tar") else []
    if not places:
        return None
    kept = KeptParts.of(request.columns.cache_data, request.columns.cache_gb)
    groups = {split: (own, _index(own, kept)) for split, own in by_split(places).items()}
    train = groups["train"][0] if "train" in groups else []
    parts = list[Part]()
    notes = split_file_lines(train, data)
    for split, (own, index) in groups.items():
        name = split if len(groups) > 1 else ""
        found = _open_split(own, index, name, request)
        parts += found.parts
        notes += found.notes
    inside = _open_by_folder(parts, request)
    return Found(inside.parts, [*notes, *inside.notes]) if inside else Found(parts, notes)


def _open_by_folder(parts: Sequence[Part], request: Request) -> Found | None:
    """Return images with their folders as labels, if none has a label and these are classes."""
    found = list[Part]()
    notes = list[str]()
    for part in parts if request.target in ("label", "optional") else ():
        source = part.source
        by_folder = None
        if part.lacks and isinstance(source.store, Shards):
            by_folder = open_by_folder(source.store.keys, source, request, part.split)
        if by_folder is None:
            return None
        found += by_folder.parts
        notes += by_folder.notes
    return Found(found, list(dict.fromkeys(notes))) if found else None


@dataclass(frozen=True)
class IndexedShards:
    """The images of some shards, and what was found beside them.

    Attributes:
        images: without labels
        cells: with the label of each; None where there is none
        lacks: why the first without a label has none; empty if all have one
        others: how many files that are no images have which ending
        by_content: images whose endings are in no table
    """

    images: Images
    cells: list[Any]
    lacks: str
    others: Counter[str]
    by_content: int

    @property
    def has_labels(self) -> bool:
        """Whether any image has a label beside it."""
        return not all(map(is_missing, self.cells))


def _open_split(places: Sequence[str], index: IndexedShards, split: str, request: Request) -> Found:
    """Return all images in some shards, with the labels beside them.

    Raises:
        DataError: unknown labels.
    """
    bare = index.images
    labels = index.cells
    lacks = index.lacks
    notes = unread_lines(some(places), index.others)
    if index.by_content:
        images = counted(index.by_content, "image")
        notes.append(f"{images} of {some(places)} without a usual ending, by content")
    if request.target == "none":
        return Found([Part(bare, split)], notes)
    if not index.has_labels:
        return Found([Part(bare, split, f"{NO_LABELS}{lacks}")], notes)
    names = _class_names(places[0])
    table = CellTable(
        f"{request.data} {split}".strip(),
        ("image", "label"),
        lambda _: labels,
        bare.name,
        {"label": tuple(names)} if names else {},
        split=split,
    )
    wanted = "label" if request.target == "numbers" else request.target
    own = Columns(label_separator=request.columns.label_separator)
    found = open_rows(table, "image", bare, replace(request, columns=own, target=wanted))
    parts = [replace(part, lacks=lacks or part.lacks) if part.lacks else part
             for part in found.parts]  # fmt: skip
    return Found(parts, [*notes, *found.notes])


def _index(places: Sequence[str], kept: KeptParts | None) -> IndexedShards:
    """Find the images of shards.

    Raises:
        DataError: a shard that cannot be read, is damaged or empty, or two images of one name.
        SourceError: another machine, which has them, did not give them.
    """
    with ThreadPoolExecutor(THREADS if is_url(places[0]) else 1) as pool:  # to hide network latency
        # in an order of its own, so that processes that start together share the work by the cache
        order = random.Random().sample(range(len(places)), len(places))
        found = dict(zip(order, pool.map(lambda number: _pack(places[number]), order), strict=True))
    shards = [found[number] for number in range(len(places))]
    count = [len(shard.keys) for shard in shards]
    images = Shards(
        tuple(places),
        tuple(shard.stamp for shard in shards),
        np.repeat(np.arange(len(places), dtype=np.int32), count),
        np.concatenate([shard.offsets for shard in shards]),
        np.concatenate([shard.sizes for shard in shards]),
        Names.joined([shard.keys for shard in shards]),
        kept,
    )
    return IndexedShards(
        Images.of(images),
        list(chain.from_iterable(shard.labels for shard in shards)),
        next(filter(None, (shard.unlabeled for shard in shards)), ""),
        sum((shard.others for shard in shards), Counter[str]()),
        sum(shard.by_content for shard in shards),
    )


@dataclass(frozen=True)
class PackedIndex:
    """The index of one shard, as `Index` has it, in arrays."""

    keys: Names
    offsets: Integers
    sizes: Integers
    labels: list[Any]
    unlabeled: str
    stamp: str
    others: Counter[str]
    by_content: int


def _pack(place: str) -> PackedIndex:
    """Return the index of a shard in arrays: there may be millions of images."""
    index = index_shard(place)
    return PackedIndex(
        Names.of(index.keys),
        np.array(index.offsets, np.int64),
        np.array(index.sizes, np.int64),
        index.labels,
        index.unlabeled,
        index.stamp,
        Counter(index.others),
        index.by_content,
    )


def _class_names(place: str) -> list[str] | None:
    """Return the lines of `classes.txt` beside a shard; None if it does not exist."""
    beside = f"{place[: place.rfind('/') + 1]}{CLASSES}"
    try:
        own = (
            read_whole(beside, MAX_BYTES) if is_url(place) else read_bytes(Path(beside), MAX_BYTES)
        )
        text = own.decode("utf-8")
    except UnicodeDecodeError:
        raise DataError(f"{beside} is not UTF-8 text") from None
    except (OSError, RefusedError):  # it is optional
        return None
    names = text.replace("\r\n", "\n").removesuffix("\n").split("\n")
    if len(set(names)) != len(names) or not all(names):
        raise DataError(f"{beside} repeats a class, or has an empty line")
    return names


# Indices

LABELS = ("cls", "json", "txt")  # the first of these that exists has the label
_MAX_LABEL = 2**20  # bytes
MAX_MEMBERS = 10_000_000
_MAX_HEADERS = 2**20  # bytes of the headers of one member: long names, pax headers
_VERSION = 4
# bytes of a request for headers: of large members, and of small ones
_FEW = 2**12
_MANY = 2**20
_SMALL = 2**14  # bytes to the next header that are read rather than skipped


class DamagedError(DataError):
    """A damaged archive."""


@dataclass
class HeaderReader:
    """A shard as the file whose headers `tarfile` reads: forward, and a limited number of bytes.

    It is read a few kB at a time, or more where members are small: over a network, each is a
    request.

    Attributes:
        read_at: reads bytes of the shard, from an offset, and how many
        total: bytes of the shard
        left: bytes that may still be read for one member
        position: in the file
        last: what was read last, and where it begins
        start, window: what was read of the shard last
        size: of the next such read
    """

    read_at: Callable[[int, int], bytes]
    total: int
    left: int = _MAX_HEADERS
    position: int = 0
    last: tuple[int, bytes] = (0, b"")
    start: int = 0
    window: bytes = b""
    size: int = _FEW

    def at(self, offset: int, count: int) -> bytes:
        """Return some bytes from an offset on, fewer at the end."""
        end = min(offset + count, self.total)
        known = self.start + len(self.window)
        if not self.start <= offset <= end <= known:
            near = self.window and self.start <= offset < known + _SMALL
            self.size = min(2 * self.size, _MANY) if near else _FEW
            size = min(max(count, self.size), self.total - offset)
            self.start = offset
            self.window = self.read_at(offset, size) if size > 0 else b""
        return self.window[offset - self.start : end - self.start] if end > offset else b""

    def read(self, count: int) -> bytes:
        """Return some bytes of the headers of a member, fewer at the end."""
        self.left -= count
        if count < 0 or self.left < 0:
            raise ValueError(f"headers of more than {_MAX_HEADERS:,} bytes")
        data = self.at(self.position, count)
        self.last = self.position, data
        self.position += len(data)
        return data

    def seek(self, position: int) -> int:
        """Go to a position that is no further back than the last header."""
        if position < self.last[0]:
            raise ValueError("not a tar header")
        self.position = position
        return position

    def tell(self) -> int:
        """Return the position."""
        return self.position


def members(file: HeaderReader) -> Iterator[tarfile.TarInfo]:
    """Yield the regular files of an archive, in order; no member is taken out, no link followed.

    `tarfile` ends in silence at a damaged header: the block after the last member must be zeros.

    Raises:
        DamagedError: an invalid header, contents that reach beyond the end, or no end mark.
    """
    given: Any = file  # which has all that is used of a file
    try:
        with tarfile.open(fileobj=given, mode="r:", encoding="utf-8", errors="replace") as archive:
            for number, member in enumerate(archive):
                archive.members.clear()  # type: ignore[attr-defined]  # else it keeps all
                file.left = _MAX_HEADERS
                if number >= MAX_MEMBERS:
                    raise ValueError(f"more than {MAX_MEMBERS:,} members")
                if member.size < 0:
                    raise ValueError("not a tar header")
                if member.isreg() and not member.issparse():
                    yield member
    except (UserError, OSError):
        raise
    except Exception as error:  # on damaged headers `tarfile` raises several kinds
        what = str(error) if file.last[0] else "not a tar file"
        raise DamagedError(f"damaged at byte {file.last[0]:,}: {what}") from None
    start, block = file.last
    if block != bytes(tarfile.BLOCKSIZE):
        cut = "the archive is cut off: tar's closing blocks are missing"
        what = cut if len(block) < tarfile.BLOCKSIZE else "not a tar header"
        raise DamagedError(f"damaged at byte {start:,}: {what}")


@dataclass(frozen=True)
class Index:
    """The images of one shard: their keys, where their bytes lie, and their labels.

    Attributes:
        labels: the text, or the value in JSON, that has the label of each; None where there is none
        unlabeled: why the first image without a label has none; empty if all have one
        stamp: the state of the shard
        others: how many files that are no images have which ending
        by_content: how many images have an unlisted ending, or none
    """

    keys: list[str]
    offsets: list[int]
    sizes: list[int]
    labels: list[Any]
    unlabeled: str = ""
    stamp: str = ""
    others: dict[str, int] = field(default_factory=dict)
    by_content: int = 0


def index_shard(place: str) -> Index:
    """Return the index of a shard: from the cache, or by reading through its headers once.

    Raises:
        DataError: the shard is missing, damaged or empty.
        SourceError: another machine, which has it, did not give it.
    """
    try:
        with _opened(place) as (reader, state):
            key = f"{state} {sorted(SUFFIXES)}".encode()  # which packages may add to
            file = cache_folder("shards") / f"{hashlib.sha256(key).hexdigest()}.json"
            note_cache_file(file)
            if (cached := _load(file)) is not None:
                return cached
            index = replace(_scan(reader, place), stamp=state)
    except DamagedError as error:
        raise DataError(f"{place} is {error}") from None
    except OSError as error:
        raise DataError(f"cannot read {place}: {reason(error)}") from None
    with suppress(UserError):  # without a cache it is read through again
        write_text(file, json.dumps({"version": _VERSION, **vars(index)}))
    return index


class ShardMembers:
    """The members of a shard, as they are read through.

    Attributes:
        images: offset and size, by key: the name up to the first dot, as WebDataset has it
        dotted: images whose name has further dots: key to the first dot, to the last, and its place
        texts: what may be a label, by key and ending
        doubtful: files of unlisted endings that are images by their content, as `dotted`
        looked: how many such files were looked into
        others: how many files have which other ending
    """

    def __init__(self) -> None:
        """Begin without members."""
        self.images = dict[str, tuple[int, int]]()
        self.dotted = list[tuple[str, str, tuple[int, int]]]()
        self.doubtful = list[tuple[str, str, tuple[int, int]]]()
        self.looked = 0
        self.texts = dict[str, dict[str, bytes]]()
        self.others = Counter[str]()

    def add_image(self, key: str, where: tuple[int, int], place: str) -> None:
        """Add an image by its key.

        Raises:
            DataError: there is one already.
        """
        if key in self.images:
            raise DataError(f"{place} has two images named {key!r}")
        self.images[key] = where

    def add_dotted(self, place: str) -> dict[str, str]:
        """Add images with dots in their names, unless they accompany an image (a.jpg, a.seg.png).

        Returns:
            The key to the first dot of each image that was added, by its own key.
        """
        whole = {*self.images}
        shorter = dict[str, str]()
        for key, longer, where in self.dotted:
            if key in whole:
                self.others[f".{longer.rpartition('.')[2]}.*"] += 1
                continue
            self.add_image(longer, where, place)
            shorter[longer] = key
        return shorter

    def may_be_image(self, suffix: str) -> bool:
        """Return whether a file of this ending is to be looked into."""
        is_known = suffix in LISTED or suffix in CLIPS or suffix in ARCHIVES
        self.looked += not is_known
        return not is_known and self.looked <= MOST_LOOKED_INTO

    def add_doubtful(self, place: str) -> int:
        """Add images by content, unless they accompany an image; return how many."""
        whole = {*self.images}
        own = [each for each in self.doubtful if not whole & {*each[:2]}]
        for _, longer, where in own:
            self.add_image(longer, where, place)
        return len(own)


def _scan(reader: HeaderReader, place: str) -> Index:
    """Read through the headers of a shard."""
    found = ShardMembers()
    for member in members(reader):
        folders, _, base = member.name.removeprefix("./").rpartition("/")
        if not base or any(map(is_system_name, [base, *folders.split("/")])):
            continue
        folder = f"{folders}/" if folders else ""
        stem, _, kind = base.partition(".")
        long_stem, _, ending = base.rpartition(".")
        where = member.offset_data, member.size
        kind = kind.lower()
        ending = ending.lower()
        if f".{kind}" in SUFFIXES:
            found.add_image(folder + stem, where, place)
        elif long_stem and f".{ending}" in SUFFIXES:
            found.dotted.append((folder + stem, folder + long_stem, where))
        elif long_stem and ending in LABELS:
            key = folder + long_stem
            if ending in found.texts.setdefault(key, {}):
                raise DataError(f"{place} has {key}.{ending} twice")
            if member.size > _MAX_LABEL:
                raise DataError(f"{place}: {key}.{ending} has {member.size:,} bytes: not a label")
            found.texts[key][ending] = reader.at(member.offset_data, member.size)
        elif f".{ending}" not in BESIDE:
            suffix = f".{ending}" if long_stem else ""
            if found.may_be_image(suffix) and _is_image(reader, where):
                found.doubtful.append((folder + stem, folder + (long_stem or base), where))
            else:
                found.others[suffix or "no ending"] += 1
    shorter = found.add_dotted(place)
    by_content = found.add_doubtful(place)
    if not found.images:
        lines = "".join(f"; {line}" for line in unread_lines(place, found.others))
        raise DataError(f"{place} contains no images ({', '.join(sorted(SUFFIXES))}){lines}")
    labels = list[Any]()
    unlabeled = ""
    for key in found.images:
        texts = found.texts.get(key) or found.texts.get(shorter.get(key, key), {})
        try:
            labels.append(_label_cell(texts, f"{place} {key}"))
        except DataError as error:
            labels.append(None)
            unlabeled = unlabeled or str(error)
    offsets, sizes = zip(*found.images.values(), strict=True)
    return Index(
        [*found.images],
        [*offsets],
        [*sizes],
        labels,
        unlabeled,
        others=dict(found.others),
        by_content=by_content,
    )


def _is_image(reader: HeaderReader, where: tuple[int, int]) -> bool:
    """Return whether a member is an image that can be read, by its first bytes."""
    offset, size = where
    return image_kind(reader.at(offset, min(size, HEAD))) in FORMATS


def _label_cell(texts: dict[str, bytes], where: str) -> Any:
    """Return the text, or the value in JSON, that has the label of an image.

    Raises:
        DataError: there is none.
    """
    for kind in (kind for kind in LABELS if kind in texts):
        try:
            text = texts[kind].decode("utf-8").strip()
            row = json.loads(text) if kind == "json" else None
        except (ValueError, RecursionError):
            raise DataError(f"{where}.{kind} is not UTF-8 text, or not JSON") from None
        if kind != "json" and text and "\n" not in text:
            return text
        for key in ("labels", "label"):
            if isinstance(row, dict) and not is_missing(row.get(key)):
                return row[key]
    raise DataError(
        f"{where} has no label: put a .cls or .txt of one line beside it, "
        'or a .json with "label" or "labels"'
    )


@contextmanager
def _opened(place: str) -> Iterator[tuple[HeaderReader, str]]:
    """Open a local or remote shard: yields a reader of its headers, and a stamp of its state."""
    if is_url(place):
        state = stamp(place)
        yield HeaderReader(partial(read_part, place), state.size), state.text
        return
    check_regular(Path(place))
    with Path(place).open("rb", buffering=0) as file:
        found = os.fstat(file.fileno())
        own = f"{Path(place).resolve()} {found.st_size} {found.st_mtime_ns}"

        def read_at(offset: int, count: int) -> bytes:
            return os.pread(file.fileno(), count, offset)

        yield HeaderReader(read_at, found.st_size), own


def _load(file: Path) -> Index | None:
    """Return a cached index; None if there is none, or none that is valid."""
    with suppress(OSError, ValueError):
        stored: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        if stored.pop("version") == _VERSION:
            return Index(**stored)
    return None
