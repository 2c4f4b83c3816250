"""How many images to compute at once: measured, on the very pass that answers requests.

A batch takes what waits when the device becomes free, so the number chosen here is reached only
under load. It therefore costs a lone request nothing. At 70% load, with batches of at least eight,
99 of 100 requests that arrive at random take less than two of the largest batches, whatever the
share of a batch's time that does not depend on its size.
"""

import time

import numpy as np

from vitlab.serve.computing.answers import Question, answers
from vitlab.serve.computing.roster import Served
from vitlab.serve.decoding.decoders import Decoded

SIZES = (1, 2, 4, 8, 16, 32)
LEAST = 8
LATENCY = 1.0  # seconds that a batch may take, unless it is of one image
ENOUGH = 0.97  # of the best rate: the smallest batch that reaches it is chosen
REPEATS = 3
BUDGET = 5.0  # seconds for all of it


def best_batch(served: Served, most: int) -> tuple[int, float]:
    """Return the smallest batch, from `LEAST` on, whose rate is as good as any; seconds an image.

    Args:
        served: a model
        most: images at once
    """
    rates: dict[int, float] = {}
    end = time.monotonic() + BUDGET
    for size in (each for each in SIZES if each <= most):
        seconds = _seconds(served, size, end)
        if rates and seconds > LATENCY:
            break
        rates[size] = size / seconds
        if 2 * seconds > LATENCY or time.monotonic() > end:
            break
    best = max(rates.values())
    good = [size for size, rate in rates.items() if rate >= ENOUGH * best]
    chosen = min((size for size in good if size >= LEAST), default=max(good))
    return chosen, 1 / rates[chosen]


def warm(served: Served, size: int) -> None:
    """Compute one batch, so that the first request finds everything ready."""
    _pass([_blank(served)] * size)


def _seconds(served: Served, size: int, end: float) -> float:
    """Return the least seconds of some passes with so many images."""
    batch, found = [_blank(served)] * size, list[float]()
    while not found or (len(found) < REPEATS and time.monotonic() < end):
        found.append(_pass(batch))
    return min(found)


def _blank(served: Served) -> Question:
    config = served.facts.config
    pixels = np.zeros((*config.size_for(*config.size), config.channels), np.uint8)
    return Question(served, "classes" if config.classes else "features", Decoded(pixels))


def _pass(batch: list[Question]) -> float:
    start = time.perf_counter()
    answers(batch)
    return time.perf_counter() - start
