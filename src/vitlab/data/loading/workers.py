"""Reporting worker processes that die."""

import re
import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from vitlab.errors import DataError, SourceError, UserError

T = TypeVar("T")


@contextmanager
def deaths_reported_late() -> Iterator[None]:
    """In the block, a started loader reports a dead worker only where a batch is awaited.

    PyTorch's loader raises from a signal handler, wherever the program happens to be, for instance
    in the middle of an optimizer step; without that handler it notices within five seconds.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGCHLD)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        yield
    except UserError as error:
        if any(isinstance(each, WorkerDiedError) for each in (error, error.__cause__)):
            before = signal.SIG_DFL  # PyTorch's handler would raise again, at the next worker's end
        raise
    finally:
        signal.signal(signal.SIGCHLD, before)


def started(loader: Iterable[T]) -> Iterator[T]:
    """Start a loader's workers, in a block of `deaths_reported_late`.

    Raises:
        WorkerDiedError: one of them died at once.
    """
    with deaths_explained():
        try:
            return iter(loader)
        finally:
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # PyTorch's first loader took it over


class WorkerDiedError(DataError):
    """A process that decodes images died."""


@contextmanager
def deaths_explained() -> Iterator[None]:
    """Turn the loader's error about a dead worker, or from a living one, into one line.

    Raises:
        WorkerDiedError: a worker was killed, or ended by itself.
        SourceError: images did not come from another machine.
    """
    try:
        yield
    except SourceError as error:
        kind = type(error)  # of a worker's, the loader keeps the type and the traceback
        _, told, text = str(error).rpartition(f"{kind.__module__}.{kind.__name__}: ")
        if not told:
            raise
        raise kind(text.removesuffix("\\n")) from None
    except (RuntimeError, OSError, EOFError) as error:
        if not _of_a_dead_worker(error):
            raise
        raise WorkerDiedError(
            "a data-loading worker died, possibly out of memory; try fewer --workers"
        ) from error


def _of_a_dead_worker(error: Exception) -> bool:
    """Return whether the loader, or the socket to a worker, reports a dead worker this way.

    What a living worker raises has the same type and the words `Caught … in DataLoader worker
    process`; a missing data file has a name.
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
