"""`pip install vitlab` without extras: the main job works, the rest names its extra in one line."""

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

import vitlab
from absent import without
from conftest import environment
from vitlab import packages
from vitlab.errors import PackageError
from vitlab.packages import EXTRAS, check_installed, needed
from vitlab.runs.versions import versions

OPTIONAL = ["datasets", "pyarrow", "pandas", "pytorch_optimizer", "peft", "transformers", "timm",
            "tensorboard", "torchvision", "accelerate", "requests", "onnx",
            "onnxscript", "onnxruntime", "fastapi", "uvicorn", "prometheus_client"]  # fmt: skip
# Runs command lines one after the other; PyTorch is there, so that a slow import is named in none.
RUNNER = """
import contextlib, io, json
import torch
from vitlab.cli import main

for line in sys.stdin:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(json.loads(line))
        except SystemExit as stop:
            code = stop.code
    print(json.dumps([code, out.getvalue(), err.getvalue()]), flush=True)
"""
TINY = ["--model", "ViT(width=16,depth=1,heads=2,mlp=32)/8", "--epochs", "1", "--workers", "0"]
EXTRA = 'needs the package {}: pip install "vitlab[{}]"'


Run = Callable[[list[list[str]]], list[list[Any]]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Exit status, stdout and stderr of command lines, without any optional package."""
    place = tmp_path_factory.mktemp("core")
    around = environment(VITLAB_CACHE=str(place / "cache"))
    with (place / "stderr").open("w+") as errors, subprocess.Popen(
        [sys.executable, "-c", without(*OPTIONAL) + RUNNER],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=place,
        env=around,
    ) as process:  # fmt: skip

        def ask(lines: list[list[str]]) -> list[list[Any]]:
            assert process.stdin
            assert process.stdout
            answers = []
            for each in lines:
                print(json.dumps(each), file=process.stdin, flush=True)
                answer = process.stdout.readline()
                assert answer, (place / "stderr").read_text()
                answers.append(json.loads(answer))
            return answers

        yield ask
        assert process.stdin
        process.stdin.close()
        assert process.wait() == 0


@pytest.mark.slow
def test_the_main_job_needs_no_extra(run: Run, photos: Path, tmp_path: Path) -> None:
    model, tuned = str(tmp_path / "run"), str(tmp_path / "tuned")
    theirs, image = str(tmp_path / "timm"), str(photos / "red" / "000.png")
    data, rows = str(photos), str(tmp_path / "rows.csv")
    done = run(
        [
            ["train", data, *TINY, "--out", model],
            ["finetune", data, "--from", model, "--tune", "lora", *TINY[2:],
             "--report", "no", "--out", tuned],
            ["evaluate", tuned, data, "--workers", "0", "--out", rows],
            ["predict", model, image, "--json"],
            ["export", tuned, "--to", "timm", "--out", theirs],
            ["evaluate", theirs, data, "--workers", "0", "--json"],
            ["fewshot", model, data, "--shots", "1", "--seeds", "1", "--cache", "no"],
            ["prepare", data, str(tmp_path / "copy"), "--format", "tar"],
        ]
    )  # fmt: skip
    assert [code for code, _, _ in done] == [0] * len(done), done
    assert (tmp_path / "run" / "report.html").is_file()
    assert len(Path(rows).read_text().splitlines()) > 10
    assert json.loads(done[3][1])["predictions"][0]["top"]
    found = json.loads(done[5][1])
    assert 0 < found["images"] < 60  # the rest was learned from, which timm's folder says too


def test_what_needs_an_extra_names_it_in_one_line(run: Run, photos: Path, tmp_path: Path) -> None:
    data, new = str(photos), str(tmp_path / "new")
    vitlab.save(vitlab.create("ViT(width=16,depth=1,heads=2,mlp=32)/8", 3, 32), tmp_path / "model")
    model, table = str(tmp_path / "model"), tmp_path / "table.parquet"
    table.touch()
    lines = {
        ("train", "user/name"): ("datasets", "datasets"),
        ("train", str(table)): ("pyarrow", "datasets"),
        ("prepare", data, new): ("datasets", "datasets"),
        ("embed", model, data, "--out", new): ("pyarrow", "datasets"),
        ("predict", model, data, "--out", f"{new}.parquet"): ("pyarrow", "datasets"),
        ("train", data, "--optimizer", "lars", "--out", new): ("pytorch_optimizer", "optimizers"),
    }
    before = sorted(tmp_path.rglob("*"))
    for words, (code, out, err) in zip(lines, run([list(each) for each in lines]), strict=True):
        assert (code, out) == (2, ""), (words, err)
        assert EXTRA.format(*lines[words]) in err
        assert err.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_every_package_is_in_the_extra_that_is_named() -> None:
    project = Path(__file__).parents[2] / "pyproject.toml"
    extras = tomllib.loads(project.read_text())["project"]["optional-dependencies"]
    brought = {"pyarrow": "datasets"}  # comes with it
    for package, extra in EXTRAS.items():
        wanted = brought.get(package, package)
        names = [re.split(r"[>\[]", each)[0].replace("-", "_") for each in extras[extra]]
        assert wanted in names, package
    core = tomllib.loads(project.read_text())["project"]["dependencies"]
    assert not [each for each in core if each.partition(">")[0].replace("-", "_") in EXTRAS]


def test_a_package_that_cannot_be_imported_is_told_from_a_missing_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pytorch_optimizer.py").write_text("raise ImportError('built for\\nanother NumPy')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, (name := "pytorch_optimizer"), raising=False)
    check_installed(name, "optimizer=lars")
    broken = rf"^{name} cannot be imported \(built for another NumPy\)"
    with pytest.raises(PackageError, match=broken):
        needed(name, "optimizer=lars")
    monkeypatch.setitem(sys.modules, name, None)
    missing = rf"^optimizer=lars needs the package {name}: .*, or optimizer=sgd$"
    with pytest.raises(PackageError, match=missing):
        needed(name, "optimizer=lars", "optimizer=sgd")


def test_a_checkout_that_is_not_installed_says_so_instead_of_a_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    missing = Mock(side_effect=PackageNotFoundError("vitlab"))
    monkeypatch.setattr(packages, "version", missing)
    assert versions()["vitlab"] == "not installed"
