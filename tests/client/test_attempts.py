"""When a request is tried again, and when not: without a network and without waiting."""

import pytest

from vitlab.client import calls
from vitlab.client.calls import Ask, Fault, Terms, exchange
from vitlab.client.reading import Reply
from vitlab.errors import BusyError, LateError, OptionError, ServiceError, UserError

BUSY = Reply(503, b'{"error": "the queue is full"}', retry_after="2")
BROKEN = Fault("broken", "disconnected")
Play = tuple[Reply | UserError, list[float], list[float]]


def play(replies: list[Reply | Fault], took: float = 0.0, **terms: float) -> Play:
    """The end of an exchange, the seconds it waited, and the seconds each request was given."""
    clock, waits, given = [100.0], [], []
    steps = exchange(Ask("predict"), "http://here", Terms(**terms), lambda: clock[0])
    queue = list(replies)
    try:
        step = next(steps)
        while True:
            if step.after:
                waits.append(step.after)
                clock[0] += step.after
            given.append(step.seconds)
            clock[0] += took
            step = steps.send(queue.pop(0))
    except StopIteration as done:
        assert not queue
        return done.value, waits, given
    except UserError as error:
        return error, waits, given


@pytest.fixture(autouse=True)
def least(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each wait is the shortest that it may be."""
    monkeypatch.setattr(calls.random, "uniform", lambda low, high: low)


def test_clients_that_were_refused_together_do_not_come_again_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(calls.random, "uniform", lambda low, high: high)
    assert play([BUSY, Reply(200, b"")])[1] == [3.0]


def test_an_overload_is_not_multiplied() -> None:
    error, waits, _ = play([BUSY] * 3)
    assert (type(error), len(waits)) == (BusyError, 2)


def test_a_reply_ends_it() -> None:
    for status in (200, 400, 401, 404, 413, 422, 500, 504):
        assert play([Reply(status, b"")]) == (Reply(status, b""), [], [60.0])


def test_a_full_queue_is_tried_again_after_the_seconds_it_names() -> None:
    good = Reply(200, b"{}")
    assert play([BUSY, BUSY, good], took=1) == (good, [2.0, 2.0], [60.0, 57.0, 54.0])
    quick = Reply(503, b"{}", retry_after="0")
    assert play([quick] * 4 + [good], retries=4)[1] == pytest.approx([0.1, 0.2, 0.4, 0.8])
    for header in ("Wed, 21 Oct 2026 07:28:00 GMT", "nan", "-3", "inf"):
        assert play([Reply(503, b"", header), good])[1] == [1.0]


def test_a_broken_connection_is_tried_again() -> None:
    good = Reply(200, b"{}")
    assert play([BROKEN, BROKEN, good])[:2] == (good, [0.1, 0.2])
    error, waits, _ = play([BROKEN] * 4, retries=3)
    assert type(error) is ServiceError
    assert str(error) == "the connection to http://here broke after 4 tries: disconnected"
    assert waits == pytest.approx([0.1, 0.2, 0.4])


def test_tries_and_time_are_bounded() -> None:
    error, waits, _ = play([BUSY] * 4, retries=3)
    assert type(error) is BusyError
    assert error.retry_after == 2
    assert waits == [2, 2, 2]
    assert "is busy after 4 tries (the queue is full): try again later" in str(error)
    error, waits, given = play([BUSY] * 3, took=1, timeout=7.5)  # no time for a third wait
    assert type(error) is BusyError
    assert (waits, given) == ([2, 2], [7.5, 4.5, 1.5])
    patient = Reply(503, b"", retry_after="3600")
    assert play([patient])[1] == []  # given up at once: the hour is not there


def test_faults_that_no_other_try_would_change() -> None:
    late, waits, _ = play([Fault("late", "timed out")], timeout=5)
    assert (type(late), waits) == (LateError, [])
    assert str(late) == (
        "the service at http://here did not answer within 5 s: give a larger timeout"
    )
    unreached = play([Fault("unreached", "refused")])[0]
    assert type(unreached) is ServiceError
    assert "cannot reach a service at http://here (refused): start it with `vitlab serve`" in str(
        unreached
    )
    assert str(play([Fault("refused", "too large")])[0]) == "no answer from http://here: too large"


def test_a_proxy_without_its_service_is_tried_again() -> None:
    assert play([Reply(502, b"<html>"), Reply(200, b"{}")])[0] == Reply(200, b"{}")
    assert "by its proxy after 2 tries: try" in str(play([Reply(502, b"")] * 2, retries=1)[0])


def test_terms_are_checked() -> None:
    with pytest.raises(OptionError, match="timeout must be above 0, not 0"):
        Terms(timeout=0)
    with pytest.raises(OptionError, match="retries must be at least 0"):
        Terms(retries=-1)
