"""Runs on images in memory: the same bits as of the folder they came from, by every door."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitlab
from conftest import BRIEF, call, photo
from training.kept import stopped
from vitlab.data.open_splits import open_to_learn
from vitlab.errors import DataError, OptionError, RunError
from vitlab.evaluation.calibration import validation_of
from vitlab.recipes.recipe import Host, Recipe
from vitlab.runs.run_folder import RunFolder
from vitlab.training.ending import Run
from vitlab.training.run_data import learning_from

CPU = Host(device="cpu", workers=0, effort=BRIEF)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Large JPEGs, which are decoded at a fraction of their size."""
    root = tmp_path / "photos"
    for tint, name in enumerate(("ash", "elm")):
        (root / name).mkdir(parents=True)
        for number in range(5):
            picture = photo(number, 80, 100 + 8 * number, tint)
            picture.save(root / name / f"{number}.jpg", quality=90)
    return root


def pairs_of(root: Path) -> list[tuple[bytes, str]]:
    return [(file.read_bytes(), file.parent.name) for file in sorted(root.rglob("*.jpg"))]


def recipe(data: str = "", **more: Any) -> Recipe:
    model = "ViT(width=16,depth=1,heads=2,mlp=16)/8"
    few: dict[str, Any] = {"image_size": 16, "steps": 3, "batch": 4, "warmup": 0}
    return vitlab.recipe("small", data, model=model, **few | more)


def weights(run: Run) -> torch.Tensor:
    return torch.cat([each.detach().flatten() for each in run.model.parameters()])


def probabilities(file: Path) -> list[list[float]]:
    with file.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    return [[float(v) for k, v in row.items() if k.startswith("p(")] for row in rows]


def test_every_door_sees_the_same_pixels(folder: Path, tmp_path: Path) -> None:
    pairs = pairs_of(folder)
    from_files = vitlab.train(recipe(str(folder)), tmp_path / "files", host=CPU)
    run = vitlab.train(recipe(), tmp_path / "memory", data=pairs, host=CPU)
    assert torch.equal(weights(run), weights(from_files))
    model = run.model
    for data, name in ((pairs, "a"), (str(folder), "b")):
        figures = vitlab.evaluate(
            model, data, split="all", device="cpu", out=tmp_path / f"{name}.csv"
        )
        assert (figures["split"], figures["images"]) == ("all", 10)
        assert vitlab.duplicates(data, workers=0) == vitlab.duplicates(str(folder), workers=0)
    own = probabilities(tmp_path / "a.csv")
    assert own == probabilities(tmp_path / "b.csv")
    answers = [dict(each.classes) for each in vitlab.classify(model, [i for i, _ in pairs])]
    assert [[each["ash"], each["elm"]] for each in answers] == pytest.approx(
        np.array(own), abs=1e-6
    )
    inputs = vitlab.preprocess(model)([image for image, _ in pairs])
    with torch.inference_mode():
        logits = model.eval()(inputs)
    assert logits.softmax(-1).numpy() == pytest.approx(np.array(own), abs=1e-6)


def test_what_was_held_out_is_known_again(folder: Path, tmp_path: Path) -> None:
    pairs = pairs_of(folder)
    run = vitlab.train(recipe(), tmp_path / "run", data=pairs, host=CPU)
    figures = vitlab.evaluate(run.model, pairs, device="cpu")
    held_out = len(open_to_learn(pairs).test)
    assert (figures["split"], figures["images"]) == ("test", held_out)
    assert 0 < held_out < 5  # of ten, a fifth or so
    assert figures["nll"] == pytest.approx(run.metrics["nll"])
    assert vitlab.evaluate(run.model, str(folder), device="cpu")["split"] == "test"
    assert RunFolder(run.folder).recipe.data.data == "in memory"


def test_a_run_goes_on_with_the_same_images_only(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs, out = pairs_of(folder), tmp_path / "run"
    whole = vitlab.train(recipe(), tmp_path / "whole", data=pairs, host=CPU)

    stopped(2, recipe(), out, data=pairs)
    with pytest.raises(DataError, match=r"were in memory: give them again in Python, with data="):
        vitlab.train(RunFolder(out).recipe, out, resume=True, host=CPU)
    code, _, err = call(capsys, "train", "--out", str(out), "--resume")
    assert code == 2
    assert "these images were in memory" in err
    with pytest.raises(
        RunError, match="with other images: give the same ones with the same labels"
    ):
        vitlab.train(recipe(), out, data=pairs[::-1], resume=True, host=CPU)
    again = vitlab.train(recipe(), out, data=pairs, resume=True, host=CPU)
    assert torch.equal(weights(again), weights(whole))


def test_data_is_given_once(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(
        OptionError, match="data=elsewhere of the recipe and the data given exclude"
    ):
        vitlab.train(recipe("elsewhere"), tmp_path / "run", data=pairs_of(folder), host=CPU)
    assert learning_from(recipe(), folder) == (recipe(str(folder)), None)
    assert learning_from(vitlab.recipe("digits"), "photos")[0].data.data == "photos"
    with pytest.raises(DataError, match="no data given"):
        vitlab.train(recipe(), tmp_path / "none", host=CPU)


def test_fine_tuning_and_calibrating(folder: Path, tmp_path: Path) -> None:
    images = [
        (np.asarray(Image.open(file)), int(file.parent.name == "elm"))
        for file in sorted(folder.rglob("*.jpg"))
    ]
    data = {"train": images[::2], "val": images[1::4], "test": images[3::4], "classes": ["x", "y"]}
    base = vitlab.create("ViT(width=16,depth=1,heads=2,mlp=16)/8", 2, 16)
    few: dict[str, Any] = {"steps": 2, "batch": 4, "warmup": 0}
    run = vitlab.finetune(data, base, tmp_path / "run", tune="head", host=CPU, **few)
    assert run.model.config.labels == ("x", "y")
    assert vitlab.evaluate(run.model, data, device="cpu")["images"] == len(images[3::4])
    with pytest.raises(DataError, match=r"labels of the given data are numbers, and the classes"):
        vitlab.evaluate(run.model, images, device="cpu")
    assert len(validation_of(run.model, data)) == len(images[1::4])
    with pytest.raises(OptionError, match="protocol needs the data set's folder"):
        vitlab.evaluate(run.model, data, protocol="v2")
