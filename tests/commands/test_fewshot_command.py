"""`vitlab fewshot`: the normal path, and what is refused."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import vitlab
from conftest import call, photo_folder
from vitlab.data.open_splits import open_to_learn
from vitlab.errors import DataError
from vitlab.evaluation.compute import Compute
from vitlab.evaluation.feature_cache import default_cache
from vitlab.evaluation.features import features_in_memory
from vitlab.evaluation.probes.feature_options import Probing, ProtocolName
from vitlab.evaluation.probes.probing import probe

QUIET = ("--workers", "0", "--json")


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> str:
    made = vitlab.create("ViT(width=16,depth=1,heads=2,mlp=32)/4", classes=3, image_size=8)
    return str(vitlab.save(made, tmp_path_factory.mktemp("model") / "weights"))


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "photos"
    return photo_folder(folder, {"blue": 20, "green": 20, "red": 20})


def test_the_figures_are_those_of_the_parts(
    capsys: pytest.CaptureFixture[str], digits_run: Path
) -> None:
    words = ("fewshot", str(digits_run), "digits", "--shots", "5", "2", "--seeds", "2")
    code, out, err = call(capsys, *words, *QUIET)
    found = json.loads(out)
    assert code == 0
    assert f"features are kept in {default_cache()}" in err
    assert list(found["fewshot"]) == list(found["fewshot_auto"]) == ["2", "5"]
    assert set(found["knn"]) == {"10", "20", "100", "200"}
    assert (found["images"], found["train_images"]) == (359, 1438)
    model, splits, compute = vitlab.load(digits_run), open_to_learn("digits"), Compute("cpu")
    x, test = (
        features_in_memory(model, each, compute).values for each in (splits.train, splits.test)
    )
    y, truth = splits.train.target.values, splits.test.target.values
    for shots in (2, 5):
        each = []
        for seed in range(2):
            draw = np.random.default_rng(seed)
            order = [draw.permutation(np.flatnonzero(y == label))[:shots] for label in range(10)]
            rows = np.concatenate(order)
            each.append((vitlab.fewshot(x[rows], y[rows], test) == truth).mean())
        own = found["fewshot"][str(shots)]
        assert own["seeds"] == pytest.approx(each, abs=2 / 359)
        assert own["accuracy"] == pytest.approx(np.mean(own["seeds"]))
        assert own["std"] == pytest.approx(np.std(own["seeds"], ddof=1))
        low, high = own["interval"]
        assert low < own["accuracy"] < high < low + 0.11
    assert found["logistic"]["accuracy"] > found["fewshot"]["5"]["accuracy"]
    code, again, _ = call(capsys, *words, *QUIET)
    old, new = (json.loads(text) | {"seconds": 0} for text in (out, again))
    assert old == new, "from the cache"


def test_the_table_and_the_probes_that_are_left_out(
    capsys: pytest.CaptureFixture[str], weights: str, photos: Path
) -> None:
    words = ("fewshot", weights, str(photos), "--shots", "1", "--workers", "0")
    code, out, err = call(capsys, *words, "--cache", "no")
    assert code == 0
    for text in ("1 shot, l2 1024", "1 shot, l2 auto", "10 neighbors", "DINOv2"):
        assert text in out
    assert "100 neighbors" not in out, "there are no more than 49"
    assert "kept in" not in err
    assert not default_cache().exists()
    means = ("--protocol", "means", "fewshot", "--l2", "4", "--json")
    found = json.loads(call(capsys, *words, *means)[1])
    kinds = {"knn", "means", "logistic", "fewshot", "fewshot_auto"}
    assert set(found) & kinds == {"means", "fewshot"}
    assert found["fewshot"]["1"]["name"] == "1 shot, l2 4"
    big_vision = ("--fit", "squash", "--crop", "0.875", "--image-size", "16")
    for more, kept in ((big_vision, 4), (("--what", "mean", "--layer", "0"), 6)):
        assert call(capsys, *words, *means, *more)[0] == 0
        files = len(list(default_cache().glob("*.safetensors")))
        assert files == kept, "other features each time"


@pytest.mark.parametrize("protocol", ["knn", "means", "logistic"])
def test_features_that_are_no_numbers_are_refused(
    weights: str, photos: Path, protocol: ProtocolName
) -> None:
    model = vitlab.load(weights)
    with torch.no_grad():
        next(model.parameters()).fill_(torch.nan)
    how = Probing(protocol=(protocol,), cache="no")
    with pytest.raises(DataError, match="images a feature that is not a number"):
        probe(model, str(photos), how, Compute("cpu", workers=0))


def test_rows_that_a_class_is_too_small_for_are_left_out_and_named(
    capsys: pytest.CaptureFixture[str], weights: str, photos: Path
) -> None:
    given = ("fewshot", weights, str(photos), "--workers", "0")
    code, out, err = call(capsys, *given, "--shots", "1", "5", "17", "25", "--json")
    assert code == 0
    line = "left out: 17 shots, 25 shots, since class 'red' has 12 training images"
    assert line in err
    found = json.loads(out)
    assert line in found["notes"]
    assert [list(found[name]) for name in ("fewshot", "fewshot_auto")] == [["1", "5"]] * 2
    one, other = (found[name]["1"]["seeds"] for name in ("fewshot", "fewshot_auto"))
    assert one == other, "nothing can be left out of 1 shot"
    code, out, _ = call(capsys, *given, "--shots", "5", "--image-size", "16")
    assert code == 0
    for text in ("5 shots, l2 1024", "5 shots, l2 auto", "class means"):
        assert text in out


def test_a_class_of_one_image_and_no_row_left(
    capsys: pytest.CaptureFixture[str], weights: str, tmp_path: Path
) -> None:
    folder = str(photo_folder(tmp_path / "photos", {"a": 1, "b": 3}))
    code, out, err = call(capsys, "fewshot", weights, folder, "--shots", "5", *QUIET)
    assert code == 0, err
    assert "left out: 5 shots, since class 'a' has 1 training image" in err
    text = "left out: logistic regression, DINOv2, since there are too few training images to hold"
    assert text in err
    found = json.loads(out)
    assert found["fewshot"] == {}
    assert "logistic" not in found
    assert "means" in found
    assert list(found["knn"]) == [str(found["train_images"])], "there are fewer than ten"
