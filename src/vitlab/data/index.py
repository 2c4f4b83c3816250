"""Index of image files: what identifies each of them, as long as the file stays as it is.

An image is identified by 8 bytes (`hash_excerpt`), for which its file must be read. They are kept
in the cache with the state of the file (its name, size, times and inode), in a memory-mapped file
for each list of files: data that was seen before costs a `stat` a file. Files that have changed are
read again; a list that has changed takes what it can from others of its folder.
"""

import os
import time
from array import array
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitlab.data.chunks import read_in_chunks
from vitlab.data.column_file import Column, open_columns, write_columns
from vitlab.data.hashes import digest, number_of
from vitlab.data.identifier import Identifier
from vitlab.data.mark_hash import MarkHash
from vitlab.data.sources.image_files import ImageFiles
from vitlab.data.sources.paths import Names
from vitlab.data.target import Integers
from vitlab.files import follow_links
from vitlab.places import cache_folder

Hashes = NDArray[np.uint64]
PIECE = 8192  # bytes of the beginning, the middle and the end of a file that identify it
RECENT = 2 * 10**9  # nanoseconds: so young, a file may change again and keep its time
LISTS = 8  # that are kept of one folder
ASKED = 3  # of them, for files of a new list
UNUSED = 120 * 86_400  # seconds
SAVED = 300.0  # seconds between two looks at a long pass that may be killed
UNKNOWN = np.uint64(0)  # identity of a file that is not known, and state of one that is not there
READING = "identifying images"
LOOKING = "looking for changed files"
INODES = 2**63 - 1
ODD = np.uint64(0x9E3779B97F4A7C15)  # spreads numbers over all bits
FACTORS = np.random.default_rng(0).integers(2**64, size=4096, dtype=np.uint64)  # of a name's bytes
FOLDER = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC
CONTENT = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # a pipe is not waited for


class FileNumbers(NamedTuple):
    """What the system says of some files: arrays of a row each; zeros where one is not there.

    Attributes:
        sizes: in bytes
        times: of the last change, in nanoseconds
        states: hashes of the name, the size, the times and the inode
    """

    sizes: Integers
    times: Integers
    states: Hashes


class FileHashes(NamedTuple):
    """What was read of some files: arrays of a row each.

    Attributes:
        states: as in `FileNumbers`, but `UNKNOWN` where nothing is to be remembered
        identities: hashes of the contents, or of the paths of files that cannot be read
    """

    states: Hashes
    identities: Hashes


def identify_files(store: ImageFiles, rows: Integers) -> Hashes:
    """Return 8 bytes for each of some files, (n,): remembered, or read now.

    Args:
        store: the files of a list
        rows: of the files that are wanted
    """
    index = FileIndex(store)
    unread = rows if index.is_empty else index.recall(rows)
    if len(unread):
        index.read(unread)
    return index.identities[rows]


def recall_files(store: ImageFiles, rows: Integers, files: MarkHash) -> Hashes | None:
    """Return what identifies some files, (n,), where all are remembered; no image is opened.

    Args:
        store: the files of a list
        rows: of the files that are wanted
        files: gets what the system says of them
    """
    index = FileIndex(store)
    unread = index.recall(rows, files)
    return None if len(unread) else index.identities[rows]


FILES = Identifier(identify_files, recall_files)


# What is stored


class FileIndex:
    """What is remembered of a list of files below a folder.

    Args:
        store: the files

    Attributes:
        root: the folder
        names: of the files
        states: of the files when they were read, (n,); `UNKNOWN` of those that were not
        identities: of the files, (n,)
    """

    def __init__(self, store: ImageFiles) -> None:
        self.root = store.root
        names = store.paths if isinstance(store.paths, Names) else Names.of(store.paths)
        self.names = names
        self.prefix = digest(os.fsencode(follow_links(self.root))).hex()
        texts = digest(names.ends.tobytes()) + digest(bytes(names.text.data))
        self.file = index_folder() / f"{self.prefix}-{digest(texts).hex()}"
        columns = open_index(self.file)
        self.is_stored = bool(columns)
        if columns:
            names.map_from(self.file)
        blank = np.broadcast_to(UNKNOWN, len(names))
        self.states: Hashes = columns.get("states", blank)
        self.identities: Hashes = columns.get("identities", blank)

    @cached_property
    def neighbors(self) -> list[Path]:
        """The files of other lists of the same folder, the one that was used last first."""
        times = dict[Path, int]()
        with suppress(OSError):
            for file in index_folder().glob(f"{self.prefix}-*"):
                times[file] = file.stat().st_mtime_ns
        times.pop(self.file, None)
        return sorted(times, key=times.__getitem__, reverse=True)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is remembered of any list of the folder."""
        return not self.is_stored and not self.neighbors

    def recall(self, rows: Integers, mark: MarkHash | None = None) -> Integers:
        """Return those of some files that are not remembered as they are now.

        Args:
            rows: of the files
            mark: gets what the system says of them
        """
        is_known = np.zeros(len(rows), bool)
        others = [] if self.is_stored else self.neighbors[:ASKED]
        tables = [IndexTable(file) for file in others]
        for part, files in read_in_chunks(StateReader(self.root, self.names), rows, LOOKING):
            places = rows[part]
            if mark is not None:
                mark.add(encode_names(self.names, places), files.sizes, files.times)
            is_there = files.states != UNKNOWN
            is_known[part] = is_there & (self.states[places] == files.states)
            for table in tables:
                lost = np.flatnonzero(is_there & ~is_known[part])
                identities = table.look_up(files.states[lost])
                lost = lost[identities != UNKNOWN]
                self.add(places[lost], files.states[lost], identities[identities != UNKNOWN])
                is_known[part][lost] = True
        if tables and is_known.any():
            self.write()
        return rows[~is_known]

    def read(self, rows: Integers) -> None:
        """Read some files, and remember what identifies them."""
        is_new = False
        due = time.monotonic() + SAVED
        try:
            for part, hashes in read_in_chunks(FileReader(self.root, self.names), rows, READING):
                self.add(rows[part], hashes.states, hashes.identities)
                is_new = is_new or bool((hashes.states != UNKNOWN).any())
                if is_new and time.monotonic() > due:
                    self.write()
                    due = time.monotonic() + SAVED
        finally:  # also what was read before an interruption
            if is_new:
                self.write()

    def add(self, rows: Integers, states: Hashes, identities: Hashes) -> None:
        """Take over what was read of some files."""
        if not self.states.flags.writeable:
            self.states = self.states.copy()
            self.identities = self.identities.copy()
        self.states[rows] = states
        self.identities[rows] = identities

    def write(self) -> None:
        """Keep everything for other processes."""
        columns: dict[str, Column] = {"text": self.names.text, "ends": self.names.ends}
        columns |= {"states": self.states, "identities": self.identities}
        if write_columns(self.file, columns):
            self.names.map_from(self.file)
            for file in self.neighbors[LISTS - 1 :]:
                with suppress(OSError):
                    file.unlink(missing_ok=True)
            remove_unused(index_folder())


class IndexTable:
    """Identities by states, of a list of files.

    Args:
        file: of the list's index
    """

    def __init__(self, file: Path) -> None:
        columns = open_index(file)
        states: Hashes = columns.get("states", np.zeros(1, np.uint64))
        identities: Hashes = columns.get("identities", np.zeros(1, np.uint64))
        order = np.argsort(states)
        self.states = states[order]
        self.identities = identities[order]

    def look_up(self, states: Hashes) -> Hashes:
        """Return the identities of files, in any order; `UNKNOWN` where none has the state."""
        place = np.minimum(np.searchsorted(self.states, states), len(self.states) - 1)
        return np.where(self.states[place] == states, self.identities[place], UNKNOWN)


def open_index(file: Path) -> dict[str, Column]:
    """Map the index of a list of files, and note that it was used; nothing without a sound one.

    Returns:
        `text` and `ends` of `Names`, `states` and `identities`, as in `FileIndex`
    """
    columns = open_columns(file)
    if columns is None or {*columns} != {"text", "ends", "states", "identities"}:
        return {}
    with suppress(OSError):
        os.utime(file)
    return columns


def index_folder() -> Path:
    """Return the folder of the indices of all lists of files."""
    return cache_folder("index")


def remove_unused(folder: Path) -> None:
    """Remove files that were not used for months, of data that is likely gone."""
    oldest = time.time() - UNUSED
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):  # another process removed it
                if entry.stat().st_mtime < oldest:
                    Path(entry.path).unlink()


# Files


@dataclass(frozen=True)
class StateReader:
    """Asks the system about files of a list; sent to worker processes."""

    root: Path
    names: Names

    def __call__(self, rows: Integers) -> FileNumbers:
        """Return what the system says of some files, by their numbers."""
        folder = open_root(self.root)
        texts = encode_names(self.names, rows)
        numbers = array("q")
        try:
            for text in texts:
                try:
                    state = os.stat(text, dir_fd=folder)
                    numbers.extend(state_numbers(state))
                except (OSError, ValueError):  # it is not there, or no file can have this name
                    numbers.extend((0, 0, 0, 0))
        finally:
            close_root(folder)
        return hash_states(texts, numbers)


@dataclass(frozen=True)
class FileReader:
    """Reads what identifies files of a list; sent to worker processes."""

    root: Path
    names: Names

    def __call__(self, rows: Integers) -> FileHashes:
        """Return what identifies some files, by their numbers."""
        youngest = time.time_ns() - RECENT
        folder = open_root(self.root)
        texts = encode_names(self.names, rows)
        numbers = array("q")
        identities = array("Q")
        try:
            for text in texts:
                try:
                    state, identity = read_file(text, folder)
                    numbers.extend(state_numbers(state))
                    identities.append(identity)
                except (OSError, ValueError):
                    numbers.extend((0, 0, 0, 0))
                    path = self.root / os.fsdecode(text)
                    identities.append(number_of(os.fsencode(path)))
        finally:
            close_root(folder)
        files = hash_states(texts, numbers)
        states = np.where(files.times < youngest, files.states, UNKNOWN)
        return FileHashes(states, np.frombuffer(identities, np.uint64))


def read_file(name: bytes, folder: int) -> tuple[os.stat_result, int]:
    """Return the state of a file, and the number that identifies it.

    Raises:
        OSError: it cannot be read.
        ValueError: no file can have this name.
    """
    handle = os.open(name, CONTENT, dir_fd=folder)
    try:
        state = os.fstat(handle)
        return state, hash_excerpt(state.st_size, lambda start, size: os.pread(handle, size, start))
    finally:
        os.close(handle)


def hash_excerpt(size: int, read: Callable[[int, int], bytes]) -> int:
    """Return the number of 8 bytes that identifies some content.

    Of more than 24 KiB, it is of the size, the beginning, the middle and the end.

    Args:
        size: of the content
        read: returns bytes of it: from where, and how many
    """
    head = size.to_bytes(8)
    if size <= 3 * PIECE:
        return number_of(head + read(0, size))
    middle = read((size - PIECE) // 2, PIECE)
    return number_of(b"".join([head, read(0, PIECE), middle, read(size - PIECE, PIECE)]))


def open_root(root: Path) -> int:
    """Return a handle of a folder, from which paths are followed; -1 where there is none."""
    try:
        return os.open(root, FOLDER)
    except (OSError, ValueError):
        return -1


def close_root(handle: int) -> None:
    """Close a handle that `open_root` returned."""
    if handle >= 0:
        os.close(handle)


def encode_names(names: Names, rows: Integers) -> list[bytes]:
    """Return some names as the system has them."""
    ends = names.ends[rows]
    starts = np.where(rows > 0, names.ends[rows - 1], 0)
    text = names.text.data
    places = zip(starts.tolist(), ends.tolist(), strict=True)
    return [text[start:end].tobytes() for start, end in places]


def state_numbers(state: os.stat_result) -> tuple[int, int, int, int]:
    """Return the numbers of a file's state, which `hash_states` takes."""
    return state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino & INODES


def hash_states(names: Sequence[bytes], numbers: "array[int]") -> FileNumbers:
    """Return the sizes, times and states of files.

    Args:
        names: of the files
        numbers: size, times and inode of each; zeros where a file is not there
    """
    table = np.frombuffer(numbers, np.int64).reshape(-1, 4)
    states = hash_names(names)
    for column in table.T.astype(np.uint64):
        states = (states ^ column) * ODD
        states ^= states >> np.uint64(29)
    states[~table.any(1)] = UNKNOWN
    return FileNumbers(table[:, 0], table[:, 1], states)


def hash_names(names: Sequence[bytes]) -> Hashes:
    """Return 8 bytes for each name, (n,): the sum of its bytes, each by the factor of its place."""
    lengths = np.fromiter(map(len, names), np.int64, len(names))
    ends = np.cumsum(lengths)
    places = np.arange(lengths.sum()) - np.repeat(ends - lengths, lengths)
    values = np.frombuffer(b"".join(names), np.uint8).astype(np.uint64) + np.uint64(1)
    sums = np.cumsum(values * FACTORS[places % len(FACTORS)], dtype=np.uint64)
    sums = np.concatenate([np.zeros(1, np.uint64), sums])
    return sums[ends] - sums[ends - lengths]
