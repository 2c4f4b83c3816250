"""Files and folders: the permissions they get, and what a kill leaves of them."""

import fcntl
import os
import signal
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from evaluation.shard_jobs import started
from vitlab import files
from vitlab.errors import DiskError


@pytest.fixture(params=[0o022, 0o002, 0o077, 0o027], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def tensors(file: Path) -> None:
    save_file({"a": torch.zeros(3)}, file)


def test_everything_has_the_permissions_that_the_umask_gives(umask: int, tmp_path: Path) -> None:
    """Also what safetensors writes, which is private at first."""
    with files.staged_file(tmp_path / "delta.safetensors") as draft:
        tensors(draft)
    with files.staged_folder(tmp_path / "model") as draft:
        tensors(draft / "model.safetensors")
        (draft / "more").mkdir()
        tensors(draft / "more" / "x.safetensors")
        (draft / "config.json").write_text("{}")
    files.write_text(tmp_path / "run.toml", "a")
    found = {str(each.relative_to(tmp_path)): mode(each) for each in tmp_path.rglob("*")}
    assert found == {
        name: (0o777 if name in ("model", "model/more") else 0o666) & ~umask
        for name in (
            "delta.safetensors", "model", "model/model.safetensors", "model/more",
            "model/more/x.safetensors", "model/config.json", "run.toml",
        )
    }  # fmt: skip


def test_a_file_takes_the_place_of_no_folder_and_the_other_way_round(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "thesis.tex").write_text("mine")
    (tmp_path / "y").write_text("mine")
    with pytest.raises(DiskError, match=r"cannot write .*x: is a directory"):
        files.write_text(tmp_path / "x", "text")
    refused = pytest.raises(DiskError, match=r"cannot write .*y: not a directory")
    with refused, files.staged_folder(tmp_path / "y"):
        pass
    assert (tmp_path / "x" / "thesis.tex").read_text() == "mine"
    assert (tmp_path / "y").read_text() == "mine"
    assert len(list(tmp_path.iterdir())) == 2


def killed_at(name: str, turn: int, work: Callable[[], None]) -> int | None:
    """A process of its own that kills itself before the nth call of a function of `os`."""

    def run() -> None:
        real, calls = getattr(os, name), []

        def wrapped(*args: object, **named: object) -> object:
            calls.append(name)
            if len(calls) == turn:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **named)

        setattr(os, name, wrapped)
        work()

    process = started(run)
    process.join()
    code: int | None = process.exitcode
    return code


@pytest.mark.parametrize("name", ["mkdir", "fsync", "chmod", "rename", "rmdir", "unlink", "open"])
def test_after_a_kill_at_any_operation_either_is_whole_and_nothing_else_left(
    name: str, tmp_path: Path
) -> None:
    def work() -> None:
        with files.staged_folder(tmp_path / "model") as draft:
            tensors(draft / "model.safetensors")
            (draft / "new").touch()
        with files.staged_file(tmp_path / "delta.safetensors") as draft:
            tensors(draft)

    killed = 0
    for turn in range(1, 40):
        (tmp_path / "model").mkdir(exist_ok=True)
        (tmp_path / "model" / "older").touch()
        code = killed_at(name, turn, work)
        killed += code == -signal.SIGKILL
        files.tidy(tmp_path, r"model|delta\.safetensors")
        assert {each.name for each in tmp_path.iterdir()} <= {"model", "delta.safetensors"}, turn
        found = {each.name for each in (tmp_path / "model").iterdir()} - {"older"}
        assert found in ({"model.safetensors", "new"}, set()), turn
        if code == 0:
            break
        for each in (tmp_path / "model").iterdir():
            each.unlink()
    assert code == 0
    assert killed or name == "unlink"


def test_what_is_in_use_stays(tmp_path: Path) -> None:
    """A name that looks like ours, but is of nothing that was written here."""
    (tmp_path / ".thesis.draft-abcdefgh").mkdir()
    files.tidy(tmp_path, "model")
    assert [each.name for each in tmp_path.iterdir()] == [".thesis.draft-abcdefgh"]


@pytest.mark.parametrize("supported", [True, False])
def test_where_fsync_does_not_reach_the_disk_something_else_does(
    supported: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on macOS, whose network drives know fsync only."""
    calls: list[object] = []

    def full(handle: int, how: int) -> int:
        calls.append(how)
        if not supported:
            raise OSError(45, "not supported")
        return 0

    monkeypatch.setattr(files, "FULL_SYNC", 51)
    monkeypatch.setattr(fcntl, "fcntl", full)
    monkeypatch.setattr(os, "fsync", lambda handle: calls.append("fsync"))
    files.sync(tmp_path)
    assert calls == ([51] if supported else [51, "fsync"])
