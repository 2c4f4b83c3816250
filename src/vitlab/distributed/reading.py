"""The order in which the processes of a run read data: one of each machine before the others.

What the first process learns of the data (the index of a shard, what identifies an image) is in the
user's cache then. The other machines get these files, and the other processes of each machine find
them; what servers said of their files goes to all processes. So no image is read, and no server is
asked, once for each process.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from vitlab.data.sources.listing import record_listing, use_listing
from vitlab.distributed.world import World
from vitlab.places import cache_folder, record_cache_files, write_cache_file

PIECE = 2**24  # bytes of one broadcast
T = TypeVar("T")
Listed = list[tuple[str, int]]
"""Files by their names below the cache, and their bytes."""


def read_in_order(world: World, read: Callable[[], T]) -> T:
    """Read data in every process: in the first one, then in one of each machine, then in all.

    Args:
        world: the processes
        read: reads it; makes no collective calls

    Raises:
        UserError: of one process, in all of them; those that would come later do not begin.
    """
    if world.size == 1:
        return read()
    results: list[T] = []
    with world.agreed(), record_cache_files() as files, record_listing() as listing:
        if world.first:
            results.append(read())
    listing = world.broadcast(listing)
    if world.has_several_machines:
        send_cache_files(world, files)
        with world.agreed(), use_listing(listing):
            if world.reads_first and not results:
                results.append(read())
    with world.agreed(), use_listing(listing):
        if not results:
            results.append(read())
    return results[0]


def send_cache_files(world: World, files: Sequence[Path]) -> None:
    """Send files of the first process's cache to the machines whose caches lack them.

    Args:
        world: the processes, of which one on each machine writes
        files: in the first process; what the others give plays no part
    """
    home = cache_folder("")
    rows = world.broadcast(_list_files(home, files) if world.first else [])
    listed: Listed = [(name, size) for name, size in rows]
    if not listed:
        return
    lacking = world.any(*(world.reads_first and not (home / name).is_file() for name, _ in listed))
    wanted = [file for file, is_lacking in zip(listed, lacking, strict=True) if is_lacking]
    received = ReceivedFiles(home, wanted)
    pieces = _pieces(home, wanted)
    for _ in range(0, sum(size for _, size in wanted), PIECE):
        piece = world.broadcast_bytes(next(pieces) if world.first else b"")
        if world.reads_first and not world.first:
            received.add(piece)


def _list_files(home: Path, files: Sequence[Path]) -> Listed:
    """Return the files below the cache that are there and not empty, each once."""
    listed: Listed = []
    for file in dict.fromkeys(files):
        with suppress(OSError, ValueError):  # it is gone, or elsewhere
            listed.append((str(file.relative_to(home)), file.stat().st_size))
    return [(name, size) for name, size in listed if size]


def _pieces(home: Path, wanted: Listed) -> Iterator[bytes]:
    """Yield the bytes of some files in a row; what changes meanwhile fails its own checksum."""
    buffer = bytearray()
    for name, size in wanted:
        content = b""
        with suppress(OSError):
            content = (home / name).read_bytes()
        buffer += content[:size].ljust(size, b"\0")
        while len(buffer) >= PIECE:
            yield bytes(buffer[:PIECE])
            del buffer[:PIECE]
    if buffer:
        yield bytes(buffer)


class ReceivedFiles:
    """Files that arrive in pieces, one after the other; each appears when it is complete.

    A disk that refuses one does not matter: what is in it is then read anew.

    Args:
        home: the cache
        wanted: the files, in the order in which they arrive
    """

    def __init__(self, home: Path, wanted: Listed) -> None:
        self.home = home
        self.wanted = list(wanted)
        self.content = bytearray()

    def add(self, piece: bytes) -> None:
        """Take a piece, and write the files that are complete."""
        self.content += piece
        while self.wanted and len(self.content) >= self.wanted[0][1]:
            name, size = self.wanted.pop(0)
            write_cache_file(self.home / name, [bytes(self.content[:size])])
            del self.content[:size]
