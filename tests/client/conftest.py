"""Both clients, one after the other."""

from collections.abc import Iterator
from typing import Any

import pytest

from client.both import URL, Both, Handler, Make


@pytest.fixture(params=["Client", "AsyncClient"])
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    """Makes clients of one kind, of functions that answer or of a real address."""
    made: list[Both] = []

    def one(handler: Handler | None, url: str = URL, token: str = "", **terms: Any) -> Both:
        made.append(Both(request.param, handler, url, token, **terms))
        return made[-1]

    yield one
    for each in made:
        each.close()
        each.loop.close()
