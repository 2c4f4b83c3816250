"""One explorer for the tests of its server."""

from collections.abc import Iterator

import pytest

from explore.made import Exploring, kinds


@pytest.fixture(scope="session")
def exploring() -> Iterator[Exploring]:
    """An explorer with a small model of every kind that differs in what it can show."""
    each = Exploring(*kinds().items())
    yield each
    each.close()
