"""The best batch of a known curve, and exactly the largest one under a known limit."""

import time
from collections.abc import Callable

import pytest
import torch

from vitlab.measure import subject
from vitlab.measure.subject import best, best_batch, fits, images_in, largest, largest_batch


@pytest.fixture(autouse=True)
def no_garbage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here leaves any, and to look for it among all of a suite's objects takes long."""
    monkeypatch.setattr(subject.gc, "collect", lambda: 0)


@pytest.mark.parametrize("start", [1, 7, 64, 5000])
def test_the_largest_batch_is_found_exactly(start: int) -> None:
    for limit in (*range(1, 40), 63, 64, 65, 1000, 4097, 65535):
        asked = []

        def below(size: int, limit: int = limit, asked: list[int] = asked) -> bool:
            asked.append(size)
            return size <= limit

        assert largest_batch(below, start) == limit
        assert len(asked) == len(set(asked)) <= 34


def test_nothing_fits_or_everything() -> None:
    for start in (1, 100):
        assert largest_batch(lambda size: False, start) == 0
        assert largest_batch(lambda size: True, start, most=300) == 300
    near: list[int] = []
    assert largest_batch(lambda size: not near.append(size) and size <= 6400, 6300) == 6400
    assert len(near) < 12  # a good guess saves most tries


def saturating(peak: int) -> Callable[[int], float]:
    """Throughput that grows up to a batch and falls slowly from there."""

    def rate(batch: int) -> float:
        below = min(batch, peak)
        return 100 * below / (below + 3) * (0.9 if batch > peak else 1) - batch / 100

    return rate


@pytest.mark.parametrize(
    ("peak", "want", "last"), [(1, 1, 4), (12, 12, 32), (24, 24, 64), (40, 32, 128), (64, 64, 256)]
)
def test_the_best_batch_of_a_known_curve(peak: int, want: int, last: int) -> None:
    found = best_batch(saturating(peak))
    assert found is not None
    assert (found.batch, found.ended) == (want, "throughput")
    assert found.rate == max(found.rates.values())
    assert max(found.rates) == last  # two doublings beyond the best power of two


def test_the_search_ends_with_the_memory() -> None:
    limited = best_batch(lambda size: float(size) if size <= 20 else None)
    assert limited is not None
    assert (limited.batch, limited.ended) == (16, "memory")
    assert best_batch(lambda size: None) is None
    most = best_batch(float, most=11)
    assert most is not None
    assert (most.batch, most.ended) == (8, "memory")


class Small:
    """Passes on a device that has room for so many images."""

    where, precision, hidden = torch.device("cpu"), "fp32", 0

    def __init__(self, room: int) -> None:
        self.room = room

    def passes(self, batch: int) -> Callable[[], object]:
        def work() -> None:
            if batch > self.room:
                raise torch.OutOfMemoryError

        return work

    def counted(self, batch: int) -> int:
        return 1000 + 70 * batch


@pytest.mark.parametrize("room", [0, 1, 2, 37, 128, 777])
def test_batches_are_tried_until_memory_ends(room: int) -> None:
    assert largest_batch(lambda size: fits(Small(room), size)) == room
    found, ended = best(Small(room), 0.001, most=300)
    if room == 0:
        assert found is None
    assert found is None or max(found.rates) <= min(room, 300)
    assert ended in ("memory", "throughput")


def test_larger_batches_than_time_allows_are_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    class Slow(Small):
        def passes(self, batch: int) -> Callable[[], object]:
            def work() -> None:
                now[0] += 1.0 + batch

            return work

    found, ended = best(Slow(10**6), 1.0)
    assert found is not None
    assert (max(found.rates), ended) == (12, "time")  # 16 images would take over 16 s


def test_images_are_counted_by_what_each_adds() -> None:
    asked = []

    def linear(batch: int) -> int:
        asked.append(batch)
        return 1000 + 70 * batch

    assert images_in(1000 + 70 * 90, linear) == 90
    assert asked == [1, 2, 4]
    assert images_in(1000 + 70 * 90 - 1, linear) == 89
    assert images_in(10, linear) == 0


def test_the_peak_of_few_images_is_at_another_time() -> None:
    """Up to 10 images all gradients take more than activations; an image adds little."""
    asked = []

    def step(batch: int) -> int:
        asked.append(batch)
        return max(1000 + batch, 500 + 51 * batch)

    assert images_in(500 + 51 * 1234, step, hidden=500) == 1234
    assert asked == [1, 2, 4, 8, 16, 32, 64]
    assert images_in(500 + 51 * 1234, step) > 60_000  # what it would be without


@pytest.mark.parametrize("room", [0, 1, 300, 5000])
def test_a_gpus_largest_batch_is_tried_and_its_memory_emptied(
    room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch's calls of a GPU replaced; the allocator's peak is that of the last pass."""
    last, emptied, asked = [0], [], []

    class OnGpu(Small):
        where = torch.device("cuda")

        def passes(self, batch: int) -> Callable[[], object]:
            inner = super().passes(batch)

            def work() -> None:
                asked.append(batch)
                inner()
                last[0] = batch

            return work

    replaced = {
        "synchronize": lambda where: None,
        "empty_cache": lambda: emptied.append(len(asked)),
        "reset_peak_memory_stats": lambda where: None,
        "max_memory_allocated": lambda where: 1000 + 70 * last[0],
        "memory_allocated": lambda where: 1000,
        "mem_get_info": lambda where: (72 * room, 0),  # about as many as really fit
    }
    for name, instead in replaced.items():
        monkeypatch.setattr(torch.cuda, name, instead)
    assert largest(OnGpu(room)) == {"batch": room, "how": "tried"}
    tries = [batch for batch in asked if batch > 4]
    assert len(tries) < 20  # the counted guess is near
    assert len(emptied) >= len(tries)
