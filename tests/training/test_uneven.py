"""Runs on uneven classes, and on some of the training images."""

import shutil
import tomllib
from pathlib import Path

import pytest

import vitlab
from conftest import BRIEF, TINY, call, photo_folder
from training.kept import resumed, stopped, weights
from vitlab.data.holdout import with_validation
from vitlab.data.open_splits import open_to_learn
from vitlab.errors import OptionError
from vitlab.recipes.recipe import Host

QUICK = TINY | {"epochs": 1, "batch": 16, "image_size": 8}
HOST = Host(workers=0, effort=BRIEF)


@pytest.fixture
def uneven(tmp_path: Path) -> Path:
    """Three classes of 50, 10 and 5 pictures, of which about a fifth each is to test on."""
    return photo_folder(tmp_path / "photos", {"blue": 50, "green": 10, "red": 5}, 8, 8)


def counted(folder: Path) -> tuple[dict[str, int], dict[str, int]]:
    """The images of each class to train and to test on."""
    splits = open_to_learn(str(folder))
    return splits.train.counts(), splits.test.counts()


def table(run: Path, name: str) -> dict[str, object]:
    return dict(tomllib.loads((run / "run.toml").read_text())[name])


def test_stopped_and_resumed_the_bits_are_the_same(uneven: Path, tmp_path: Path) -> None:
    recipe = vitlab.recipe("small", str(uneven), balance="sampling", mixup=0.2, **QUICK)
    whole = vitlab.train(recipe, tmp_path / "whole", host=HOST)
    stopped(2, recipe, tmp_path / "run", HOST)
    assert weights(resumed(recipe, tmp_path / "run", Host(workers=1, effort=BRIEF))) == weights(
        whole
    )
    none = vitlab.train(recipe.changed(balance="none"), tmp_path / "none", host=HOST)
    assert weights(none) != weights(whole)


def test_very_uneven_classes_are_weighted_and_a_line_says_so(
    uneven: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", str(uneven), "--out", str(tmp_path / "run"), "--workers", "0"]
    words += [f"--{key.replace('_', '-')}={value}" for key, value in QUICK.items()]
    status, out, err = call(capsys, *words)
    assert status == 0
    assert "accuracy" in out
    assert "top5" not in out  # of three classes
    train, test = counted(uneven)
    told = ", ".join(f"{name} {count}" for name, count in train.items())
    assert f"training images per class: {told}" in err
    majority = f"{test['blue'] / sum(test.values()):.1%}"
    assert f"always answering 'blue' would be right for {majority} of the test images" in err
    line = " times the images of the smallest: images are weighted by their"
    assert err.count(line) == 1
    assert table(tmp_path / "run", "objective")["balance"] == "weights"


def test_the_largest_class_alone_is_measured_on_the_same_images(tmp_path: Path) -> None:
    """Those that could be read, as every other figure of the run."""
    for split in ("train", "test"):
        photo_folder(tmp_path / "data" / split, {"blue": 6, "red": 3}, 8, 8)
    next((tmp_path / "data" / "test" / "blue").iterdir()).write_bytes(b"damaged")
    recipe = vitlab.recipe("small", str(tmp_path / "data"), **QUICK)
    found = vitlab.train(recipe, tmp_path / "run", host=HOST).metrics
    assert (found["images"], found["majority"]) == (8, 5 / 8)


def test_a_run_that_goes_on_keeps_what_was_decided(uneven: Path, tmp_path: Path) -> None:
    """Also one of the time before there was anything to decide; even classes are left alone."""
    auto = vitlab.recipe("small", str(uneven), **QUICK)
    photos = photo_folder(tmp_path / "few", {"blue": 9, "red": 9}, 16, 16)
    even = vitlab.train(auto.changed(data=str(photos), steps=1), tmp_path / "even", host=HOST)
    assert table(even.folder, "objective")["balance"] == "none"
    none = auto.changed(balance="none")
    stopped(1, none, tmp_path / "run", HOST)
    whole = shutil.copytree(tmp_path / "run", tmp_path / "whole")
    file = tmp_path / "run" / "run.toml"
    later = ("balance", "weight_beta", "focal_gamma", "train_images")
    lines = file.read_text().splitlines(keepends=True)
    old = [line for line in lines if not line.startswith(later)]
    assert len(old) == len(lines) - len(later)
    file.write_text("".join(old))
    assert weights(resumed(auto, tmp_path / "run", HOST)) == weights(resumed(none, whole, HOST))


# Some of the training images


def test_a_share_of_the_training_images(uneven: Path, tmp_path: Path) -> None:
    recipe = vitlab.recipe("small", str(uneven), train_images=0.5, **QUICK)
    whole = sum(counted(uneven)[0].values())
    half = round(0.5 * whole)
    stopped(2, recipe, tmp_path / "run", HOST)
    run = resumed(recipe.changed(train_images=half), tmp_path / "run", HOST)
    assert table(run.folder, "data")["train_images"] == half
    assert run.model.provenance["train_images"] == half
    with pytest.raises(ValueError, match=f"was started with train_images={half}, not 0"):
        resumed(recipe.changed(train_images=0), tmp_path / "run", HOST)


def test_evaluation_uses_exactly_what_training_held_out(uneven: Path, tmp_path: Path) -> None:
    how = QUICK | {"train_images": 20, "patience": 9, "epochs": 2}
    recipe = vitlab.recipe("small", str(uneven), **how)
    run = vitlab.train(recipe, tmp_path / "run", host=HOST)
    figures = vitlab.evaluate(vitlab.load(run.folder), str(uneven))
    assert figures["images"] == run.metrics["images"] == sum(counted(uneven)[1].values())
    assert figures["nll"] == pytest.approx(run.metrics["nll"])
    for key in ("accuracy", "classes", "confused"):
        assert figures[key] == run.metrics[key]
    aside = with_validation(open_to_learn(str(uneven))).validation
    assert aside is not None
    held = f"to decide when to stop (always the same): {len(aside)} images"  # of all images
    assert any(held in note for note in run.metrics["notes"])


def test_wrong_amounts_leave_no_folder(uneven: Path, tmp_path: Path) -> None:
    whole = sum(counted(uneven)[0].values())
    for amount, message in (
        (whole + 1, f"there are only {whole} training images"),
        (2, "too few to show"),
    ):
        recipe = vitlab.recipe("small", str(uneven), train_images=amount, **QUICK)
        with pytest.raises(OptionError, match=message) as caught:
            vitlab.train(recipe, tmp_path / "run", host=HOST)
        assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()
