"""Whole runs on images that keep their aspect ratio."""

from pathlib import Path

import pytest

import vitlab
from conftest import BRIEF, LIGHT, photo
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
    return vitlab.train(
        recipe, tmp_path_factory.mktemp("runs") / "run", host=Host(workers=0, effort=BRIEF)
    )


def test_a_native_run_learns_and_its_model_stays_native(run: vitlab.Run) -> None:
    assert run.metrics["accuracy"] > 0.8
    config = vitlab.load(run.folder).config
    assert (config.fit, config.tokens) == ("native", 24)


def test_stopped_resumed_and_with_workers_the_bits_are_the_same(
    run: vitlab.Run, shapes: Path, tmp_path: Path
) -> None:
    recipe = vitlab.recipe("small", str(shapes), **FIELDS)
    stopped(5, recipe, tmp_path / "r", Host(workers=2, effort=BRIEF))
    assert weights(resumed(recipe, tmp_path / "r", Host(workers=0, effort=BRIEF))) == weights(run)


def test_evaluation_and_features(run: vitlab.Run, shapes: Path, tmp_path: Path) -> None:
    plain, flipped = (
        vitlab.evaluate(run.model, str(shapes), split="all", flips=flips) for flips in (False, True)
    )
    assert plain["images"] == 60
    assert flipped["nll"] != plain["nll"]
    assert vitlab.embed(run.model, str(shapes), tmp_path / "rows.parquet")["images"] == 60
    with pytest.raises(OptionError, match="with fit=native: take features"):
        vitlab.embed(run.model, str(shapes), tmp_path / "more.parquet", what="tokens")


def test_fine_tuning_goes_on_from_square_weights_and_back(
    run: vitlab.Run, shapes: Path, tmp_path: Path
) -> None:
    some = {"steps": 1, "batch": 12, "test_fraction": 0.4, "head_start": "zero"}
    square = vitlab.finetune(
        str(shapes), run.folder, tmp_path / "square", fit="squash", **some, host=LIGHT
    )
    assert square.model.config.fit == "squash"
    back = vitlab.finetune(
        str(shapes), square.folder, tmp_path / "back", fit="native", tokens=30, **some, host=LIGHT
    )
    assert (back.model.config.fit, back.model.config.tokens) == ("native", 30)
