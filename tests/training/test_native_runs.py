"""Whole runs on images that keep their aspect ratio."""

from pathlib import Path

import numpy as np
import pytest
import torch

import vitlab
from conftest import photo
from training.kept import resumed, stopped, weights
from vitlab.errors import OptionError
from vitlab.recipes.recipe import Host

SHAPES = [(24, 32), (40, 20), (64, 9), (16, 16), (13, 57)]
FIELDS = {
    "model": "ViT(width=32,depth=2,heads=2,mlp=48)/4", "image_size": 16, "fit": "native",
    "tokens": 24, "mixup": 0.0, "cutmix": 0.0, "area": 0.5, "flip": True, "drop_path": 0.2,
    "epochs": 4, "batch": 12, "micro_batch": 5, "warmup": 0, "lr": 3e-3, "erase": 0.2,
    "test_fraction": 0.4,
}  # fmt: skip


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes of pictures of five shapes, which their tint tells apart."""
    root = tmp_path_factory.mktemp("data") / "shapes"
    for tint, name in enumerate(("a", "b")):
        (root / name).mkdir(parents=True)
        for number in range(30):
            photo(number, *SHAPES[number % 5], tint).save(root / name / f"{number:02d}.png")
    return root


@pytest.fixture(scope="module")
def run(shapes: Path, tmp_path_factory: pytest.TempPathFactory) -> vitlab.Run:
    recipe = vitlab.recipe("small", str(shapes), **FIELDS)
    return vitlab.train(recipe, tmp_path_factory.mktemp("runs") / "run", host=Host(workers=0))


def test_a_native_run_learns_and_its_model_stays_native(run: vitlab.Run) -> None:
    assert run.metrics["accuracy"] > 0.8
    config = vitlab.load(run.folder).config
    assert (config.fit, config.tokens) == ("native", 24)


def test_stopped_resumed_and_with_workers_the_bits_are_the_same(
    run: vitlab.Run, shapes: Path, tmp_path: Path
) -> None:
    recipe = vitlab.recipe("small", str(shapes), **FIELDS)
    stopped(5, recipe, tmp_path / "r", Host(workers=2))
    assert weights(resumed(recipe, tmp_path / "r", Host(workers=0))) == weights(run)


def test_evaluation_and_features(run: vitlab.Run, shapes: Path, tmp_path: Path) -> None:
    plain, flipped = (
        vitlab.evaluate(run.model, str(shapes), split="all", flips=flips) for flips in (False, True)
    )
    assert plain["images"] == 60
    assert flipped["nll"] != plain["nll"]
    assert vitlab.embed(run.model, str(shapes), tmp_path / "rows.parquet")["images"] == 60
    with pytest.raises(OptionError, match="with fit=native: take features"):
        vitlab.embed(run.model, str(shapes), tmp_path / "more.parquet", what="tokens")


def test_probabilities_are_those_of_one_image_at_a_time(run: vitlab.Run, shapes: Path) -> None:
    """Against pixels resized here: the largest multiples of 4 of the same shape, 24 patches."""
    from PIL import Image

    files = [shapes / "a" / f"{number:02d}.png" for number in range(5)]
    answers = vitlab.classify(run.model, [str(file) for file in files], top=2)
    grids = {
        (24, 32): (4, 6),
        (40, 20): (6, 3),
        (64, 9): (12, 2),
        (16, 16): (4, 4),
        (13, 57): (2, 9),
    }
    config = run.model.config
    for file, answer in zip(files, answers, strict=True):
        with Image.open(file) as image:
            rows, columns = grids[image.height, image.width]
            small = image.convert("RGB").resize((4 * columns, 4 * rows), Image.Resampling.BILINEAR)
        pixels = torch.from_numpy(np.array(small)).permute(2, 0, 1)[None] / 255
        mean, std = (torch.tensor(each)[:, None, None] for each in (config.mean, config.std))
        with torch.inference_mode():
            chances = run.model((pixels - mean) / std).softmax(-1)[0]
        for name, chance in answer.classes:
            assert chance == pytest.approx(float(chances[config.labels.index(name)]), abs=1e-5)


def test_fine_tuning_goes_on_from_square_weights_and_back(
    run: vitlab.Run, shapes: Path, tmp_path: Path
) -> None:
    some = {"steps": 1, "batch": 12, "test_fraction": 0.4, "head_start": "zero"}
    square = vitlab.finetune(str(shapes), run.folder, tmp_path / "square", fit="squash", **some)
    assert square.model.config.fit == "squash"
    back = vitlab.finetune(
        str(shapes), square.folder, tmp_path / "back", fit="native", tokens=30, **some
    )
    assert (back.model.config.fit, back.model.config.tokens) == ("native", 30)
