"""Runs of the code before the first release, which spelled some names the British way, go on."""

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

import vitlab
from conftest import TINY
from steps import killed_before
from vitlab.files import sha256
from vitlab.recipes.recipe import Host
from vitlab.runs.recipe_file import RENAMED
from vitlab.runs.run_folder import RunFolder
from vitlab.training import checkpoints

OLD = {new: old for old, new in RENAMED.items()}


def old_names(folder: Path) -> None:
    """Give a run the names of the old code."""
    file, text = folder / "run.toml", (folder / "run.toml").read_text()
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
    file.write_text(file.read_text().replace('center = "round"\n', ""))
    run = vitlab.train(recipe, tmp_path / "run", resume=True)
    assert vitlab.load(run.folder).config.center == "exact"
    assert RunFolder(run.folder).recipe.model.center == "exact"
