"""What one process does alone: it may take longer than `--timeout` for as long as it lives."""

import os
import signal
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from distributed.ranks import on_ranks
from steady import wait_until
from vitlab.distributed.launch import joined
from vitlab.distributed.world import World
from vitlab.errors import DiskError

TIMEOUT = 2.0  # seconds that a process waits for the others
LOST = (
    "process 1 of 2 lost contact with the others (one died or hangs): rerun with --resume to "
    "continue from the newest checkpoint"
)


def allow_later(file: Path) -> None:
    """Write a file when others have waited for longer than they would for a collective call."""

    def write() -> None:
        time.sleep(1.5 * TIMEOUT)
        file.touch()

    threading.Thread(target=write).start()


def one_works(worker: int, file: Path) -> list[object]:
    """Two processes of which one works until the other has waited for longer than the timeout."""
    with joined("cpu", TIMEOUT) as (world, _):
        if world.rank != worker:
            allow_later(file)
        with world.agreed():
            if world.rank == worker:
                wait_until(file.exists)
        return [world.broadcast(world.rank), *world.gather(world.rank)]


@pytest.mark.parametrize("worker", [0, 1])
def test_a_process_that_works_alone_is_waited_for(worker: int, tmp_path: Path) -> None:
    for each in on_ranks(2, partial(one_works, worker, tmp_path / "go"), tmp_path):
        assert each["value"] == [0, 0, 1], each


def refused_late(file: Path) -> list[object]:
    """The first of three processes finds out late what is wrong, and makes a value later."""
    with joined("cpu", TIMEOUT) as (world, _):
        if world.rank == 1:
            allow_later(file)

        def refuse() -> None:
            wait_until(file.exists)
            raise DiskError("no room")

        with pytest.raises(DiskError, match="no room") as error:
            world.from_first(refuse)
        with world.agreed(), pytest.raises(AssertionError, match="while processes work alone"):
            world.sums(1)
        return [error.value.quiet, world.from_first(lambda: world.rank), world.sums(1)]


def test_what_the_first_process_refuses_late_ends_all(tmp_path: Path) -> None:
    said = on_ranks(3, partial(refused_late, tmp_path / "go"), tmp_path)
    assert [each.get("value", each) for each in said] == [[rank > 0, 0, [3]] for rank in range(3)]


def the_first_ends(number: int, file: Path) -> None:
    """Two processes of which the first gets a signal while it works alone."""

    def end_first(world: World) -> None:
        with world.agreed():
            if world.first:
                file.write_text(str(os.getpid()))
                os.kill(os.getpid(), number)

    try:
        with joined("cpu", TIMEOUT) as (world, _):
            end_first(world)
    finally:
        with suppress(ProcessLookupError):
            os.kill(int(file.read_text()), signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_the_others_end_when_the_one_that_works_dies_or_stands_still(
    number: int, tmp_path: Path
) -> None:
    first, second = on_ranks(2, partial(the_first_ends, number, tmp_path / "process"), tmp_path)
    assert (second["kind"], second["error"]) == ("RunError", LOST), second
    assert first == {"error": "none"}


def one_is_interrupted(file: Path) -> None:
    """Two processes of which one is interrupted while the other works."""
    with joined("cpu", TIMEOUT) as (world, _), world.agreed():
        if world.first:
            file.touch()
            wait_until(lambda: not file.exists())
        else:
            wait_until(file.exists)
            file.unlink()
            raise KeyboardInterrupt("stopped")


def test_an_interrupted_process_tells_the_others(tmp_path: Path) -> None:
    first, second = on_ranks(2, partial(one_is_interrupted, tmp_path / "works"), tmp_path)
    assert (first["kind"], first["error"]) == ("RunError", LOST.replace("1 of", "0 of")), first
    assert (second["kind"], second["error"]) == ("KeyboardInterrupt", "stopped")
