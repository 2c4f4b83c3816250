"""Few digits for runs of several processes."""

from collections.abc import Iterator

import pytest

from conftest import fewer_digits


@pytest.fixture(autouse=True, scope="module")
def _few_digits() -> Iterator[None]:
    with fewer_digits():
        yield
