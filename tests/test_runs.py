"""A run's folder: every file through one door, damaged and half-written ones included."""

import json
import math
import tomllib
from pathlib import Path

import pytest

import vitlab
from vitlab.errors import RunError
from vitlab.recipes.decisions import Decisions
from vitlab.recipes.recipe import Host
from vitlab.runs.recipe_file import RENAMED
from vitlab.runs.run_folder import RunFolder


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """A run that was started and has not taken a step."""
    tmp_path = tmp_path / "run"
    tmp_path.mkdir()
    made = RunFolder(tmp_path)
    made.start(vitlab.recipe("digits", lr=0.5, betas=(0.8, 0.9)), Host(), "vitlab train", "mark")
    return made


def test_started_free_or_in_the_way(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    assert (folder.started, folder.free) == (False, True)
    with folder.locked():
        assert (folder.started, folder.free) == (False, True)  # a lock is not in the way
        folder.start(vitlab.recipe("digits"), Host(), "", "")
        assert (folder.started, folder.free) == (True, False)
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("mine")
    assert (RunFolder(tmp_path / "thesis").started, RunFolder(tmp_path / "thesis").free) == (
        False,
        False,
    )


def test_the_file_is_parsed_once_and_again_after_no_change(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh, calls, real = RunFolder(folder.path), [], tomllib.loads
    monkeypatch.setattr(tomllib, "loads", lambda text: (calls.append(text), real(text))[1])
    assert fresh.recipe.optimizer.lr == 0.5
    assert fresh.recipe.optimizer.betas == (0.8, 0.9)
    assert fresh.fingerprint == "mark"
    fresh.decide(Decisions(8))
    assert fresh.decisions == Decisions(8)
    assert len(calls) == 1


def test_decisions_stand_beside_the_recipe(folder: RunFolder) -> None:
    assert folder.decisions == Decisions()
    decisions = Decisions(micro_batch=8, plan=((0, 100), (60, 90)))
    recipe = folder.recipe
    folder.decide(Decisions(4))
    folder.decide(decisions)
    assert RunFolder(folder.path).decisions == decisions
    assert RunFolder(folder.path).recipe == recipe
    assert RunFolder(folder.path).fingerprint == "mark"


@pytest.mark.parametrize("text", ["[run", "", "[recipe]\nepochs = 3\n", "\xff"])
def test_a_damaged_file_is_named(folder: RunFolder, text: str) -> None:
    (folder.path / "run.toml").write_bytes(text.encode("latin-1"))
    with pytest.raises(RunError, match=r"run.toml is damaged or from another version") as caught:
        _ = RunFolder(folder.path).recipe
    assert "\n" not in str(caught.value)


def test_names_of_the_code_before_the_release_are_read(folder: RunFolder) -> None:
    file = folder.path / "run.toml"
    text = file.read_text()
    assert RENAMED["optimiser"] == "optimizer"
    file.write_text(text.replace("optimizer", "optimiser"))
    assert RunFolder(folder.path).recipe == folder.recipe


def test_a_line_that_was_cut_short_is_skipped_by_every_reader(folder: RunFolder) -> None:
    assert folder.journal.read() == []
    folder.journal.write({"kind": "train", "loss": math.nan, "lr": math.inf, "step": 1})
    size = folder.journal.sync()
    assert folder.journal.file.stat().st_size == size
    with folder.journal.file.open("a") as stream:
        stream.write('{"kind": "train", "st')
    assert folder.journal.read() == [{"kind": "train", "loss": None, "lr": None, "step": 1}]
    assert folder.result() is None
    folder.journal.cut(size)
    folder.journal.write({"kind": "result", "accuracy": 1.0})
    places = {"run": str(folder.path), "report": str(folder.path / "report.html")}
    assert folder.result() == {"accuracy": 1.0} | places
    lines = folder.journal.file.read_text().splitlines()
    assert [json.loads(line)["kind"] for line in lines] == ["train", "result"]


def test_a_silent_one_writes_no_journal(folder: RunFolder) -> None:
    silent = RunFolder(folder.path, silent=True)
    silent.journal.write({"kind": "train"})
    silent.journal.cut(0)
    assert silent.journal.sync() == 0
    assert not folder.journal.file.exists()
