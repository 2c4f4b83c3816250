"""A run's folder: every file through one door, damaged and half-written ones included."""

import json
import math
import shutil
import tomllib
from pathlib import Path

import pytest

import vitlab
from conftest import BRIEF
from vitlab.errors import DiskError, RunError
from vitlab.recipes.recipe import Decisions, Host
from vitlab.runs.run_folder import RunFolder

RESULT = {"kind": "result", "model": "ViT", "params": 1, "macs": 1, "images": 1, "seconds": 1.0}


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """A run that was started and has not taken a step."""
    tmp_path = tmp_path / "run"
    tmp_path.mkdir()
    made = RunFolder(tmp_path)
    made.start(
        vitlab.recipe("digits", lr=0.5, betas=(0.8, 0.9)),
        Host(effort=BRIEF),
        "vitlab train",
        "mark",
    )
    return made


def test_started_free_or_in_the_way(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    assert (folder.started, folder.free) == (False, True)
    with folder.locked():
        assert (folder.started, folder.free) == (False, True)  # a lock is not in the way
        folder.start(vitlab.recipe("digits"), Host(effort=BRIEF), "", "")
        assert (folder.started, folder.free) == (True, False)
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("mine")
    other = RunFolder(tmp_path / "thesis")
    assert (other.started, other.free) == (False, False)


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


def test_a_finished_run_is_read_as_finished(digits_run: Path) -> None:
    """Every line that a run has written is one of a journal."""
    folder = RunFolder(digits_run)
    lines = folder.journal.file.read_text().splitlines()
    assert folder.journal.read() == [json.loads(line) for line in lines]
    assert folder.result() is not None
    assert folder.state == "done"


def test_decisions_stand_beside_the_recipe(folder: RunFolder) -> None:
    assert folder.decisions == Decisions()
    decisions = Decisions(micro_batch=8, plan=((0, 100), (60, 90)))
    recipe = folder.recipe
    folder.decide(Decisions(4))
    folder.decide(decisions)
    assert RunFolder(folder.path).decisions == decisions
    assert RunFolder(folder.path).recipe == recipe
    assert RunFolder(folder.path).fingerprint == "mark"


def test_a_damaged_file_is_named(folder: RunFolder) -> None:
    for text in ("[run", "", "[recipe]\nepochs = 3\n", "\xff"):
        (folder.path / "run.toml").write_bytes(text.encode("latin-1"))
        said = r"run.toml is damaged[^\n]*: choose another --out$"
        with pytest.raises(RunError, match=said):
            _ = RunFolder(folder.path).recipe


def test_a_line_that_was_cut_short_is_skipped_by_every_reader(folder: RunFolder) -> None:
    assert folder.journal.read() == []
    folder.journal.restore()
    line = {"kind": "train", "epoch": 0.1, "accuracy": 0.5, "loss": math.nan, "lr": math.inf}
    folder.journal.write(line | {"step": 1})
    size = folder.journal.sync()
    assert folder.journal.file.stat().st_size == size
    with folder.journal.file.open("a") as stream:
        stream.write('{"kind": "train", "st')
    assert folder.journal.read() == [line | {"loss": None, "lr": None, "step": 1}]
    assert folder.result() is None
    assert folder.journal.restore(None, size) == ""
    folder.journal.write(RESULT)
    places = {"run": str(folder.path)}  # there is no report
    assert folder.result() == {key: RESULT[key] for key in RESULT if key != "kind"} | places
    lines = folder.journal.file.read_text().splitlines()
    assert [json.loads(line)["kind"] for line in lines] == ["train", "result"]


def test_a_silent_one_writes_no_journal(folder: RunFolder) -> None:
    silent = RunFolder(folder.path, silent=True)
    assert silent.continue_from(b"", 0) == ""
    silent.journal.write({"kind": "train"})
    assert silent.journal.sync() == 0
    assert not folder.journal.file.exists()
    assert not folder.checkpoints.exists()


def lines(*steps: int) -> bytes:
    """A journal of these steps."""
    each = {"kind": "train", "epoch": 0.5, "loss": 1.5, "accuracy": 0.5, "lr": 0.1}
    return b"".join(json.dumps({"step": step} | each).encode() + b"\n" for step in steps)


GARBLED = {
    "flipped bit": lines(1, 2).replace(b"step", b"ste\xf0", 1),
    "another number": lines(1, 7),
    "cut": lines(1, 2)[:50],
    "NUL bytes": b"\0" * len(lines(1, 2)),
    "empty": b"",
}


@pytest.mark.parametrize("found", GARBLED.values(), ids=GARBLED)
def test_a_garbled_journal_is_restored_from_the_copy(folder: RunFolder, found: bytes) -> None:
    folder.journal.file.write_bytes(found + lines(3))
    said = f"{folder.journal.file} was damaged: restored from the checkpoint"
    assert folder.continue_from(lines(1, 2), 0) == said
    assert folder.journal.file.read_bytes() == folder.journal.content == lines(1, 2)
    assert folder.continue_from(lines(1, 2), 0) == ""
    assert not list(folder.path.glob(".*"))


def test_a_missing_journal_is_restored_and_later_steps_are_dropped(folder: RunFolder) -> None:
    said = folder.continue_from(lines(1), 0)
    assert said == f"{folder.journal.file} was missing: restored from the checkpoint"
    folder.journal.file.write_bytes(lines(1, 2) + b"\xff garbage")
    assert folder.continue_from(lines(1), 0) == ""
    assert folder.journal.file.read_bytes() == lines(1)
    assert folder.continue_from(b"", 0) == ""
    assert folder.journal.file.read_bytes() == b""


@pytest.mark.parametrize("found", [lines(1), lines(1) + b'{"kin', lines(1) + b"\0" * 200, b""])
def test_without_a_copy_undamaged_lines_are_kept(folder: RunFolder, found: bytes) -> None:
    folder.journal.file.write_bytes(found)
    remark = folder.continue_from(None, len(lines(1, 2)))
    assert remark.endswith("was damaged: lines before the checkpoint are missing from it")
    assert folder.journal.file.read_bytes() == (lines(1) if found else b"")
    folder.journal.write({"kind": "test", "step": 2, "epoch": 1.0, "loss": 0.5})
    assert [line["step"] for line in folder.journal.read()] == ([1, 2] if found else [2])


def test_damaged_lines_are_skipped_and_counted(
    folder: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = [b"\xff\xfe", b"{", b"[1]", b'{"x": 1}', b'{"kind": "train", "step": 1}', b"9" * 5000]
    bad += [b"[" * 9999, lines(1)[:-1].replace(b"1.5", b'"high"'), b'{"kind": "result"}']
    folder.journal.file.write_bytes(lines(1) + b"\n".join(bad) + b"\n" + lines(2))
    assert [line["step"] for line in folder.journal.read()] == [1, 2]
    assert capsys.readouterr().err == f"{folder.journal.file}: 9 damaged lines skipped\n"
    assert folder.result() is None


def test_a_journal_is_never_created_again_and_one_that_cannot_be_read_is_named(
    folder: RunFolder,
) -> None:
    folder.continue_from(b"", 0)
    folder.journal.file.unlink()
    for use in (lambda: folder.journal.write({"kind": "x"}), folder.journal.sync):
        with pytest.raises(DiskError, match=r"cannot write .*metrics.jsonl: no such file"):
            use()
    assert not folder.journal.file.exists()
    folder.journal.file.mkdir()
    with pytest.raises(RunError, match=r"cannot read .*metrics.jsonl: Is a directory"):
        folder.result()


def test_drafts_of_a_killed_process_go_and_nothing_else(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    mine = (".model.mybackup", ".thesis.txt.draft-abcdefgh", ".run.toml.draft-1", "run.toml.draft")
    folder.path.mkdir()
    for name in (
        ".run.toml.draft-ab_12345",
        ".report.html.draft-abcdefgh",
        ".metrics.jsonl.draft-1_3_5_7_",
        ".detect.safetensors.draft-abcdefgh",
        ".regress.safetensors.draft-abcdefgh",
    ):
        (folder.path / name).write_text("draft")
    (folder.path / ".model.draft-abcdefgh").mkdir()
    (folder.path / ".model.draft-abcdefgh" / "config.json").write_text("{")
    assert (folder.started, folder.free) == (False, True)
    for name in mine:
        (folder.path / name).write_text("mine")
        assert not folder.free
        with folder.locked():
            assert (folder.path / name).read_text() == "mine"
        (folder.path / name).unlink()
    assert folder.free
    assert [each.name for each in folder.path.iterdir()] == [".lock"]


def test_an_older_model_that_was_moved_aside_is_put_back(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    waiting = tmp_path / ".model.draft-abcdefgh" / "model.older"
    waiting.mkdir(parents=True)
    (waiting / "config.json").write_text("older")
    with folder.locked():
        assert (folder.model / "config.json").read_text() == "older"
    waiting.mkdir(parents=True)  # now it was replaced
    with folder.locked():
        assert (folder.model / "config.json").read_text() == "older"
    assert sorted(each.name for each in tmp_path.iterdir()) == [".lock", "model"]


def test_what_is_known_of_duplicates_is_written_first_and_not_in_the_way(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.keep_duplicates({"kind": "near", "train": [], "test": [1], "dropped": False})
    assert folder.free
    (tmp_path / "duplicates.json").write_text('["mine"]')
    assert not folder.free
    (tmp_path / "duplicates.json").write_text("mine")
    assert not folder.free


def test_a_folder_that_is_no_longer_there_is_noticed(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    with folder.locked():
        folder.start(vitlab.recipe("digits"), Host(effort=BRIEF), "", "")
        folder.continue_from(b"", 0)
        folder.check()
        folder.checkpoints.rmdir()
        with pytest.raises(RunError, match=r"checkpoints was removed during the run.*--resume"):
            folder.check()
        folder.checkpoints.mkdir()
        (folder.path / "run.toml").rename(tmp_path / "run.toml")
        with pytest.raises(RunError, match=r"run.toml was removed during the run"):
            folder.check()
        (tmp_path / "run.toml").rename(folder.path / "run.toml")
        folder.check()
        folder.path.rename(tmp_path / "moved")
        for another in (False, True):
            if another:
                shutil.copytree(tmp_path / "moved", folder.path)
            for use in (folder.check, lambda: folder.decide(Decisions(4))):
                with pytest.raises(RunError, match=r"run was removed or replaced during the run"):
                    use()
            assert folder.path.exists() == another


def test_a_damaged_sweep_is_left_out(folder: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    file = folder.path / "sweep" / "campaign.json"
    file.parent.mkdir()
    for text in ("{", "[]", "{}", "\xff"):
        file.write_bytes(text.encode("latin-1"))
        assert folder.sweep() is None
        said = capsys.readouterr().err
        assert said.startswith(f"{file} is damaged: ")
        assert said.endswith("; it was skipped\n")
