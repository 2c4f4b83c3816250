"""Which process may write into a run's folder."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from vitlab.errors import RunError
from vitlab.files import explained

LOCK = ".lock"


class Lock:
    """The lock of a folder: a file that one process holds until it ends.

    Args:
        folder: which need not exist yet
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.file = folder, folder / LOCK
        self._held: IO[str] | None = None

    @contextmanager
    def held(self) -> Iterator[None]:
        """Create the folder and hold it for this process alone, until the block or process ends.

        Raises:
            RunError: another process holds it.
            DiskError: it cannot be written to.
        """
        with explained(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = self.file.open("w")
        with lock as self._held:
            try:
                # a record lock: unlike flock's, workers that outlive a killed run do not inherit it
                fcntl.lockf(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                self._held = None
                raise RunError(
                    f"another process is training in {self.folder}: wait for it, or choose "
                    "another --out"
                ) from None
            try:
                yield
            finally:
                self._held = None

    @property
    def held_here(self) -> bool:
        """Whether this very object holds the folder."""
        return self._held is not None

    @property
    def lost(self) -> bool:
        """Whether the folder that this process holds was removed, or replaced by another."""
        if self._held is None:
            return False
        try:
            return not os.path.samestat(os.fstat(self._held.fileno()), self.file.stat())
        except OSError:
            return True
