"""Python callers: keywords are the options, and two type checkers find every planted mistake."""

import inspect
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import vitlab
from typed import keywords
from vitlab.errors import OptionError
from vitlab.evaluation.metrics import METRICS
from vitlab.evaluation.records import RunRecord
from vitlab.models.resnets.resnet import ResNet

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("downstream.py")
MISTAKES = {
    number for number, line in enumerate(SCRIPT.read_text().splitlines(), 1) if "# mistake" in line
}


def test_the_keywords_are_the_options_by_name_and_type() -> None:
    assert keywords.FILE.read_text() == keywords.formatted(keywords.text())


def test_a_record_lists_every_metric() -> None:
    listed = [inspect.get_annotations(kind) for kind in RunRecord.__mro__]
    assert {*METRICS} <= {name for each in listed for name in each}


@pytest.mark.slow
def test_mypy_finds_every_mistake_and_nothing_else() -> None:
    cache = ROOT / ".mypy_cache"  # that of `make lint`, if it ran before
    command = ["mypy", "--strict", "--output", "json", "--cache-dir", str(cache), str(SCRIPT)]
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True
    )
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    errors = {each["line"] for each in found if each["severity"] == "error"}
    assert errors == MISTAKES, done.stdout + done.stderr
    assert {Path(each["file"]).name for each in found} == {SCRIPT.name}


@pytest.mark.slow
def test_pyright_finds_every_mistake_and_nothing_else(tmp_path: Path) -> None:
    program = shutil.which(
        "basedpyright", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    )
    if program is None:
        pytest.skip("basedpyright is not installed")
    config = {
        "include": [str(SCRIPT)], "extraPaths": [str(ROOT / "src")], "typeCheckingMode": "strict",
        "pythonVersion": f"{sys.version_info.major}.{sys.version_info.minor}",
    }  # fmt: skip
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(config))
    command = [program, "--outputjson", "--pythonpath", sys.executable, "-p", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True)
    found = json.loads(done.stdout)["generalDiagnostics"]
    errors = {each["range"]["start"]["line"] + 1 for each in found if each["severity"] == "error"}
    assert errors == MISTAKES, done.stdout


def test_options_show_what_differs_from_the_defaults() -> None:
    model = vitlab.create("ViT-Ti/16", 10, 32)
    half = "(0.5, 0.5, 0.5)"
    wanted = f"image_size=32, mean={half}, std={half}, classes=10, width=192, heads=3, mlp=768"
    assert repr(model.config) == f"ViTConfig({wanted})"
    recipe = repr(vitlab.recipe("digits", lr=0.5))
    assert "lr=0.5" in recipe
    assert len(recipe) < 700
    assert repr(vitlab.Host(workers=2)) == "Host(workers=2)"


def test_another_kind_of_model_than_the_one_named_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"ViT-Ti/16 is a VisionTransformer: kind must not be R"):
        vitlab.create("ViT-Ti/16", kind=vitlab.ResNet)
    small = vitlab.create("ViT(width=16,depth=1,heads=2,mlp=32)/4", 3, 8)
    folder = vitlab.save(small, tmp_path / "model")
    with pytest.raises(OptionError, match="kind must not be ResNet"):
        vitlab.load(folder, kind=ResNet)
    assert vitlab.load(folder, kind=vitlab.VisionTransformer).config == small.config
