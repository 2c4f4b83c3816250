"""Batches from worker processes."""

import ctypes
import signal
import sys
from collections.abc import Iterable, Sequence
from types import TracebackType

import torch
from torch.utils.data import DataLoader, Dataset

from vitlab.data.loading.batches import Batch, EvaluationBatches, TrainingBatches
from vitlab.data.sources.protocol import Source
from vitlab.machine.cores import cores

_MOST_WORKERS = 8
_PR_SET_PDEATHSIG = 1  # of Linux's prctl: the signal that a process gets when its parent dies
_LEAVE = 30  # seconds that a worker lives on after SIGTERM


def training_loader(
    batches: TrainingBatches, start: int, stop: int, workers: int
) -> "DataLoader[Batch]":
    """Return batches start … stop - 1, in order whatever the number of workers."""
    return _loader(batches, range(start, stop), min(workers, stop - start))


def evaluation_loader(
    batches: EvaluationBatches, workers: int, only: Iterable[int] | None = None
) -> "DataLoader[Batch]":
    """Return all batches once, in order; or only those with certain numbers.

    An iterator of numbers is followed as batches are needed, a few of them ahead.
    """
    order = range(len(batches)) if only is None else only
    most = len(order) if isinstance(order, Sequence) else len(batches)
    return _loader(batches, order, min(workers, most))


def _loader(batches: Dataset[Batch], order: Iterable[int], workers: int) -> "DataLoader[Batch]":
    return DataLoader(
        batches,
        batch_size=None,  # the data set gives whole batches
        sampler=order,
        num_workers=workers,
        worker_init_fn=leave_signals_to_parent if workers else None,
        pin_memory=torch.cuda.is_available(),
    )


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
    if sys.platform == "linux":  # orphans would keep the parent's connections open
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
