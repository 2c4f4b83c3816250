"""Data loaders: worker processes that load batches, their deaths, and the copy to a GPU."""

import ctypes
import multiprocessing
import re
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.process import BaseProcess
from multiprocessing.util import Finalize
from pathlib import Path
from pickle import PicklingError
from types import TracebackType
from typing import Any, TypeVar

import torch
from torch._C import _remove_worker_pids
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.dataloader import _BaseDataLoaderIter, _MultiProcessingDataLoaderIter

from vitlab.data.images import Images
from vitlab.data.loading.batch import Batch
from vitlab.data.loading.by_number import Batches
from vitlab.data.loading.handover import Carried, channel
from vitlab.data.loading.handover import WorkerDiedError as WorkerDiedError
from vitlab.errors import DataError, UserError
from vitlab.machine.cores import cores
from vitlab.machine.open_files import check_open_files
from vitlab.machine.processes import is_stopped
from vitlab.models.packed import Packed

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


@contextmanager
def deaths_explained() -> Iterator[None]:
    """Turn the loader's error about a dead worker, or from a living one, into one line.

    Raises:
        WorkerDiedError: a worker was killed, ended by itself, or cannot hand over what it loaded.
        UserError: what a living worker says in one line, such as that images did not come.
    """
    try:
        yield
    except UserError as error:
        kind = type(error)  # of a worker's, the loader keeps the type and the traceback
        _, named, text = str(error).rpartition(f"{kind.__module__}.{kind.__name__}: ")
        if not named:
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
    if isinstance(error, RuntimeError):
        pattern = r"DataLoader worker.* (exited unexpectedly|is killed by signal)"
        return bool(re.match(pattern, str(error)))
    unnamed = isinstance(error, FileNotFoundError) and error.filename is None
    gone = unnamed or isinstance(error, ConnectionError | EOFError)
    return gone and not str(error).startswith("Caught")


_MOST_WORKERS = 8
_PR_SET_PDEATHSIG = 1  # of Linux's prctl: the signal that a process gets when its parent dies
_LEAVE = 30  # seconds that a worker lives on after SIGTERM
_LOOK = 2.0  # seconds without a batch, after which the workers are looked at
_STOPS = 3  # looks in a row: all are stopped and go on together by Ctrl-Z and fg
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def in_chunks(
    source: Images, make: Callable[[Images, range], T], size: int, workers: int | None
) -> Iterator[T]:
    """Apply `make` to each `size` images of a source, in order, in worker processes.

    Args:
        source: the images
        make: a function of a module, given the source and the numbers of some of its images
        size: how many images at a time
        workers: processes; None to choose

    Raises:
        WorkerDiedError: a worker died.
    """
    chunks = _Chunks(source, make, size)
    with deaths_explained():
        yield from loader(chunks, range(len(chunks)), choose_workers(source, workers))


@dataclass(frozen=True)
class _Chunks(Dataset[T]):
    source: Images
    make: Callable[[Images, range], T]
    size: int

    def __len__(self) -> int:
        return -(-len(self.source) // self.size)

    def __getitem__(self, k: int) -> T:
        indices = range(k * self.size, min((k + 1) * self.size, len(self.source)))
        self.source.read_ahead(indices)
        return self.make(self.source, indices)


def loader(items: Dataset[T], order: Sequence[int], workers: int) -> "DataLoader[T]":
    """Return a loader of some items of a data set, such as batches, in order, by worker processes.

    On a machine with a GPU, batches come in pinned memory.
    """
    workers = min(workers, len(order))
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", "This DataLoader will create"
        )  # more than there are cores
        return _Loader(
            Carried(items) if workers else items,
            batch_size=None,  # the data set gives whole batches
            sampler=order,
            num_workers=workers,
            collate_fn=_same,
            worker_init_fn=leave_signals_to_parent if workers else None,
            pin_memory=isinstance(items, Batches) and torch.cuda.is_available(),
            generator=torch.Generator(),  # PyTorch's own generator would be advanced by its use
        )


class _Loader(DataLoader[T]):
    """A loader whose workers, however they are started, get no signal before they are ready."""

    def __iter__(self) -> Any:
        if not self.num_workers:
            return super().__iter__()
        if multiprocessing.get_start_method() != "fork":
            _check_program()  # and preload, else each worker imports for seconds
            multiprocessing.set_forkserver_preload([__name__])
            resource_tracker.ensure_running()  # which would let the signals through
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Got pickle error")
                iterator: Any = super().__iter__()
            Finalize(iterator, _end, (iterator._workers,), exitpriority=0)
            return iterator
        except (AttributeError, PicklingError, TypeError) as error:
            raise DataError(
                f"the data cannot be sent to worker processes ({error}): use classes and functions "
                "of a module instead of local ones or lambdas, or no workers"
            ) from error
        except OSError as error:
            raise WorkerDiedError(
                f"data-loading workers cannot start ({error}): pass --workers 0, or fewer; a "
                "container gets more shared memory by docker run --shm-size 2g"
            ) from error
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _get_iterator(self) -> _BaseDataLoaderIter:
        return _Workers(self) if self.num_workers else super()._get_iterator()


def _check_program() -> None:
    """Refuse a program that workers, which are not forked, would look for and not find.

    Raises:
        DataError: it came from a pipe, or its file is gone.
    """
    main = sys.modules["__main__"]
    file = getattr(main, "__file__", None)
    if getattr(main, "__spec__", None) is None and file and not Path(file).exists():
        raise DataError(
            f"worker processes cannot import the program that calls vitlab, {file}: run it from a "
            "file, or pass workers=0 (--workers 0)"
        )


class _Workers(_MultiProcessingDataLoaderIter):
    """PyTorch's worker processes, whose batches come by `channel`, and who are seen to live."""

    def __init__(self, loader: DataLoader[T]) -> None:
        self.stops = 0  # looks in a row at which a worker was stopped
        self.inbox, outbox = channel()
        loader.collate_fn = outbox
        try:
            super().__init__(loader)
        except BaseException:
            self._shutdown = True  # there is nothing that PyTorch could end in order
            _end(getattr(self, "_workers", ()))
            raise
        finally:
            outbox.close()

    def _try_get_data(self, timeout: float = _LOOK) -> tuple[bool, Any]:
        """Wait for a batch; where none comes, look whether all workers live and run.

        Raises:
            WorkerDiedError: one does not.
        """
        try:
            wait: Callable[[float], tuple[bool, Any]] = super()._try_get_data
            ready, item = wait(min(timeout, _LOOK))
        except RuntimeError as error:
            ended = [each.exitcode for each in self._workers if each.exitcode]
            if ended and _of_a_dead_worker(error):
                self._shutdown_workers()
                raise WorkerDiedError(_fate(ended[0])) from error
            raise
        stopped = [] if ready else [each for each in self._workers if is_stopped(each.pid)]
        self.stops = self.stops + 1 if stopped else 0
        if self.stops < _STOPS:
            return ready, item
        _end(stopped)
        self._shutdown_workers()
        raise WorkerDiedError(
            f"a data-loading worker died: process {stopped[0].pid} was stopped (SIGSTOP) while its "
            "batch was waited for; try again, or pass --workers 0"
        )

    def _shutdown_workers(self) -> None:
        """End the workers: in order, or, where one died, who may have held a lock, at once."""
        if self._shutdown or not any(each.exitcode for each in self._workers):
            super()._shutdown_workers()
            return
        self._shutdown = True
        if self._pin_memory:
            self._pin_memory_thread_done_event.set()  # ends the thread at its next look
        _end(self._workers)
        if self._worker_pids_set:
            _remove_worker_pids(id(self))
            self._worker_pids_set = False


def _fate(status: int) -> str:
    """Return a line about a worker that ended with a status, or the negative of a signal."""
    if status == -signal.SIGKILL:
        return "a data-loading worker died, possibly out of memory; try fewer --workers"
    if status < 0:
        name = signal.Signals(-status).name
        return f"a data-loading worker died of {name}; --workers 0 shows at which image"
    line = f"a data-loading worker died: it ended by itself (exit status {status})"
    if multiprocessing.get_start_method() == "fork":
        return f"{line}; --workers 0 shows where"
    return (
        f"{line}, as where it cannot import the program that calls vitlab: put the call below "
        '`if __name__ == "__main__":`, or pass workers=0 (--workers 0)'
    )


def _end(workers: Sequence[BaseProcess]) -> None:
    """Kill the workers of a loader that an error has left alone, or the end of this process.

    Their queues are closed by then, so that they would hear of it after `_LEAVE` seconds only.
    """
    if alive := [each for each in workers if each.is_alive()]:
        with deaths_reported_late():
            for each in alive:
                each.kill()
                each.join(_LEAVE)  # the kernel may not end it, as on a file system that is gone


def _same(item: T) -> T:
    """Return an item unchanged; a lambda could not be sent to a worker."""
    return item


def choose_workers(source: Images, asked: int | None, sharing: int = 1) -> int:
    """Return the number of worker processes.

    If none is asked for: 0 for pixels in memory, else one per core, at most eight.

    Args:
        source: what they decode
        asked: by the user
        sharing: processes that train on one machine and share its cores

    Raises:
        OptionError: they need more open files than this machine allows.
    """
    if asked is None:
        asked = 0 if source.in_memory else min(max(1, cores() // sharing), _MOST_WORKERS)
    check_open_files(asked)
    return asked


def leave_signals_to_parent(worker: int) -> None:
    """Ignore signals, which often reach whole process groups: the parent ends its workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # the parent may need this worker to end its step; a worker that is not ended leaves by itself
    signal.signal(signal.SIGTERM, lambda number, frame: signal.alarm(_LEAVE))
    torch.set_num_threads(1)
    sys.excepthook = _unless_hung_up
    end_with_parent()  # orphans would keep its connections open
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)


def end_with_parent() -> None:
    """Let Linux kill this process when its parent dies; elsewhere it must notice by itself."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _unless_hung_up(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Print an exception of a thread, unless the parent hung up, as it does when it is stopped.

    The thread is multiprocessing's, which hands batches over. The worker's own exceptions go to the
    parent instead.
    """
    if not issubclass(kind, (EOFError, ConnectionError)):
        sys.__excepthook__(kind, error, trace)


class Upload:
    """Copies batches to a GPU on a stream of its own; on a CPU, batches stay as they are.

    Steps are queued without waiting for them, so the copy of the next batch, from pinned memory,
    runs beside the step before. What is queued afterward waits for the copy; the host does not.

    Args:
        device: that trains
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def __call__(self, batch: Batch) -> Batch:
        """Return the batch on the device."""
        if self.stream is None:
            return batch
        computing = torch.cuda.current_stream(self.device)
        with torch.cuda.stream(self.stream):
            moved = batch.to(self.device)
        computing.wait_stream(self.stream)
        for view in (moved, *moved.views):
            images = view.images.patches if isinstance(view.images, Packed) else view.images
            for tensor in (images, view.labels):  # memory of the other stream, which this one reads
                tensor.record_stream(computing)
        return moved
