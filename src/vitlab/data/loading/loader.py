"""Batches from worker processes."""

import ctypes
import multiprocessing
import signal
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from multiprocessing import resource_tracker
from pickle import PicklingError
from types import TracebackType
from typing import Any, TypeVar

import torch
from torch.utils.data import DataLoader, Dataset

from vitlab.data.loading.batches import Batch, EvaluationBatches, TrainingBatches
from vitlab.data.loading.workers import deaths_explained
from vitlab.data.sources.protocol import Source
from vitlab.errors import DataError
from vitlab.machine.cores import cores

_MOST_WORKERS = 8
_PR_SET_PDEATHSIG = 1  # of Linux's prctl: the signal that a process gets when its parent dies
_LEAVE = 30  # seconds that a worker lives on after SIGTERM
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
T = TypeVar("T")


def training_loader(
    batches: TrainingBatches, start: int, stop: int, workers: int
) -> "DataLoader[Batch]":
    """Return batches start … stop - 1, in order whatever the number of workers."""
    order = range(start, stop)
    return _loader(batches, order, min(workers, stop - start), torch.cuda.is_available())


def evaluation_loader(
    batches: EvaluationBatches, workers: int, only: Iterable[int] | None = None
) -> "DataLoader[Batch]":
    """Return all batches once, in order; or only those with certain numbers.

    An iterator of numbers is followed as batches are needed, a few of them ahead.
    """
    order = range(len(batches)) if only is None else only
    most = len(order) if isinstance(order, Sequence) else len(batches)
    return _loader(batches, order, min(workers, most), torch.cuda.is_available())


def in_order(chunks: Dataset[T], order: Sequence[int], workers: int) -> Iterator[T]:
    """Yield some items of a data set, each made by a worker process as it is.

    Raises:
        WorkerDiedError: a worker died.
    """
    with deaths_explained():
        yield from _loader(chunks, order, min(workers, len(order)))


def _loader(
    items: Dataset[T], order: Iterable[int], workers: int, pin: bool = False
) -> "DataLoader[T]":
    return _Loader(
        items,
        batch_size=None,  # the data set gives whole batches
        sampler=order,
        num_workers=workers,
        collate_fn=_same,
        worker_init_fn=leave_signals_to_parent if workers else None,
        pin_memory=pin,
        generator=torch.Generator(),  # PyTorch's own generator would be advanced by its use
    )


class _Loader(DataLoader[T]):
    """A loader whose workers, however they are started, get no signal before they are ready."""

    def __iter__(self) -> Any:
        if not self.num_workers:
            return super().__iter__()
        if multiprocessing.get_start_method() != "fork":  # else each worker imports for seconds
            multiprocessing.set_forkserver_preload([__name__])
            resource_tracker.ensure_running()  # which would let the signals through
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Got pickle error")
                return super().__iter__()
        except (AttributeError, PicklingError, TypeError) as error:
            raise DataError(
                f"the data cannot be sent to worker processes ({error}): use classes and functions "
                "of a module instead of local ones or lambdas, or no workers"
            ) from error
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _same(item: T) -> T:
    """Return what a data set gives; a lambda could not be sent to a worker."""
    return item


def choose_workers(source: Source, asked: int | None, sharing: int = 1) -> int:
    """Return the number of worker processes.

    If none is asked for: 0 for pixels in memory, else one per core, at most eight.

    Args:
        source: what they decode
        asked: by the user
        sharing: processes that train on one machine and share its cores
    """
    if asked is not None:
        return asked
    if source.in_memory:
        return 0
    return min(max(1, cores() // sharing), _MOST_WORKERS)


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
