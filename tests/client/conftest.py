"""Clients of functions that answer, or of a real address."""

from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest

import vitlab

URL = "http://service.test:8000/vit"
Handler = Callable[[httpx2.Request], httpx2.Response]
Make = Callable[..., vitlab.Client]


@pytest.fixture
def make() -> Iterator[Make]:
    """Makes clients, and closes them."""
    made: list[vitlab.Client] = []

    def one(
        handler: Handler | None, url: str = URL, token: str = "", **terms: Any
    ) -> vitlab.Client:
        transport = None if handler is None else httpx2.MockTransport(handler)
        made.append(vitlab.Client(url, token, transport=transport, **terms))
        return made[-1]

    yield one
    for each in made:
        each.close()
