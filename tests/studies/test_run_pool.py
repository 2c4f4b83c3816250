"""Stopping the processes of a study, whatever each of them does."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import pytest

from vitlab.studies.pool import Workers, interruptible, put_off

BEGUN = "import pathlib, time; pathlib.Path({!r}).touch(); time.sleep({})"


@pytest.fixture
def workers() -> Iterator[Workers]:
    workers = Workers(2)
    yield workers
    for process in running(workers):
        process.kill()
    workers.close()


def running(workers: Workers) -> list[Any]:
    """Return the processes; none after the end."""
    assert workers._pool is not None
    return list((workers._pool._processes or {}).values())


def begin(workers: Workers, seconds: float) -> Future[Any]:
    """Begin a work, and wait until it is under way."""
    assert workers._pool is not None
    file = Path(f"begun {time.monotonic_ns()}").absolute()
    with put_off():
        future = workers._pool.submit(interruptible, exec, BEGUN.format(str(file), seconds))
    while not file.exists():
        assert not future.done() or future.exception() is None
        time.sleep(0.01)
    return future


def closed(workers: Workers) -> bool:
    """Ask them to end; return whether they have ended after half a minute."""
    closing = threading.Thread(target=workers.close, args=(True,), daemon=True)
    closing.start()
    closing.join(30)
    return not closing.is_alive()


def test_one_that_waits_for_work_does_not_keep_the_others(workers: Workers) -> None:
    """It has the lock of the queue: if it died with it, the others would wait forever."""
    two = [begin(workers, 1.0), begin(workers, 0.0)]
    assert [each.result() for each in two] == [None, None]
    long = begin(workers, 60.0)
    time.sleep(0.2)  # the other one waits
    assert closed(workers)
    with pytest.raises(KeyboardInterrupt):
        long.result()


@pytest.mark.parametrize("busy", [False, True])
def test_what_comes_after_the_signal_is_not_begun(workers: Workers, busy: bool) -> None:
    """Such as the work of a process that has not started yet."""
    first = begin(workers, 60 * busy)
    if not busy:
        first.result()
    (process,) = running(workers)
    os.kill(process.pid, signal.SIGINT)
    if busy:
        with pytest.raises(KeyboardInterrupt):
            first.result(30)
    assert workers._pool is not None
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            workers._pool.submit(interruptible, time.sleep, 60).result(30)


def test_another_signal_ends_it_at_any_time(workers: Workers) -> None:
    begin(workers, 0.0).result()
    (process,) = running(workers)
    os.kill(process.pid, signal.SIGTERM)
    assert workers._pool is not None
    with pytest.raises(BrokenProcessPool):
        workers._pool.submit(interruptible, time.sleep, 60).result(30)
