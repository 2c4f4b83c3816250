"""When a request is tried again, and when not: without a network and without waiting."""

from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from client.conftest import Make
from vitlab.client import client as clients
from vitlab.errors import BusyError, ServiceError, UserError

GOOD = httpx2.Response(200, json={"status": "alive"})
BROKEN = httpx2.ReadError("disconnected")
Result = httpx2.Response | Exception
Play = tuple[dict[str, Any] | UserError, list[float], list[float]]


def busy(after: str = "2", status: int = 503) -> httpx2.Response:
    return httpx2.Response(
        status, json={"error": "the queue is full"}, headers={"Retry-After": after}
    )


@pytest.fixture
def play(make: Make, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Play]:
    """Plays a row of results; what came of it, the seconds waited, and those each request had."""
    clock, waits, given = [100.0], list[float](), list[float]()
    monkeypatch.setattr(clients.random, "uniform", lambda low, high: low)  # the shortest waits
    monkeypatch.setattr(clients.time, "monotonic", lambda: clock[0])

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        clock[0] += seconds

    monkeypatch.setattr(clients.time, "sleep", sleep)

    def played(results: list[Result], took: float = 0.0, **terms: float) -> Play:
        waits.clear(), given.clear()
        queue = list(results)

        def answer(request: httpx2.Request) -> httpx2.Response:
            given.append(request.extensions["timeout"]["read"])
            clock[0] += took
            result = queue.pop(0)
            if isinstance(result, Exception):
                raise result
            return httpx2.Response(
                result.status_code, headers=result.headers, content=result.content
            )

        try:
            found: dict[str, Any] | UserError = make(answer, **terms).health()
        except UserError as error:
            found = error
        assert not queue
        return found, [*waits], [*given]

    return played


def test_clients_that_were_refused_together_do_not_come_again_together(
    play: Callable[..., Play], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients.random, "uniform", lambda low, high: high)
    assert play([busy(), GOOD])[1] == [3.0]


def test_a_reply_ends_it(play: Callable[..., Play]) -> None:
    for status in (400, 401, 404, 413, 422, 500, 504):
        error, waits, given = play([busy(status=status)])
        assert isinstance(error, UserError)
        assert (waits, given) == ([], [60.0])


def test_a_full_queue_is_tried_again_after_the_seconds_it_names(play: Callable[..., Play]) -> None:
    assert play([busy(), busy(), GOOD], took=1) == (
        {"status": "alive"},
        [2.0, 2.0],
        [60.0, 57.0, 54.0],
    )
    waits = play([busy("0")] * 4 + [GOOD], retries=4)[1]
    assert waits == pytest.approx([0.1, 0.2, 0.4, 0.8])
    for header in ("Wed, 21 Oct 2026 07:28:00 GMT", "nan", "-3", "inf"):
        assert play([busy(header), GOOD])[1] == [1.0]


def test_a_broken_connection_is_tried_again(play: Callable[..., Play]) -> None:
    assert play([BROKEN, BROKEN, GOOD])[:2] == ({"status": "alive"}, [0.1, 0.2])
    error, waits, _ = play([BROKEN] * 4, retries=3)
    assert type(error) is ServiceError
    assert str(error).endswith("/vit broke after 4 tries: disconnected")
    assert waits == pytest.approx([0.1, 0.2, 0.4])


def test_tries_and_time_are_bounded(play: Callable[..., Play]) -> None:
    error, waits, _ = play([busy()] * 4, retries=3)
    assert isinstance(error, BusyError)
    assert (error.retry_after, waits) == (2, [2, 2, 2])
    assert "is busy after 4 tries (the queue is full): try again later" in str(error)
    error, waits, given = play([busy()] * 3, took=1, timeout=7.5)  # no time for a third wait
    assert type(error) is BusyError
    assert (waits, given) == ([2, 2], [7.5, 4.5, 1.5])
    assert play([busy("3600")])[1] == []  # given up at once: the hour is not there


def test_a_proxy_without_its_service_is_tried_again(play: Callable[..., Play]) -> None:
    assert play([busy("", 502), GOOD])[:2] == ({"status": "alive"}, [0.1])
    assert "by its proxy after 2 tries" in str(play([busy("", 502)] * 2, retries=1)[0])
