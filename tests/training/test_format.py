"""`run.toml` and config.json of other formats are refused in one line."""

import re
import shutil
from pathlib import Path

import pytest

import vitlab
from conftest import LIGHT
from training.kept import PLAIN
from vitlab.errors import RunError, WeightsError
from vitlab.runs.recipe_file import recipe_in
from vitlab.runs.run_folder import RunFolder


def test_another_format_is_refused_in_one_line(whole: vitlab.Run, tmp_path: Path) -> None:
    recipe = vitlab.recipe("digits", **PLAIN)
    run = shutil.copytree(whole.folder, tmp_path / "run")
    file = run / "run.toml"
    text = file.read_text()
    file.write_text(text.replace("format = 2", "format = 3"))
    advice = "has format 3, but this version of ViTLab reads format 2: pip install -U vitlab"
    for opened in (lambda: RunFolder(run).recipe, lambda: recipe_in(run),
                   lambda: vitlab.train(recipe, run, resume=True, host=LIGHT)):  # fmt: skip
        with pytest.raises(RunError, match=advice):
            opened()
    for number in ('"two"', "[1]", "{}", "0"):
        file.write_text(text.replace("format = 2", f"format = {number}"))
        with pytest.raises(RunError, match=r"has format .*, but this version"):
            _ = RunFolder(run).recipe
    config = run / "model" / "config.json"
    text = config.read_text()
    assert '"format": "vitlab-1"' in text or '"format": "vitlab-2"' in text
    config.write_text(re.sub(r'"vitlab-\d"', '"vitlab-9"', text))
    with pytest.raises(
        WeightsError, match=r"reads formats up to 'vitlab-2': pip install -U vitlab"
    ):
        vitlab.load(config.parent)
