"""Timing of a piece of work: warmed up, repeated, synchronized with the device."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from vitlab.device import synchronize

Pass = Callable[[], object]
"""One pass through a model, or any other work without arguments."""

FEWEST, USUAL = 3, 20  # passes that are timed at least, and in up to four times the time given
QUICK = 1, 5  # the same where only a first look is taken
STABLE = 1.1  # slowest over fastest of three passes, when they are warm
AGAIN = 0.02  # seconds between two waits where only the mean of several passes counts


@dataclass(frozen=True)
class Times:
    """Seconds of one pass, over many.

    Attributes:
        median: half of the passes take less
        p5: 5% of them take less
        p95: 95% of them take less
        passes: number of passes that were timed
        warmup: number of passes before them
    """

    median: float
    p5: float
    p95: float
    passes: int
    warmup: int


def time_passes(
    work: Pass,
    wait: Pass = lambda: None,
    *,
    seconds: float = 1.0,
    each: bool = True,
    least: int = FEWEST,
    usual: int = USUAL,
) -> Times:
    """Time passes one by one, after enough of them to warm up.

    Warm-up ends when three passes in a row differ by less than 10%, or after `seconds`, whichever
    is first; the very first pass, which may compile, does not count. Then passes are timed for
    `seconds`; should that be fewer than `usual`, for up to four times as long; `least` in any case.

    Args:
        work: one pass
        wait: returns when the device has finished all work
        seconds: how long to repeat
        each: wait after every pass; else, where passes are short, after several of them, as work
            that is queued without waiting: percentiles are then those of their means
        least: passes that are timed however long they take
        usual: passes wanted for the percentiles
    """
    warmup, last = _warm_up(work, wait, seconds)
    group = 1 if each else max(1, math.ceil(AGAIN / max(last, 1e-6)))
    times: list[float] = []
    begin, passed = time.perf_counter(), 0.0
    while len(times) < least or passed < (seconds if len(times) >= usual else 4 * seconds):
        times.append(_timed(work, wait, group))
        passed = time.perf_counter() - begin
    p5, median, p95 = np.quantile(times, (0.05, 0.5, 0.95)).tolist()
    return Times(median, p5, p95, group * len(times), warmup)


def _warm_up(work: Pass, wait: Pass, seconds: float) -> tuple[int, float]:
    """Repeat until passes take the same time; return their number, and the last one's time."""
    _timed(work, wait, 1)
    begin = time.perf_counter()
    times: list[float] = [_timed(work, wait, 1)]
    while time.perf_counter() - begin < seconds:
        times.append(_timed(work, wait, 1))
        few = times[-3:]
        if len(few) == 3 and max(few) <= STABLE * min(few):
            break
    return 1 + len(times), times[-1]


def _timed(work: Pass, wait: Pass, group: int) -> float:
    """Return the mean seconds of some passes."""
    wait()
    start = time.perf_counter()
    for _ in range(group):
        work()
    wait()
    return (time.perf_counter() - start) / group


def waiter(where: torch.device) -> Pass:
    """Return what waits until a device has finished all work."""
    return lambda: synchronize(where)
