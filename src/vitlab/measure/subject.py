"""A measured pass of any batch size, and its figures: the best and the largest batch among them."""

import gc
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

import torch

from vitlab import device as devices
from vitlab.measure.modes import Precision
from vitlab.measure.rates import Rates
from vitlab.measure.timing import QUICK, Pass, Times, time_passes, waiter

Found = TypeVar("Found")
MOST = 2**16  # images per pass that are tried at most
WORTH = 1.02  # times the throughput so far: less does not count as growth
PATIENCE = 2  # doublings without growth, after which the search ends
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


@dataclass(frozen=True)
class BestBatch:
    """The batch with the highest throughput.

    Attributes:
        batch: images per pass
        rate: its images per second
        rates: images per second of every batch that was tried
        ended: why no larger ones were tried: throughput no longer grew, or memory
    """

    batch: int
    rate: float
    rates: dict[int, float]
    ended: Literal["throughput", "memory"]


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

    def measured() -> tuple[Times, int]:
        work = subject.passes(batch)
        times = time_passes(work, waiter(subject.where), seconds=seconds, each=each)
        return times, peak(subject, work, batch)

    if (found := _if_it_fits(subject, measured)) is None:
        return None
    times, memory = found
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
    slow, pace, (least, usual) = False, 0.0, QUICK

    def rate_of(batch: int) -> float | None:
        nonlocal slow, pace
        if batch * pace > LONGEST * seconds:
            slow = True
            return None
        note(batch)
        times = _if_it_fits(
            subject,
            lambda: time_passes(
                subject.passes(batch),
                waiter(subject.where),
                seconds=seconds,
                each=False,
                least=least,
                usual=usual,
            ),
        )
        if times is None:
            return None
        pace = times.median / batch
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
    _give_back(subject.where)
    room = devices.free_memory(subject.where) + torch.cuda.memory_allocated(subject.where)
    found = _if_it_fits(
        subject,
        lambda: images_in(room, lambda n: peak(subject, subject.passes(n), n), subject.hidden),
    )
    return max(1, min(MOST, found or 1))


def _if_it_fits(subject: Subject, work: Callable[[], Found]) -> Found | None:
    """Return what some work returns; None if it does not fit into memory, which is given back."""
    found = None
    with suppress(torch.OutOfMemoryError):
        found = work()
    if found is None:  # the frames of the error are gone, and what they held can be given back
        _give_back(subject.where)
    return found


def _give_back(where: torch.device) -> None:
    """Give memory back that an error's frames and the allocator may still hold."""
    gc.collect()
    if where.type == "cuda":
        torch.cuda.empty_cache()


def best_batch(rate_of: Callable[[int], float | None], most: int = MOST) -> BestBatch | None:
    """Return the batch with the highest throughput.

    Powers of two are tried until two doublings in a row bring less than 2%, or memory ends; then
    the numbers halfway between the best one and its neighbors.

    Args:
        rate_of: images per second with so many images per pass; None if they do not fit
        most: images per pass at most

    Returns:
        None if not even one image fits.
    """
    rates: dict[int, float] = {}
    size, high, idle = 1, 0.0, 0
    while size <= most and idle < PATIENCE:
        rate = rate_of(size)
        if rate is None:
            break
        rates[size] = rate
        idle = 0 if rate >= WORTH * high else idle + 1
        high = max(high, rate)
        size *= 2
    if not rates:
        return None
    ended: Literal["throughput", "memory"] = "throughput" if idle == PATIENCE else "memory"
    top = max(rates, key=rates.__getitem__)
    for between in (3 * top // 4, 3 * top // 2):
        if between not in rates and 1 <= between <= most:
            rate = rate_of(between)
            rates |= {} if rate is None else {between: rate}
    top = max(rates, key=rates.__getitem__)
    return BestBatch(top, rates[top], dict(sorted(rates.items())), ended)


def largest_batch(fits: Callable[[int], bool], start: int = 1, most: int = MOST) -> int:
    """Return exactly the largest batch that fits, 0 if none does.

    From `start` it goes up or down by steps that double, then halves what is left.

    Args:
        fits: whether so many images per pass fit; more do not if fewer do not
        start: a guess
        most: images per pass at most
    """
    low, high = 0, most + 1  # low fits, high does not
    size, step = min(start, most), max(1, start // 32)
    while high - low > 1:
        if fits(size):
            low = size
            size = size + step
        else:
            high = size
            size = size - step
        step *= 2
        bracketed = low > 0 and high <= most
        if bracketed or not low < size < high:
            size = (low + high) // 2
    return low
