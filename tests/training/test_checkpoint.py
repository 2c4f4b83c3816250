"""Checkpoints are whole or not there, and what is damaged is passed over."""

import errno
import os
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vitlab.training import checkpoints
from vitlab.training.checkpoints import load, save
from vitlab.training.state import Checkpoint


def some(step: int) -> Checkpoint:
    return Checkpoint({"a": torch.full((3, 2), step / 3), "b.c": torch.arange(4)}, {"step": step})


def step_of(folder: Path) -> int | None:
    found, _ = load(folder)
    return None if found is None else found.state["step"]


def test_round_trip_and_only_the_newest_are_kept(tmp_path: Path) -> None:
    for step in (1, 5, 30, 200):
        save(tmp_path, step, some(step))
    found, remarks = load(tmp_path)
    assert found is not None
    assert torch.equal(found.tensors["a"], some(200).tensors["a"])
    assert torch.equal(found.tensors["b.c"], torch.arange(4))
    assert not remarks
    assert sorted(each.name for each in tmp_path.iterdir()) == ["step-000000030", "step-000000200"]
    assert load(tmp_path / "nowhere") == (None, [])


@settings(suppress_health_check=list(HealthCheck), max_examples=60, deadline=None)
@given(data=st.data())
def test_any_flipped_byte_is_found_and_the_older_checkpoint_serves(
    tmp_path: Path, data: st.DataObject
) -> None:
    save(tmp_path, 1, some(1))
    newest = save(tmp_path, 2, some(2))
    file = data.draw(st.sampled_from(sorted(newest.iterdir())))
    content = bytearray(file.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= 1 << data.draw(st.integers(0, 7))
    file.write_bytes(content)
    found, remarks = load(tmp_path)
    assert found is not None
    if found.state["step"] == 2:  # the manifest's own white space or step may change unnoticed
        assert file.name == checkpoints.MANIFEST
        assert torch.equal(found.tensors["a"], some(2).tensors["a"])
    else:
        assert len(remarks) == 1
        assert str(newest) in remarks[0]


def test_a_truncated_or_missing_file_is_found(tmp_path: Path) -> None:
    save(tmp_path, 1, some(1))
    newest = save(tmp_path, 2, some(2))
    tensors = newest / checkpoints.TENSORS
    tensors.write_bytes(tensors.read_bytes()[:-1])
    assert step_of(tmp_path) == 1
    (newest / checkpoints.STATE).unlink()
    assert step_of(tmp_path) == 1


@pytest.mark.parametrize("call", ["fsync", "open", "rename", "mkdir"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EACCES])
def test_a_disk_that_refuses_at_any_call_leaves_the_older_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    save(tmp_path, 1, some(1))
    real, calls = getattr(os, call), 0
    for failing in range(1, 30):
        calls = 0

        def broken(*args: object, failing: int = failing, **kwargs: object) -> object:
            nonlocal calls
            calls += 1
            if calls == failing:
                raise OSError(number, os.strerror(number))
            return real(*args, **kwargs)

        with monkeypatch.context() as patch:
            patch.setattr(os, call, broken)
            try:
                save(tmp_path, 2, some(2))
            except ValueError as error:
                assert os.strerror(number).lower() in str(error)
                done = False
            else:
                done = True
        assert step_of(tmp_path) in ((2,) if done else (1, 2))
        checkpoints.tidy(tmp_path)
        assert not list(tmp_path.glob(".*"))
        if calls < failing:  # no such call was left to fail
            break
    assert failing > 1


def test_what_a_killed_process_has_left_is_removed(tmp_path: Path) -> None:
    """A draft, and a checkpoint whose removal was cut short."""
    (tmp_path / ".step-000000007.abc").mkdir()
    (tmp_path / ".step-000000007.abc" / "state.json").write_text("{")
    for step in (1, 2):
        save(tmp_path, step, some(step))
    (tmp_path / "step-000000001" / checkpoints.MANIFEST).unlink()  # the first to go, say
    checkpoints.tidy(tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == ["step-000000002"]
