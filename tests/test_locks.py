"""File locks: nobody has what another has, the dead have nothing, and copies change nothing."""

import contextlib
import errno
import fcntl
import os
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from evaluation.shard_jobs import started
from steady import PATIENCE, wait_until
from vitlab.errors import DiskError, RunError
from vitlab.locks import Lock
from vitlab.runs.run_folder import RunFolder


def holding(file: Path, ready: Path, shared: bool) -> None:
    with Lock(file, "").held(shared=shared) as mine:
        ready.write_text(str(mine))
        time.sleep(PATIENCE)  # it is killed before


def said(ready: Path) -> str:
    """What a process has written, as soon as it has."""
    return wait_until(lambda: ready.read_text() if ready.exists() else "")


def ended(process: Any) -> None:
    process.kill()
    process.join()


def elsewhere(file: Path, place: Path) -> str:
    """Whether another process gets the whole of a file."""

    def ask() -> None:
        with Lock(file, "").held() as mine:
            place.write_text(str(mine))

    place.unlink(missing_ok=True)
    started(ask).join()
    return said(place)


def test_a_lock_is_shared_or_held_alone_and_free_when_its_holders_die(tmp_path: Path) -> None:
    file = tmp_path / "new" / "_lock"
    first = started(lambda: holding(file, tmp_path / "first", True))
    second = started(lambda: holding(file, tmp_path / "second", True))
    assert [said(tmp_path / name) for name in ("first", "second")] == ["True", "True"]
    with Lock(file, "").held() as mine:
        assert not mine
    lock = Lock(file, "")
    with lock.held(shared=True) as mine:
        assert mine
        assert not lock.take()
        ended(first)
        ended(second)
        assert lock.take()  # nobody else shares it
        third = started(lambda: holding(file, tmp_path / "third", True))
        assert said(tmp_path / "third") == "False"
        ended(third)
        child = os.fork()  # as a worker that decodes, which ends before its parent
        if not child:
            os._exit(0)
        os.waitpid(child, 0)
        assert elsewhere(file, tmp_path / "elsewhere") == "False"
    assert elsewhere(file, tmp_path / "elsewhere") == "True"


def test_what_is_waited_for_is_said(tmp_path: Path) -> None:
    """Such as a process that is stopped, which holds it for as long."""
    file = tmp_path / "_lock"
    holder = started(lambda: holding(file, tmp_path / "first", False))
    said(tmp_path / "first")
    os.kill(holder.pid, signal.SIGSTOP)
    text = tmp_path / "said"

    def wait() -> None:
        with (
            text.open("w") as stream,
            contextlib.redirect_stderr(stream),
            Lock(file, "").held(wait=True) as mine,
        ):
            (tmp_path / "mine").write_text(str(mine))

    waiting = started(wait)
    wait_until(lambda: "waiting for the process that holds" in said(text))
    assert str(file) in text.read_text()
    assert not (tmp_path / "mine").exists()
    ended(holder)
    assert said(tmp_path / "mine") == "True"
    waiting.join()


def test_a_copy_of_the_folder_leaves_a_run_locked(tmp_path: Path) -> None:
    """As a function that is called with each line, and backs the run up, may make one."""
    folder = RunFolder(tmp_path / "run")
    with folder.locked():
        shutil.copytree(folder.path, tmp_path / "backup")
        assert elsewhere(folder.path / ".lock", tmp_path / "said") == "False"
        with pytest.raises(RunError, match=r"another process is training in .*run: wait for it"):
            RunFolder(folder.path).locked().__enter__()
    assert elsewhere(folder.path / ".lock", tmp_path / "said") == "True"


def test_workers_that_outlive_a_killed_run_do_not_hold_it(tmp_path: Path) -> None:
    file, ready = tmp_path / "run" / ".lock", tmp_path / "ready"

    def train() -> None:
        with Lock(file, "").held():
            worker = started(lambda: (ready.write_text(str(os.getpid())), time.sleep(PATIENCE)))
            worker.join()

    run = started(train)
    worker = int(said(ready))
    assert elsewhere(file, tmp_path / "said") == "False"
    ended(run)
    os.kill(worker, 0)  # it lives
    assert elsewhere(file, tmp_path / "said") == "True"
    os.kill(worker, 9)


def test_a_lock_file_that_was_removed_meanwhile_is_created_again(tmp_path: Path) -> None:
    file = tmp_path / "_lock"
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        real: Callable[..., Any] = fcntl.flock

        def late(*given: Any) -> None:
            real(*given)
            file.unlink()
            patch.setattr(fcntl, "flock", real)

        patch.setattr(fcntl, "flock", late)
        lock = Lock(file, "")
        assert stack.enter_context(lock.held())
        assert file.exists()
        assert not lock.lost
        assert elsewhere(file, tmp_path / "said") == "False"


@pytest.mark.parametrize(
    "number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL]
)
def test_without_locks_everything_may_be_taken_and_that_is_said_once(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*given: object) -> None:
        raise OSError(number, "no locks")

    monkeypatch.setattr(fcntl, "flock", refuse)
    lock = Lock(tmp_path / "_lock", "some parts may be made twice")
    with lock.held() as mine:
        assert mine
        assert lock.take()
    reason = os.strerror(number).lower()
    line = f"{tmp_path} has no file locks ({reason}): some parts may be made twice\n"
    assert capsys.readouterr().err == line
    with RunFolder(tmp_path / "run").locked():
        pass
    line = line.replace(str(tmp_path), str(tmp_path / "run"))
    line = line.replace(
        "some parts may be made twice", "let no other process train in it meanwhile"
    )
    assert capsys.readouterr().err == line
    with pytest.raises(DiskError, match="cannot write"), Lock(Path("/proc/no/_lock"), "").held():
        pass


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.EWOULDBLOCK, errno.EACCES])
def test_what_is_busy_is_not_taken_for_what_has_no_locks(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*given: object) -> None:
        raise OSError(number, "busy")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with Lock(tmp_path / "_lock", "").held() as mine:
        assert not mine
