"""One engine for the tests of a file: its processes take seconds to start."""

from collections.abc import Iterator

import pytest

from serve.made import Running, tiny
from steady import PATIENCE


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    """An engine that serves the model `tiny`, with places for twelve images."""
    each = Running(("tiny", tiny()), timeout=PATIENCE, max_batch=4, queue=12)
    yield each
    each.close()
