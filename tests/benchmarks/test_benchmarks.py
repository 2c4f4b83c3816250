"""The benchmarks import with torch alone, and compare the same computations."""

import argparse
import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import vitlab
from docs.pages import ROOT
from oracles import peers

pytestmark = pytest.mark.benchmarks

FOLDER = ROOT / "benchmarks"
FILES = sorted(each.stem for each in FOLDER.glob("*.py"))
ABSENT = ("shtab", "datasets", "pytorch_optimizer", "rich", "matplotlib")


@pytest.mark.slow
def test_they_need_torch_alone() -> None:
    code = f"import sys\nfor name in {ABSENT}: sys.modules[name] = None\n"
    code += "".join(f"import {name}\n" for name in FILES)
    subprocess.run([sys.executable, "-c", code], cwd=FOLDER, check=True)


@pytest.fixture
def training(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    peers.timm(), peers.transformers()
    return importlib.import_module("train")


def test_a_step_of_each_library_begins_with_the_same_loss(training: Any) -> None:
    args = argparse.Namespace(device="cpu", compile=False)
    loss = {}
    for name in ("ours", "timm", "transformers"):
        step = training.form(name, "Ti2/16:32:4", "fp32", args)
        loss[name] = [step(), step()]
    for name in ("timm", "transformers"):
        assert loss[name][0] == pytest.approx(loss["ours"][0], abs=1e-5), name
        assert loss[name][1] < loss[name][0], name


@pytest.mark.slow
def test_inference_of_each_library_gives_the_same_logits(training: Any) -> None:
    inference = importlib.import_module("inference")
    names = ["ours", "ours fp32", "ours bf16", "timm", "timm bf16", "transformers"]
    args = argparse.Namespace(forms=names, threads=1, rounds=1, cpu_time=False, pause=0)
    seen = inference.compare("Ti2/16:32", 2, args)
    assert {*seen["times"]} == {*names}
    assert all(len(each) == 1 for each in seen["times"].values())
    away = seen["difference"]
    assert max(away["ours fp32"], away["transformers"]) < 1e-5
    assert 0 < max(away["ours bf16"], away["timm bf16"]) < 0.1


def test_modes_of_tuning_take_the_same_steps_in_each_library(training: Any) -> None:
    """The same loss before and after a step, and the same shares of memory."""
    tune = importlib.import_module("tune")
    args = argparse.Namespace(device="cpu", precision="fp32")
    modes = ("all", "attention", "ffn", "lora")

    def form(name: str, mode: str) -> Any:
        return tune.Form(name, mode, "Ti2/16:64:2", args)

    ours = {mode: form("ours", mode) for mode in modes}
    losses = {mode: (each.step(), each.step()) for mode, each in ours.items()}
    kept = {mode: each.kept() for mode, each in ours.items()}
    for name, mode, same in (("timm", "attention", 2), ("transformers", "lora", 1)):
        other = form(name, mode)  # LoRA's first matrices are drawn
        found = (other.step(), other.step())
        assert found[:same] == pytest.approx(losses[mode][:same], abs=1e-4), name
        assert kept[mode] <= 1.01 * other.kept(), name
    assert 0.6 < kept["attention"] / kept["all"] < 0.75
    states = {mode: each.states() for mode, each in ours.items()}
    assert states["lora"] < states["attention"] < states["ffn"] < states["all"]


def test_rounds_are_interleaved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    measuring = importlib.import_module("measuring")
    calls: list[str] = []
    works = {name: lambda name=name: calls.append(name) for name in "ab"}
    clock = iter([0.0, 5.0, 5.0, 8.0, 8.0, 9.0, 9.0, 9.5] + 8 * [10.0])
    found = measuring.interleaved(works, 2, "cpu", repeats=2, now=lambda: next(clock))
    assert "".join(calls) == "ab" + "bbaa" + "aabb"
    assert found == {"a": [0.5, 0.0], "b": [3.0, 0.0]}


def test_models_that_other_libraries_write_load_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    peers.timm(), peers.transformers()
    exactness = importlib.import_module("exactness")
    for library, name, arguments in (
        ("timm", "test_vit", {"depth": 1, "img_size": 32}),
        ("transformers", "ViTForImageClassification", {"hidden_size": 12, "image_size": 32}),
    ):
        text = exactness.line(library, "a family", name, arguments)
        assert text.startswith(f"| a family | {library}, `{name}` | ")
        assert text.endswith(" of the logits |")
        assert float(text.split(" | ")[2].split()[0]) < 1e-5
    refused = exactness.line("timm", "a family", "vit_relpos_small_patch16_224", {})
    assert "refused: unsupported model vit_relpos" in refused


def test_growth_with_tokens_and_with_depth(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    growth = importlib.import_module("growth")
    # what is left of multiply-adds without the quadratic part is linear in patches
    models = [growth.build("Ti/16", pixels) for pixels in (64, 128, 256)]
    rest = [
        vitlab.measure.cost(model).macs * (1 - growth.quadratic_share(model.config))
        for model in models
    ]
    assert (rest[2] - rest[1]) / (rest[1] - rest[0]) == pytest.approx((256 - 64) / (64 - 16))
    words = "--sizes 16 32 --tokens 5 --depths 1 2 --batch 1 --rounds 1 --device cpu"
    monkeypatch.setattr(sys, "argv", ["growth.py", *words.split()])
    growth.main()
    rows = [line.split("|")[1:-1] for line in capsys.readouterr().out.splitlines() if "|" in line]
    assert [len(row) for row in rows] == [7] * len(rows)
    numbers = [row[0].strip() for row in rows if row[0].strip().isdigit()]
    assert numbers == ["2", "5"] * 2 + ["1", "2"]


def test_the_start_of_a_run_is_calculated_from_what_was_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    data_start = importlib.import_module("data_start")
    assert data_start.fitted([10, 100, 1000], [2.1, 3.0, 12.0], 10_000) == pytest.approx(102)
    rows = [
        data_start.Row("list", images, 2, "first", rank, 2 + images / 1e6 / (1 + rank), images, 3)
        for images in (1000, 100_000)
        for rank in (0, 1)
    ]
    data_start.print_table(rows)
    lines = capsys.readouterr().out.splitlines()
    assert lines[2] == "| list | 1,000 | 2 | first | 2.0, 2.0 | 0, 0 | 6 |"
    # on 512 ranks 64 read, and 448 come after them
    jft = "| list (calculated) | JFT-300M | 512 | first | 305, 153.5 | 303, 303 | 1,536 |"
    assert lines[-1] == jft
    data = data_start.make("shards", 3, tmp_path)
    assert [each.name for each in sorted(data.iterdir())] == ["train-00000.tar"]
