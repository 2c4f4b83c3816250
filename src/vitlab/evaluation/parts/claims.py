"""Which process works on which part: record locks on the bytes of one file.

The system takes a lock back when its process ends, however it ends and on whichever machine, so
that no claim outlives its holder and nobody needs a clock. Claims only save work: what is in the
folder is right without them, since a part has one name and appears there complete (`PartFolder`).
"""

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from vitlab.files import explained
from vitlab.progress import say

BUSY = (errno.EAGAIN, errno.EACCES)


class Claims:
    """The parts that this process has claimed.

    Args:
        file: the same for all processes; within one process, only one object may open it
    """

    def __init__(self, file: Path) -> None:
        self.file, self.supported = file, True
        self._locks: IO[bytes] | None = None

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Create the file if there is none; all claims end with the block.

        Raises:
            DiskError: the file cannot be created.
        """
        with explained(self.file):
            self.file.parent.mkdir(parents=True, exist_ok=True)
            locks = self.file.open("ab")
        with locks as self._locks:
            try:
                yield
            finally:
                self._locks = None

    def take(self, number: int) -> bool:
        """Claim a part; return whether no other process has it."""
        return self._lock(fcntl.LOCK_EX | fcntl.LOCK_NB, number + 1)

    def release(self, number: int) -> None:
        """Give a part back."""
        self._lock(fcntl.LOCK_UN, number + 1)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Wait until no other process is in such a block."""
        self._lock(fcntl.LOCK_EX, 0)
        try:
            yield
        finally:
            self._lock(fcntl.LOCK_UN, 0)

    def _lock(self, how: int, place: int) -> bool:
        if self._locks is None or not self.supported:
            return True
        try:
            fcntl.lockf(self._locks, how, 1, place)
        except OSError as error:
            if error.errno in BUSY:
                return False
            self.supported = False  # of the file system: as NFS or Lustre without locks
            reason = os.strerror(error.errno or 0).lower()
            say(f"{self.file.parent} has no file locks ({reason}): some parts may be made twice")
        return True
