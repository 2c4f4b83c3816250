"""Runs of the code before the first release, which spelled some names the British way, go on."""

import json
import re
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

import vitlab
from conftest import TINY
from training.kept import EACH, killed, outcome, resumed
from vitlab.errors import RunError, WeightsError
from vitlab.runs.recipe_file import RENAMED, recipe_in
from vitlab.runs.run_folder import RunFolder
from vitlab.training import checkpoints

OLD = {new: old for old, new in RENAMED.items()}
RECIPE = vitlab.recipe("digits", **TINY | {"epochs": 2, "batch": 256})


def made_old(folder: Path) -> None:
    """Give a run the names of the old code, and take from it what that had not: clock and best."""
    file = folder / "run.toml"
    text = file.read_text().replace("format = 2\n", "")
    for new, old in OLD.items():
        text = text.replace(new, old)
    file.write_text(text)
    for place in (folder / "checkpoints").iterdir():
        tensors = load_file(place / checkpoints.TENSORS)
        parts = {name: name.partition(".") for name in tensors}
        renamed = {OLD.get(a, a) + dot + b: tensors[name] for name, (a, dot, b) in parts.items()}
        assert renamed.keys() != tensors.keys()
        save_file(renamed, place / checkpoints.TENSORS)
        state = json.loads((place / checkpoints.STATE).read_text())
        del state["spent"], state["best"]
        state = {OLD.get(key, key): value for key, value in state.items()}
        (place / checkpoints.STATE).write_text(json.dumps(state))
        names = (checkpoints.TENSORS, checkpoints.STATE)
        entries = {name: checkpoints.entry(place / name) for name in names}
        checkpoints.write_manifest(place, state["step"], entries)


def test_an_interrupted_run_of_the_old_code_ends_at_the_same_bits(tmp_path: Path) -> None:
    whole = vitlab.train(RECIPE, tmp_path / "whole", host=EACH)
    killed(5, RECIPE, tmp_path / "run")
    made_old(tmp_path / "run")
    text = (tmp_path / "run" / "run.toml").read_text()
    assert ("[optimiser]" in text, "optimizer" in text) == (True, False)
    assert outcome(resumed(RECIPE, tmp_path / "run")) == outcome(whole)


def test_a_run_of_format_one_keeps_its_box_and_its_split(tmp_path: Path) -> None:
    """Evaluation's box lay at fractions of pixels; a recipe made of the file has today's."""
    killed(5, RECIPE, tmp_path / "run")
    file = tmp_path / "run" / "run.toml"
    assert "format = 2\n" in file.read_text()
    assert 'center = "round"\n' in file.read_text()
    lines = [line for line in file.read_text().splitlines()
             if line.split(" =")[0] not in ("format", "center", "split_by")]  # fmt: skip
    file.write_text("\n".join(lines))
    old = RunFolder(file.parent)
    assert (old.tables["run"]["format"], old.recipe.model.center) == (2, "exact")
    assert old.recipe.data.split_by == "position"
    again = recipe_in(file.parent)
    assert again is not None
    assert (again.model.center, again.data.split_by) == (None, "content")

    run = resumed(old.recipe, file.parent)
    assert vitlab.load(run.folder).config.center == "exact"


def test_a_newer_file_is_refused_in_one_line(whole: vitlab.Run, tmp_path: Path) -> None:
    file, text = tmp_path / "run.toml", (whole.folder / "run.toml").read_text()
    file.write_text(text.replace("format = 2", "format = 3"))
    advice = "has format 3, but this version of ViTLab reads formats up to 2: pip install -U vitlab"
    for opened in (lambda: RunFolder(tmp_path).recipe, lambda: recipe_in(tmp_path),
                   lambda: resumed(RECIPE, tmp_path)):  # fmt: skip
        with pytest.raises(RunError, match=advice):
            opened()
    for number in ('"two"', "[1]", "{}", "0"):
        file.write_text(text.replace("format = 2", f"format = {number}"))
        with pytest.raises(RunError, match=r"has format .*, but this version"):
            _ = RunFolder(tmp_path).recipe
    config = vitlab.save(whole.model, tmp_path / "model") / "config.json"
    newer, count = re.subn(r'"vitlab-[12]"', '"vitlab-9"', config.read_text())
    assert count
    config.write_text(newer)
    with pytest.raises(
        WeightsError, match=r"reads formats up to 'vitlab-2': pip install -U vitlab"
    ):
        vitlab.load(config.parent)
