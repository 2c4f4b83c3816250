"""Times of a clock that only the work moves."""

import itertools
import time
from collections.abc import Iterable

import numpy as np
import pytest

from vitlab.measure.timing import QUICK, Times, time_passes


def timed(
    monkeypatch: pytest.MonkeyPatch, passes: Iterable[float], **how: float
) -> tuple[Times, list[str]]:
    """Times of passes that take so long by a fake clock, and what was called."""
    now, following, calls = [0.0], iter(passes), []

    def work() -> None:
        now[0] += next(following)
        calls.append("work")

    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    found = time_passes(work, lambda: calls.append("wait"), **how)  # type: ignore[arg-type]
    return found, calls


def test_percentiles_of_passes_after_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    warm = [90.0, 3.0, 1.0, 1.05, 1.02]  # compiled, then still settling; the last three agree
    own = [1 + number / 100 for number in range(30)]
    found, calls = timed(monkeypatch, itertools.chain(warm, own), seconds=33.0)
    # 20 passes take 21.9 s, fewer than 33 s; 29 take 33.06 s
    assert (found.warmup, found.passes) == (5, 29)
    own = own[:29]
    assert found.median == pytest.approx(sorted(own)[14])
    assert (found.p5, found.p95) == pytest.approx(tuple(np.quantile(own, (0.05, 0.95))))
    assert calls == ["wait", "work", "wait"] * 34


def test_warm_up_is_bounded_and_few_passes_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    restless = itertools.cycle([1.0, 2.0])
    found, _ = timed(monkeypatch, restless, seconds=6.0)
    assert found.warmup == 1 + 4  # 2 + 1 + 2 + 1 are 6 s, with no three alike
    assert found.passes == 16  # fewer than 20, but they took 24 s
    slow, _ = timed(monkeypatch, itertools.repeat(50.0), seconds=1.0)
    assert (slow.warmup, slow.passes) == (2, 3)
    quick, _ = timed(monkeypatch, itertools.repeat(50.0), seconds=1.0, least=QUICK[0])
    assert (quick.warmup, quick.passes) == (2, 1)


def test_short_passes_are_queued_between_two_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    found, calls = timed(monkeypatch, itertools.repeat(0.005), seconds=0.1, each=False)
    assert calls[-6:] == ["wait", "work", "work", "work", "work", "wait"]
    assert found.passes % 4 == 0
    assert found.median == pytest.approx(0.005)
