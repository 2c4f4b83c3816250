"""Fewer images where their number is not the point."""

from collections.abc import Iterator

import pytest

from conftest import fewer_digits


@pytest.fixture
def few_digits() -> Iterator[None]:
    """`digits` has 287 images to learn from and 73 to test on."""
    with fewer_digits():
        yield
