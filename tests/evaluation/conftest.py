"""Fewer images where their number is not the point, and as many resamples where it is."""

from collections.abc import Iterator

import pytest

from conftest import fewer_digits


@pytest.fixture
def few_digits() -> Iterator[None]:
    """`digits` has 287 images to learn from and 73 to test on."""
    with fewer_digits():
        yield


@pytest.fixture
def all_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as users get, which the other tests do not."""
    for bound, count in (("RESAMPLES", 1000), ("FEWEST", 200)):
        monkeypatch.setattr(f"vitlab.evaluation.intervals.{bound}", count)
