"""Worker processes that die."""

import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from vitlab.errors import UserError


@contextmanager
def deaths_reported_late() -> Iterator[None]:
    """Once a loader has started: in the block it reports a death where a batch is waited for.

    PyTorch's loader raises from a signal handler, wherever the program happens to be, in the middle
    of an optimizer step for instance; without that handler it notices within five seconds.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGCHLD)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGCHLD, before)


class WorkerDiedError(UserError):
    """A process that decodes images is gone."""


@contextmanager
def deaths_explained() -> Iterator[None]:
    """Turn the loader's error about a dead worker into one line.

    Raises:
        WorkerDiedError: a worker was killed, or ended by itself.
    """
    try:
        yield
    except (RuntimeError, OSError, EOFError) as error:
        if not _of_a_dead_worker(error):
            raise
        raise WorkerDiedError(
            "a worker process died, killed perhaps for want of memory (fewer --workers need less)"
        ) from error


def _of_a_dead_worker(error: Exception) -> bool:
    """Whether this is how the loader, or the socket to a worker that sent a batch, tells of it.

    What a living worker raises comes with the same type and the words `Caught … in DataLoader
    worker process`; a missing file of the data's has a name.
    """
    match error:
        case RuntimeError():
            pattern = r"DataLoader worker.* (exited unexpectedly|is killed by signal)"
            return bool(re.match(pattern, str(error)))
        case ConnectionError() | EOFError():
            return not str(error).startswith("Caught")
        case FileNotFoundError():
            return error.filename is None and not str(error).startswith("Caught")
    return False
