"""Runs of the code before the first release, which spelled some names the British way, go on."""

import json
import re
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

import vitlab
from conftest import TINY
from steps import killed_before
from vitlab.errors import RunError, WeightsError
from vitlab.files import sha256
from vitlab.recipes.recipe import Host
from vitlab.runs.recipe_file import RENAMED, recipe_in
from vitlab.runs.run_folder import RunFolder
from vitlab.training import checkpoints

OLD = {new: old for old, new in RENAMED.items()}


def old_names(folder: Path) -> None:
    """Give a run the names of the old code."""
    file = folder / "run.toml"
    text = file.read_text().replace("format = 2\n", "")
    for new, old in OLD.items():
        text = text.replace(new, old)
    file.write_text(text)
    for place in (folder / "checkpoints").iterdir():
        tensors = load_file(place / checkpoints.TENSORS)
        renamed = {
            ".".join([OLD.get(name.split(".")[0], name.split(".")[0]), *name.split(".")[1:]]): t
            for name, t in tensors.items()
        }
        assert renamed.keys() != tensors.keys()
        save_file(renamed, place / checkpoints.TENSORS)
        state = json.loads((place / checkpoints.STATE).read_text())
        state = {OLD.get(key, key): value for key, value in state.items()}
        (place / checkpoints.STATE).write_text(json.dumps(state))
        names = (checkpoints.TENSORS, checkpoints.STATE)
        entries = {name: checkpoints.entry(place / name) for name in names}
        checkpoints.write_manifest(place, state["step"], entries)


def test_an_interrupted_run_of_the_old_code_ends_at_the_same_bits(tmp_path: Path) -> None:
    recipe = vitlab.recipe("digits", **TINY | {"epochs": 2, "batch": 256})
    whole = vitlab.train(recipe, tmp_path / "whole")
    with killed_before(5), pytest.raises(KeyboardInterrupt):
        vitlab.train(recipe, tmp_path / "run", host=Host(checkpoint_every=0))
    old_names(tmp_path / "run")
    assert "[optimiser]" in (tmp_path / "run" / "run.toml").read_text()
    assert "optimizer" not in (tmp_path / "run" / "run.toml").read_text()
    run = vitlab.train(recipe, tmp_path / "run", resume=True)
    file = "model/model.safetensors"
    assert sha256(run.folder / file) == sha256(whole.folder / file)
    assert run.metrics["accuracy"] == whole.metrics["accuracy"]


def test_a_checkpoint_of_the_code_before_the_tally_is_read(tmp_path: Path) -> None:
    """The first checkpoints had no clock, no best weights, and the sums under another name."""
    recipe = vitlab.recipe("digits", **TINY | {"epochs": 2, "batch": 256})
    with killed_before(5), pytest.raises(KeyboardInterrupt):
        vitlab.train(recipe, tmp_path / "run", host=Host(checkpoint_every=0))
    for place in (tmp_path / "run" / "checkpoints").iterdir():
        state = json.loads((place / checkpoints.STATE).read_text())
        del state["spent"], state["best"]
        (place / checkpoints.STATE).write_text(json.dumps(state))
        names = (checkpoints.TENSORS, checkpoints.STATE)
        entries = {name: checkpoints.entry(place / name) for name in names}
        checkpoints.write_manifest(place, state["step"], entries)
    run = vitlab.train(recipe, shutil.copytree(tmp_path / "run", tmp_path / "b"), resume=True)
    assert run.metrics["images"] == 359


def test_a_run_from_before_the_box_was_written_down_keeps_it(tmp_path: Path) -> None:
    """Evaluation's box lay at fractions of pixels; a new run of its recipe has today's."""
    recipe = vitlab.recipe("digits", **TINY | {"epochs": 2, "batch": 256})
    with killed_before(5), pytest.raises(KeyboardInterrupt):
        vitlab.train(recipe, tmp_path / "run", host=Host(checkpoint_every=0))
    file = tmp_path / "run" / "run.toml"
    assert 'center = "round"\n' in file.read_text()
    old = file.read_text().replace('center = "round"\n', "")
    file.write_text(old.replace("format = 2\n", ""))
    run = vitlab.train(recipe, tmp_path / "run", resume=True)
    assert vitlab.load(run.folder).config.center == "exact"
    assert RunFolder(run.folder).recipe.model.center == "exact"


def test_a_file_without_a_number_is_of_format_one(tmp_path: Path) -> None:
    """It keeps its box and its split; a recipe made of it has today's."""
    recipe = vitlab.recipe("digits", **TINY | {"epochs": 1, "batch": 512})
    run = vitlab.train(recipe, tmp_path / "run")
    file = run.folder / "run.toml"
    assert "format = 2\n" in file.read_text()
    lines = [line for line in file.read_text().splitlines()
             if line.split(" =")[0] not in ("format", "center", "split_by")]  # fmt: skip
    file.write_text("\n".join(lines).replace("[optimizer]", "[optimiser]"))
    old = RunFolder(run.folder)
    assert old.tables["run"]["format"] == 2
    assert (old.recipe.model.center, old.recipe.data.split_by) == ("exact", "position")
    again = recipe_in(run.folder)
    assert again is not None
    assert (again.model.center, again.data.split_by) == (None, "content")


def test_a_newer_file_is_refused_in_one_line(tmp_path: Path) -> None:
    recipe = vitlab.recipe("digits", **TINY | {"epochs": 1, "batch": 512})
    run = vitlab.train(recipe, tmp_path / "run")
    file = run.folder / "run.toml"
    whole = file.read_text()
    file.write_text(whole.replace("format = 2", "format = 3"))
    advice = "has format 3, but this version of ViTLab reads formats up to 2: pip install -U vitlab"
    for opened in (lambda: RunFolder(run.folder).recipe, lambda: recipe_in(run.folder),
                   lambda: vitlab.train(recipe, run.folder, resume=True)):  # fmt: skip
        with pytest.raises(RunError, match=advice):
            opened()
    for number in ('"two"', "[1]", "{}", "0"):
        file.write_text(whole.replace("format = 2", f"format = {number}"))
        with pytest.raises(RunError, match=r"has format .*, but this version"):
            _ = RunFolder(run.folder).recipe
    config = run.folder / "model" / "config.json"
    text = config.read_text()
    assert '"format": "vitlab-1"' in text or '"format": "vitlab-2"' in text
    config.write_text(re.sub(r'"vitlab-\d"', '"vitlab-9"', text))
    with pytest.raises(
        WeightsError, match=r"reads formats up to 'vitlab-2': pip install -U vitlab"
    ):
        vitlab.load(config.parent)
