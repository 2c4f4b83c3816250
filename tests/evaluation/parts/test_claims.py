"""Claims: nobody has what another has, and the dead have nothing."""

import errno
import fcntl
import os
import time
from pathlib import Path

import pytest

from evaluation.parts.shards import started
from vitlab.errors import DiskError
from vitlab.evaluation.parts.claims import Claims


def holding(file: Path, ready: Path, *numbers: int) -> None:
    claims = Claims(file)
    with claims.opened():
        ready.write_text(str([claims.take(number) for number in numbers]))
        time.sleep(60)


def test_what_another_process_holds_is_free_when_it_dies(tmp_path: Path) -> None:
    file, ready = tmp_path / "new" / "_lock", tmp_path / "ready"
    claims = Claims(file)
    other = started(lambda: holding(file, ready, 0, 2))
    while not (ready.exists() and ready.read_text() == "[True, True]"):
        time.sleep(0.005)
    with claims.opened():
        assert [claims.take(number) for number in range(4)] == [False, True, False, True]
        with claims.alone():
            assert claims.take(3)
        other.kill()
        other.join()
        assert claims.take(0)
        third = started(lambda: holding(file, tmp_path / "third", 0, 2, 3))
        while not (tmp_path / "third").exists() or not (tmp_path / "third").read_text():
            time.sleep(0.005)
        assert (tmp_path / "third").read_text() == "[False, True, False]"
        claims.release(0)
        third.kill()
        third.join()
        child = os.fork()  # as a worker that decodes, which ends before its parent
        if not child:
            os._exit(0)
        os.waitpid(child, 0)
        fourth = started(lambda: holding(file, tmp_path / "fourth", 0, 3))
        while not (tmp_path / "fourth").exists() or not (tmp_path / "fourth").read_text():
            time.sleep(0.005)
        assert (tmp_path / "fourth").read_text() == "[True, False]"
        fourth.kill()
        fourth.join()


def test_without_locks_everything_may_be_taken_and_that_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*given: object) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(fcntl, "lockf", refuse)
    claims = Claims(tmp_path / "_lock")
    with claims.opened(), claims.alone():
        assert [claims.take(0), claims.take(0), claims.take(1)] == [True] * 3
    said = capsys.readouterr().err
    assert said == (
        f"{tmp_path} has no file locks (no locks available): some parts may be made twice\n"
    )
    with pytest.raises(DiskError, match="cannot write"), Claims(Path("/proc/no/_lock")).opened():
        pass
