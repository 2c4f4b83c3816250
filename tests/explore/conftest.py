"""Explorers for the tests of their server: their processes take seconds to start."""

from collections.abc import Iterator

import pytest

from explore.made import Exploring, kinds


@pytest.fixture(scope="module")
def exploring() -> Iterator[Exploring]:
    """An explorer with a small model of every kind that differs in what it can show."""
    each = Exploring(*kinds().items())
    yield each
    each.close()
