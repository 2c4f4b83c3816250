"""Passes over many images or files in chunks: a plain loop, or a few processes where it takes long.

One function reads all rows of a chunk, so that no object is made for an image.
"""

import math
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from vitlab.data.target import Integers
from vitlab.errors import DataError
from vitlab.machine.cores import cores
from vitlab.progress import SILENCE, Meter

T = TypeVar("T")
FIRST = 256  # rows that show how long the others take
TOGETHER = 4096  # rows of each further chunk
SHORT = 2.0  # seconds that are not worth starting processes
SHORT_SPAWNED = 20.0  # where each imports everything first
MOST_PROCESSES = 16
IDLE = 8  # processes for a core, at most, where reading is mostly waiting


def read_in_chunks(
    read: Callable[[Integers], T], rows: Integers, title: str
) -> Iterator[tuple[slice, T]]:
    """Yield what a function returns for chunks of some rows, in order, and where each chunk is.

    Args:
        read: returns what it has read of some rows; pickled where processes are spawned
        rows: numbers of what is read, (n,)
        title: what is being done, for the user
    """
    meter = Meter(len(rows), title=title)
    meter.patience = SILENCE
    with meter:
        for part, result in _read_all(read, rows):
            yield part, result
            if part.start:  # the first ones foretell little
                meter.show(part.stop, "images")


def _read_all(read: Callable[[Integers], T], rows: Integers) -> Iterator[tuple[slice, T]]:
    """Read the first rows, then the others in as many processes as these suggest."""
    if not len(rows):
        return
    wall = time.monotonic()
    busy = time.process_time()
    first = rows[:FIRST]
    yield slice(0, len(first)), read(first)
    wall = max(time.monotonic() - wall, 1e-9)
    busy = (time.process_time() - busy) / wall
    chunks = Chunks(read, rows[FIRST:], TOGETHER)
    if not len(chunks):
        return
    done = 0
    processes = choose_processes(wall * len(chunks.rows) / FIRST, busy)
    if processes > 1:
        try:
            for result in _read_in_processes(chunks, processes):
                yield chunks.place(done, FIRST), result
                done += 1
        except DataError:  # a process cannot start here, or died: this one reads on
            pass
    for number in range(done, len(chunks)):
        yield chunks.place(number, FIRST), chunks[number]


def choose_processes(seconds: float, busy: float) -> int:
    """Return how many processes read what is left.

    Args:
        seconds: that one takes for it
        busy: share of them in which it computes, and does not wait for a disk or a network
    """
    if multiprocessing.current_process().daemon:  # which may have no children
        return 0
    short = SHORT if multiprocessing.get_start_method() == "fork" else SHORT_SPAWNED
    if seconds < short:
        return 0
    sharing = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))  # processes that torchrun started here
    return min(MOST_PROCESSES, math.ceil(cores() / sharing / max(busy, 1 / IDLE)))


@dataclass(frozen=True)
class Chunks(Generic[T]):
    """What a function returns for chunks of some rows, as a data set of PyTorch."""

    read: Callable[[Integers], T]
    rows: Integers
    size: int

    def __len__(self) -> int:
        return -(-len(self.rows) // self.size)

    def __getitem__(self, number: int) -> T:
        return self.read(self.rows[self.place(number)])

    def place(self, number: int, before: int = 0) -> slice:
        """Return where the rows of a chunk are, after others."""
        end = min((number + 1) * self.size, len(self.rows))
        return slice(before + number * self.size, before + end)


def _read_in_processes(chunks: Chunks[T], processes: int) -> Iterator[T]:
    """Yield the results of all chunks, in order.

    Raises:
        DataError: a process cannot start, or died.
    """
    from vitlab.data.loading.loader import deaths_explained, loader  # imports PyTorch

    items: Any = chunks
    with deaths_explained():
        yield from loader(items, range(len(chunks)), processes)
