"""Data that is trained on before its contents are known: names, sizes and times stand for them."""

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import vitlab
from conftest import BRIEF, photo_folder
from training.kept import EACH, PLAIN, resumed, stopped
from vitlab.data.contents import has_unidentified
from vitlab.data.identities import identities
from vitlab.data.open import open_images
from vitlab.errors import DataError, RunError
from vitlab.evaluation.run_predictions import reopened
from vitlab.models.seen import known
from vitlab.recipes.recipe import Host
from vitlab.runs.run_folder import RunFolder

OLD = 1_600_000_000
LARGE = replace(EACH, effort=replace(BRIEF, read_first=0))  # as if there were millions
HOW = PLAIN | {"image_size": 16, "batch": 30, "steps": 1}
EPOCH = 2  # steps


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Class folders with splits of their own: 60 training and 15 test images."""
    photo_folder(tmp_path / "data" / "train", {"blue": 20, "green": 20, "red": 20})
    photo_folder(tmp_path / "data" / "test", {"blue": 5, "green": 5, "red": 5}, rows=22)
    make_old(tmp_path / "data")
    return tmp_path / "data"


def make_old(folder: Path, when: int = OLD) -> None:
    for file in folder.rglob("*.png"):
        os.utime(file, (when, when))


def train(folder: Path, out: Path, host: Host = LARGE, **more: Any) -> vitlab.Run:
    return vitlab.train(vitlab.recipe("small", str(folder), **HOW | more), out, host=host)


def table(run: vitlab.Run) -> dict[str, Any]:
    return RunFolder(run.folder).tables["run"]


def seen_of(run: vitlab.Run, folder: Path) -> int:
    """How many of the training images a run's model says it has learned from."""
    source = open_images(str(folder)).parts["train"]
    return int(known(identities(source), vitlab.load(run.folder).seen, labeled=True).sum())


def test_a_run_shorter_than_an_epoch_knows_its_files_alone(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train(folder, tmp_path / "run")
    said = capsys.readouterr().err
    assert "60 training images" in said
    assert "the run ended before its images were identified" in said
    assert table(run)["fingerprint"] == ""
    about = vitlab.load(run.folder).provenance
    assert "fingerprint" not in about
    assert about["data_files"] == table(run)["data_files"]
    assert not seen_of(run, folder)
    both = vitlab.soup([run.folder, train(folder, tmp_path / "more", seed=1).folder])
    assert has_unidentified(both.seen)
    notes = vitlab.evaluate(vitlab.load(run.folder), str(folder))["notes"]
    assert [note for note in notes if "is not known" in note]
    whole = train(folder, tmp_path / "whole", replace(LARGE, effort=BRIEF))
    assert "data_files" not in table(whole)
    assert vitlab.evaluate(vitlab.load(whole.folder), str(folder))["notes"] == []


def test_a_run_of_an_epoch_knows_the_contents_at_its_end(folder: Path, tmp_path: Path) -> None:
    run = train(folder, tmp_path / "run", steps=EPOCH)
    shutil.rmtree(os.environ["VITLAB_CACHE"])
    whole = train(folder, tmp_path / "whole", replace(LARGE, effort=BRIEF), steps=EPOCH)
    assert table(run)["fingerprint"] == table(whole)["fingerprint"] != ""
    assert table(run)["data_files"]
    models = [vitlab.load(each.folder) for each in (run, whole)]
    assert models[0].provenance == models[1].provenance
    assert models[0].seen.tolist() == models[1].seen.tolist()
    assert seen_of(run, folder) == 60
    assert run.metrics["accuracy"] == whole.metrics["accuracy"]


def test_files_that_were_read_before_are_known_at_once(folder: Path, tmp_path: Path) -> None:
    identities(open_images(str(folder)).parts["train"])
    run = train(folder, tmp_path / "run")
    assert table(run)["fingerprint"]
    assert seen_of(run, folder) == 60


def test_who_compares_files_alone_notices_other_names_and_sizes(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunFolder(train(folder, tmp_path / "run").folder)
    assert len(reopened(run).test) == 15
    file = next((folder / "train").rglob("*.png"))
    capsys.readouterr()
    os.utime(file, (OLD + 5, OLD + 5))
    assert len(reopened(run).test) == 15
    assert "other times; what was in them was not read then" in capsys.readouterr().err
    file.write_bytes(file.read_bytes() + b"x")
    with pytest.raises(DataError, match="has changed since the run was trained"):
        reopened(run)
    file.unlink()
    with pytest.raises(DataError, match="has changed since the run was trained"):
        reopened(run)


def test_a_stopped_run_goes_on_with_the_same_files_and_no_others(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = vitlab.recipe("small", str(folder), **HOW | {"steps": 4})
    for when in (OLD, OLD + 7):
        make_old(folder)
        shutil.rmtree(os.environ["VITLAB_CACHE"], ignore_errors=True)
        out = tmp_path / f"run-{when}"
        stopped(1, recipe, out, LARGE)
        assert RunFolder(out).tables["run"]["fingerprint"] == ""
        make_old(folder, when)
        capsys.readouterr()
        run = resumed(recipe, out, LARGE)
        assert ("other times" in capsys.readouterr().err) == (when != OLD)
        assert table(run)["fingerprint"]
        assert seen_of(run, folder) == 60
    out = tmp_path / "changed"
    shutil.rmtree(os.environ["VITLAB_CACHE"])
    stopped(1, recipe, out, LARGE)
    (folder / "train" / "red" / "007.png").rename(folder / "train" / "red" / "008b.png")
    with pytest.raises(RunError, match=r"has changed since .* was started"):
        resumed(recipe, out, LARGE)


def test_contents_decide_where_they_are_known_and_times_differ(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = vitlab.recipe("small", str(folder), **HOW | {"steps": 4})
    out = tmp_path / "run"
    identities(open_images(str(folder)).parts["train"])
    stopped(1, recipe, out, LARGE)
    assert RunFolder(out).fingerprint
    file = next((folder / "train").rglob("*.png"))
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))  # as many bytes, changed now
    with pytest.raises(RunError, match=r"has changed since .* was started"):
        resumed(recipe, out, LARGE)
    assert "comparing what is in them" in capsys.readouterr().err
    file.write_bytes(content)
    assert resumed(recipe, out, LARGE).metrics
