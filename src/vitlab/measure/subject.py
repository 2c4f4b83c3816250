"""A measured pass of any batch size, and its figures: inference and training alike."""

import gc
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from vitlab import device as devices
from vitlab.measure.modes import Precision
from vitlab.measure.rates import Rates
from vitlab.measure.search import MOST, BestBatch, best_batch, largest_batch
from vitlab.measure.timing import QUICK, Pass, time_passes, waiter

ROOM = 0.9  # share of the free memory of a CPU's machine that a pass may take
FARTHEST, ALIKE = 128, 0.03  # images that are counted at most, and how alike what each adds must be
LONGEST = 16.0  # times the time for each batch that a pass of a larger one may take


class Subject(Protocol):
    """Passes of one kind, forward passes or training steps, of any batch size.

    Attributes:
        where: the device
        precision: that it computes in: fp32, bf16 or bf16-pure
        hidden: bytes that are in use at another time than activations, such as gradients at the end
            of a step, behind which the activations of few images hide
    """

    where: torch.device
    precision: Precision
    hidden: int

    def passes(self, batch: int) -> Pass:
        """Return what takes one pass of so many images."""

    def counted(self, batch: int) -> int:
        """Return the most bytes of tensors in such a pass on a CPU, weights among them."""


@dataclass(frozen=True)
class DeviceLimits:
    """What a subject is measured against.

    Attributes:
        macs: multiply-adds of an image
        device: what the device can do
        training: whether a pass is a training step
    """

    macs: int
    device: Rates
    training: bool = False

    def share(self, precision: str, rate: float) -> float:
        """Return the share of the matrix-product rate at so many images per second (MFU).

        A multiply-add is two operations, and six with the backward pass.
        """
        return (6 if self.training else 2) * self.macs * rate / self.device.of(precision)


def timed(
    subject: Subject, limits: DeviceLimits, batch: int, seconds: float, each: bool = True
) -> dict[str, Any] | None:
    """Return the figures of passes of one batch size as JSON; None if they do not fit.

    Args:
        subject: what is measured
        limits: what it is measured against
        batch: images per pass
        seconds: how long to repeat
        each: wait for the device after every pass
    """
    measured = None
    try:
        work, wait = subject.passes(batch), waiter(subject.where)
        times = time_passes(work, wait, seconds=seconds, each=each)
        measured = times, peak(subject, work, batch)
    except torch.OutOfMemoryError:
        pass
    if measured is None:
        _give_back(subject.where)
        return None
    times, memory = measured
    rate = batch / times.median
    return {
        "batch": batch,
        "latency": times.median,
        "latency_p5": times.p5,
        "latency_p95": times.p95,
        "passes": times.passes,
        "images_per_second": rate,
        "peak_memory": memory,
        "share_of_products": limits.share(subject.precision, rate),
    }


def best(
    subject: Subject,
    seconds: float,
    most: int = MOST,
    note: Callable[[int], object] = lambda batch: None,
) -> tuple[BestBatch | None, str]:
    """Search the batch with the highest throughput.

    Args:
        subject: what is measured
        seconds: how long to repeat each batch
        most: images per pass at most
        note: called with each batch that is tried

    Returns:
        The best batch, None if not even one image fits; and why no larger ones were tried:
        throughput, which no longer grew, memory, or time, where one pass of the next batch would
        take 16 times `seconds`.
    """
    slow, pace = False, 0.0

    def rate_of(batch: int) -> float | None:
        nonlocal slow, pace
        if batch * pace > LONGEST * seconds:
            slow = True
            return None
        note(batch)
        median = _quick(subject, batch, seconds)
        if median is None:
            return None
        pace = median / batch
        return 1 / pace

    found = best_batch(rate_of, min(most, MOST))
    ended = "memory" if found is None else found.ended
    return found, "time" if slow and ended == "memory" else ended


def peak(subject: Subject, work: Pass, batch: int) -> int:
    """Return the most bytes in use in a pass: as a GPU's allocator has it, or counted on a CPU.

    Args:
        subject: what is measured
        work: one pass of it, which has been done before
        batch: its images
    """
    if subject.where.type != "cuda":
        return subject.counted(batch)
    torch.cuda.reset_peak_memory_stats(subject.where)
    work()
    return devices.peak_memory(subject.where)


def largest(subject: Subject) -> dict[str, Any]:
    """Return the largest batch that fits, as JSON: `batch`, and `how` it was found.

    On a GPU it is tried, up to 65,536 images and without compiling (`tried`); on a CPU the bytes of
    passes of few images say how many fit into 90% of the memory that is free (`counted`).
    """
    if subject.where.type == "cuda":
        with torch.compiler.set_stance("force_eager"):
            guess = _guess(subject)
            return {"batch": largest_batch(lambda n: fits(subject, n), guess), "how": "tried"}
    free = int(ROOM * devices.free_memory(subject.where))
    return {
        "batch": images_in(free, subject.counted, subject.hidden),
        "how": "counted",
        "free": free,
    }


def images_in(free: int, counted: Callable[[int], int], hidden: int = 0) -> int:
    """Return how many images fit into so many bytes.

    Batches are doubled until another image adds as much as before, within 3%, and all of them more
    than `hidden`; up to 128.

    Args:
        free: bytes
        counted: bytes that a pass of so many images takes
        hidden: bytes behind which those of few images hide
    """
    batch, size, each = 1, counted(1), 0.0
    while batch < FARTHEST:
        before, (batch, last) = each, (2 * batch, size)
        size = counted(batch)
        each = (size - last) / (batch / 2)
        if abs(each - before) <= ALIKE * each and each * batch >= hidden:
            break
    return max(0, math.floor(batch + (free - size) / max(1.0, each)))


def fits(subject: Subject, batch: int) -> bool:
    """Return whether a pass of so many images fits into memory; what it took is given back."""
    found = True
    try:
        subject.passes(batch)()
        waiter(subject.where)()
    except torch.OutOfMemoryError:
        found = False
    _give_back(subject.where)
    return found


def _guess(subject: Subject) -> int:
    """Return about how many images fit into a GPU's memory."""
    try:
        _give_back(subject.where)
        room = devices.free_memory(subject.where) + torch.cuda.memory_allocated(subject.where)
        found = images_in(room, lambda n: peak(subject, subject.passes(n), n), subject.hidden)
    except torch.OutOfMemoryError:
        return 1
    return max(1, min(MOST, found))


def _quick(subject: Subject, batch: int, seconds: float) -> float | None:
    """Return the seconds of a pass after a first look; None if it does not fit into memory."""
    median, (least, usual) = None, QUICK
    try:
        work, wait = subject.passes(batch), waiter(subject.where)
        times = time_passes(work, wait, seconds=seconds, each=False, least=least, usual=usual)
        median = times.median
    except torch.OutOfMemoryError:
        pass
    if median is None:
        _give_back(subject.where)
    return median


def _give_back(where: torch.device) -> None:
    """Give memory back that an error's frames and the allocator may still hold."""
    gc.collect()
    if where.type == "cuda":
        torch.cuda.empty_cache()
