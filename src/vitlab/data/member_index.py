"""Index of images in archives and tables: what identifies each, as long as its file stays as it is.

The identities of the images that one file holds are kept in the cache as one column, named after
the state of that file and the places of the images in it.
"""

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitlab.data.chunks import read_in_chunks
from vitlab.data.column_file import open_columns, write_columns
from vitlab.data.hashes import digest, number_of
from vitlab.data.identifier import Identifier
from vitlab.data.index import READING, RECENT, UNKNOWN, Hashes, hash_excerpt, remove_unused
from vitlab.data.mark_hash import MarkHash
from vitlab.data.sources.containers import CellFileImage, Contained, Container
from vitlab.data.sources.shards import Shards
from vitlab.data.stores import Store
from vitlab.data.target import Integers
from vitlab.errors import DataError
from vitlab.places import cache_folder

KEPT = "identities"  # the only column


class MemberHashes(NamedTuple):
    """What identifies some images, and whether the state of their files tells it again, (n,)."""

    identities: Hashes
    is_lasting: NDArray[np.bool_]


def identify_members(source: Store, rows: Integers) -> Hashes:
    """Return 8 bytes for each of some images, (n,): remembered, or read now.

    Args:
        source: any; what is read of one that is not `Contained` is not remembered
        rows: of the images that are wanted
    """
    containers = source.containers() if isinstance(source, Contained) else []
    files = [(container, find_file(container)) for container in containers]
    every = recall_all(files, len(source))
    identities = every[rows]
    unread = np.flatnonzero(identities == UNKNOWN)
    is_new = np.zeros(len(source), bool)
    try:
        for part, hashes in read_in_chunks(MemberReader(source), rows[unread], READING):
            identities[unread[part]] = hashes.identities
            lasting = rows[unread[part]][hashes.is_lasting]
            every[lasting] = hashes.identities[hashes.is_lasting]
            is_new[lasting] = True
    finally:  # also what was read before an interruption
        for container, file in files:
            if file and is_new[container.rows].any() and find_file(container) == file:
                write_columns(file, {KEPT: every[container.rows]})
    if is_new.any():
        remove_unused(member_folder())
    return identities


def recall_members(source: Contained, rows: Integers, mark: MarkHash) -> Hashes | None:
    """Return what identifies some images, (n,), where all are remembered; none is read.

    Args:
        source: their archives or tables
        rows: of the images that are wanted
        mark: gets what the system says of the files
    """
    containers = source.containers()
    files = [(container, find_file(container)) for container in containers]
    every = recall_all(files, sum(len(each.places) for each in containers))
    mark.is_whole &= len(every) > int(rows.max(initial=0))
    for container in containers:
        try:
            states = [Path(file).stat() for file in container.files]
        except (OSError, ValueError):
            mark.is_whole = False
            return None
        sizes = np.array([state.st_size for state in states], np.int64)
        times = np.array([state.st_mtime_ns for state in states], np.int64)
        mark.add([os.fsencode(Path(file).name) for file in container.files], sizes, times)
        mark.add_places(container.places)
    mark.add_places(rows)
    if not mark.is_whole:
        return None
    identities = every[rows]
    return identities if (identities != UNKNOWN).all() else None


def recall_all(files: Sequence[tuple[Container, Path | None]], count: int) -> Hashes:
    """Return what is remembered of all images of a source, `UNKNOWN` of others.

    Args:
        files: the containers of the source, each with the file that remembers
        count: of the images
    """
    every = np.zeros(count, np.uint64)
    for container, file in files:
        columns = open_columns(file) if file else None
        if file and columns and KEPT in columns and len(columns[KEPT]) == len(container.places):
            every[container.rows] = columns[KEPT]
            with suppress(OSError):
                os.utime(file)
    return every


def member_folder() -> Path:
    """Return the folder of what is kept of all archives and tables."""
    return cache_folder("index") / "members"


def find_file(container: Container) -> Path | None:
    """Return where the identities of some images are kept; None for those of unknown state."""
    marks = [f"{container.part} {len(container.files)}"]
    for file in container.files:
        try:
            state = Path(file).stat()
        except (OSError, ValueError):
            return None
        if state.st_mtime_ns > time.time_ns() - RECENT:  # it may change and keep its time
            return None
        marks.append(
            f"{Path(file).absolute()} {state.st_size} {state.st_mtime_ns} {state.st_ctime_ns} "
            f"{state.st_ino}"
        )
    content = "\n".join(marks).encode(errors="surrogateescape")
    places = digest(np.ascontiguousarray(container.places).tobytes())
    return member_folder() / digest(content + places).hex()


@dataclass(frozen=True)
class MemberReader:
    """Reads what identifies images of a source; sent to worker processes."""

    source: Store

    def __call__(self, rows: Integers) -> MemberHashes:
        """Return what identifies some images, by their numbers."""
        identities = np.zeros(len(rows), np.uint64)
        is_lasting = np.ones(len(rows), bool)
        for place, row in enumerate(rows.tolist()):
            try:
                identities[place], is_lasting[place] = self.identify(row)
            except (DataError, OSError):
                identities[place] = number_of(os.fsencode(self.source.name(row)))
                is_lasting[place] = False
        return MemberHashes(identities, is_lasting)

    def identify(self, row: int) -> tuple[int, bool]:
        """Return what identifies an image, and whether it is in a file of the source.

        Raises:
            DataError: it cannot be read.
        """
        if isinstance(self.source, Shards) and not self.source.is_remote:
            size, read = self.source.excerpts(row)
            return hash_excerpt(size, read), True
        image = self.source.image(row)
        content = image.content()
        number = hash_excerpt(len(content), lambda start, size: content[start : start + size])
        return number, not isinstance(image, CellFileImage)


def identify_others(store: Store, numbers: Integers) -> Hashes:
    """Return what identifies some images of any store, uint64 (n,)."""
    if store.in_memory:
        return MemberReader(store)(numbers).identities
    return identify_members(store, numbers)


def recall_others(store: Store, numbers: Integers, files: MarkHash) -> Hashes | None:
    """Return what identifies some images in archives and tables where all are remembered."""
    if isinstance(store, Contained):
        return recall_members(store, numbers, files)
    files.is_whole = False
    return None


MEMBERS = Identifier(identify_others, recall_others)
