"""File locks: held by one process, or shared by several, until they end."""

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from vitlab.files import explained
from vitlab.progress import named_if_slow, say

LOOK = 0.1  # seconds between two tries to get a lock
LOOKS = 30  # tries, after which a line says what is waited for
BUSY = (errno.EAGAIN, errno.EACCES)  # of a lock: another process has it


class Lock:
    """A lock file: held by one process, or shared by several, until it is closed or they end.

    It is locked by flock: a record lock would end as soon as anything in the process, such as a
    copy of the folder, had opened and closed the file. Forked workers would share it, and keep it
    when the run is killed: they close it as they start. On a file system without locks, everything
    is granted, and one line says so.

    Args:
        file: whose folder need not exist yet; of all objects in a process, only one may open it
        danger: what two processes may do where there are no locks, for the line

    Attributes:
        supported: whether the file system has locks, as far as is known
    """

    def __init__(self, file: Path, danger: str) -> None:
        self.file, self.danger, self.supported = file, danger, True
        self._handle: int | None = None

    @contextmanager
    def held(self, wait: bool = False, shared: bool = False) -> Iterator[bool]:
        """Lock the file until the block ends; yield whether no other process has it.

        Args:
            wait: until no other process has it
            shared: let others share it

        Raises:
            DiskError: the file cannot be created.
        """
        self._open()
        try:
            mine = self.take(wait, shared)
            while self.lost:  # its owner has removed it
                self._close()
                self._open()
                mine = self.take(wait, shared)
            if not mine:
                self._close()
            yield mine
        finally:
            self._close()

    def take(self, wait: bool = False, shared: bool = False) -> bool:
        """Lock the file; return whether no other process has it."""
        if self._handle is None or not self.supported:
            return True
        how = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        try:
            for _ in range(LOOKS if wait else 1):
                with suppress(BlockingIOError):
                    fcntl.flock(self._handle, how | fcntl.LOCK_NB)
                    return True
                if wait:
                    time.sleep(LOOK)
            if not wait:
                return False
            say(f"waiting for the process that holds {self.file}: it works there, or is stopped")
            with named_if_slow(f"waiting for {self.file}"):
                fcntl.flock(self._handle, how)  # the system gives it up for a process that ends
        except OSError as error:
            if error.errno in BUSY:
                return False
            self.supported = False  # of the file system: as NFS or Lustre without locks
            reason = os.strerror(error.errno or 0).lower()
            say(f"{self.file.parent} has no file locks ({reason}): {self.danger}")
        return True

    @property
    def held_here(self) -> bool:
        """Whether this very object has the file open."""
        return self._handle is not None

    @property
    def lost(self) -> bool:
        """Whether the file that this object has open was removed, or replaced by another."""
        if self._handle is None:
            return False
        try:
            return not os.path.samestat(os.fstat(self._handle), self.file.stat())
        except OSError:
            return True

    def _open(self) -> None:
        with explained(self.file):
            self.file.parent.mkdir(parents=True, exist_ok=True)
            self._handle = os.open(self.file, os.O_RDWR | os.O_CREAT, 0o666)
        _OPENED.add(self)

    def _close(self) -> None:
        _OPENED.discard(self)
        if self._handle is not None:
            os.close(self._handle)
        self._handle = None


_OPENED: set[Lock] = set()  # by this process


def _close_all() -> None:
    for lock in [*_OPENED]:
        lock._close()


os.register_at_fork(after_in_child=_close_all)
