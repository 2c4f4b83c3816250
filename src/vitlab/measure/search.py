"""The best batch and the largest one, found by asking for few of them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

MOST = 2**16  # images per pass that are tried at most
WORTH = 1.02  # times the throughput so far: less does not count as growth
PATIENCE = 2  # doublings without growth, after which the search ends


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
