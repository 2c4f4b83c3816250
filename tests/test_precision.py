"""Precision: `auto` is decided by the machine, a run keeps its own, and bf16 works everywhere."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch

import vitlab
from conftest import LIGHT
from vitlab import precision
from vitlab.errors import OptionError
from vitlab.recipes.named import RECIPES
from vitlab.runs import versions
from vitlab.training import resolve as settling

CPU = torch.device("cpu")
TINY = {"model": "ViT(width=16,depth=1,heads=2,mlp=16)/4", "steps": 2, "batch": 16}
AVX2 = {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}


def said_by(words: str, **environment: str) -> str:
    """What a fresh Python prints, in an environment of its own."""
    done = subprocess.run(
        [sys.executable, "-c", words],
        capture_output=True, text=True, check=False, env=os.environ | environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def table(folder: Path) -> str:
    found = tomllib.loads((folder / "run.toml").read_text())["recipe"]["precision"]
    assert isinstance(found, str)
    return found


@pytest.mark.parametrize("name", RECIPES)
def test_no_recipe_names_a_precision(name: str) -> None:
    assert RECIPES[name]().precision == "auto"


def test_auto_is_what_the_processor_has(monkeypatch: pytest.MonkeyPatch) -> None:
    for has, wanted in ((True, "bf16"), (False, "fp32")):
        monkeypatch.setattr(precision, "has_bf16", lambda has=has: has)
        assert precision.resolved("auto", CPU) == wanted
        assert precision.resolved("bf16-pure", CPU) == "bf16-pure"
        assert bool(precision.remark("bf16", CPU)) is not has
    assert precision.remark("fp32", CPU) == ""
    with pytest.raises(OptionError, match="precision must be auto, fp32 or bf16, not 'fp8'"):
        precision.check_precision("fp8")


def test_a_processor_limited_to_avx2_has_no_bf16() -> None:
    """And asked for by name, it is computed all the same, packed or not."""
    words = """
import torch, vitlab
from vitlab.precision import has_bf16
model = vitlab.create("ViT(width=32,depth=2,heads=2,mlp=64)/8", 5, 32)
torch.nn.init.normal_(model.head.classify.weight, std=0.1)
images = torch.randn(2, 3, 32, 32)
with torch.inference_mode():
    half = vitlab.accelerate(model, device="cpu", precision="bf16", engine="packed")
    near = (half(images) - model(images)).norm() < 0.05 * model(images).norm()
    auto = vitlab.accelerate(model, device="cpu", engine="packed")
print(has_bf16(), half.computes, bool(near), auto.computes)
"""
    assert said_by(words, **AVX2) == "False bf16 True fp32"


def test_a_run_says_and_keeps_what_it_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for has, wanted in ((True, "bf16"), (False, "fp32")):
        monkeypatch.setattr(precision, "has_bf16", lambda has=has: has)
        vitlab.train(vitlab.recipe("digits", "digits", **TINY), tmp_path / wanted, host=LIGHT)
        assert f" on cpu in {wanted}; run folder" in capsys.readouterr().err
        assert table(tmp_path / wanted) == wanted


def test_resuming_on_another_processor_goes_on_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = vitlab.recipe("digits", "digits", **TINY)

    def stop(line: dict[str, object]) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(precision, "has_bf16", lambda: True)
    monkeypatch.setattr(versions, "processor", lambda: "x86_64 AVX512, bf16")
    with pytest.raises(KeyboardInterrupt):
        vitlab.train(recipe, tmp_path / "run", on_line=stop, host=LIGHT)
    monkeypatch.setattr(precision, "has_bf16", lambda: False)
    monkeypatch.setattr(settling, "processor", lambda: "x86_64 AVX2")
    capsys.readouterr()
    done = vitlab.train(recipe, tmp_path / "run", resume=True, host=LIGHT)
    said = capsys.readouterr().err
    assert "started on x86_64 AVX512, bf16 and continues on x86_64 AVX2: the last bits may" in said
    assert "bf16 is emulated on this cpu, which is slower than fp32" in said
    assert table(tmp_path / "run") == "bf16"
    assert done.metrics["images"] == 359
