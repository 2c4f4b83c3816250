"""The benchmark of CIFAR-10: a dry run on made-up images."""

import importlib
import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from docs.pages import ROOT

pytestmark = pytest.mark.benchmarks

FOLDER = ROOT / "benchmarks"
TINY = ["--model", "ViT(width=32,depth=1,heads=2,mlp=32)/4", "--device", "cpu"]
FIXED = [*TINY, "--epochs", "24", "--set", "batch=32", "optimizer=adamw", "lr=0.005", "ema=0"]


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("cifar10")


def drawn(count: int, seed: int) -> tuple[Any, Any]:
    """Noise with a brighter half per class: left, right, upper or lower."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 4, count)
    pixels = generator.integers(0, 100, (count, 8, 8, 3), np.uint8)
    pixels[labels == 0, :, :4] += 100
    pixels[labels == 1, :, 4:] += 100
    pixels[labels == 2, :4] += 100
    pixels[labels == 3, 4:] += 100
    return pixels, labels


def encoded(pixels: Any) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "png")
    return stream.getvalue()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (x, y), (a, b) = drawn(256, 0), drawn(64, 1)
    np.savez(tmp_path / "made.npz", x_train=x, y_train=y, x_test=a, y_test=b)
    return tmp_path / "made.npz"


@pytest.fixture
def fitted(benchmark: Any, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Any]]:
    """The training images and the state of every run."""
    found: list[tuple[Any, Any]] = []
    fit = benchmark.fit

    def kept(recipe: Any, images: Any, *others: Any) -> Any:
        state = fit(recipe, images, *others)
        found.append((images, state))
        return state

    monkeypatch.setattr(benchmark, "fit", kept)
    return found


def test_a_fixed_length_learns(
    benchmark: Any, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    benchmark.main([str(data), *FIXED, "flip=false", "--out", str(tmp_path / "seen.json")])
    seen = json.loads((tmp_path / "seen.json").read_text())
    assert seen["accuracy"] > 0.5, seen["accuracy"]
    assert (seen["steps"], seen["tested"], seen["held_out"]) == (192, 64, False)
    shown = capsys.readouterr().out
    assert f"| {seen['accuracy']:.2%} | 24.0 |" in shown
    assert f"torch {torch.__version__}" in shown


def test_held_out_images_are_the_last_of_the_training_images(
    benchmark: Any, data: Path, fitted: list[tuple[Any, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    benchmark.main([str(data), *FIXED[:-4], "batch=32", "--epochs", "0.2", "--held-out", "56"])
    (images, _), (pixels, _) = fitted[0], drawn(256, 0)
    assert np.array_equal(images.pixels.numpy(), pixels[:200])
    assert "% held out |" in capsys.readouterr().out


def test_parquet_files_and_their_conversion_hold_the_same_images(
    benchmark: Any, data: Path, tmp_path: Path
) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = importlib.import_module("pyarrow.parquet")
    for split, count, seed in (("train", 256, 0), ("test", 64, 1)):
        pixels, labels = drawn(count, seed)
        images = [{"bytes": encoded(each), "path": ""} for each in pixels]
        table = pyarrow.table({"image": images, "label": labels})
        parquet.write_table(table, tmp_path / f"made-{split}.parquet")
    benchmark.main([str(tmp_path), "--convert", str(tmp_path / "again.npz")])
    with np.load(data) as wanted, np.load(tmp_path / "again.npz") as found:
        for name in wanted.files:
            assert np.array_equal(wanted[name], found[name]), name


def test_missing_data_and_pyarrow_are_named_in_one_line(
    benchmark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit, match=r"has no \*train\*\.parquet or .*: name a folder .*$"):
        benchmark.main([str(tmp_path)])
    for split in ("train", "test"):
        (tmp_path / f"{split}.parquet").touch()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(SystemExit, match=r"needs pyarrow: install it, or .* with --convert$"):
        benchmark.main([str(tmp_path)])
