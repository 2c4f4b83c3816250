"""Test images among the training images: refused, reported, or left out."""

import json
import shutil
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from PIL import Image

import vitlab
from conftest import BRIEF
from vitlab.data.images import Images
from vitlab.data.labels import SingleLabels
from vitlab.data.sources.memory import Arrays
from vitlab.data.splits import Splits
from vitlab.errors import DataError
from vitlab.models.seen import NOTHING
from vitlab.recipes.recipe import Host
from vitlab.runs.run_folder import RunFolder
from vitlab.training import leaks as leaking
from vitlab.training.leak_scope import (
    BYTE,
    IMAGE,
    LeakScope,
    bound_share,
    images_searched,
    time_limit,
)
from vitlab.training.leaks import applied, find_leaks


def picture(seed: int) -> Image.Image:
    """A rough picture of its own."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (9, 9, 3), np.uint8)
    return Image.fromarray(coarse).resize((32, 32), Image.Resampling.BICUBIC)


def folders(root: Path, copied: int = 0, flipped: bool = True) -> Path:
    """Ten training and six test images in two classes; some test images are altered copies."""
    for split, count, offset in (("train", 10, 0), ("test", 6, 100)):
        for n in range(count):
            image = picture(n if split == "test" and n < copied else n + offset)
            if split == "test" and n < copied and flipped:
                image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
            file = root / split / "ab"[n % 2] / f"{n}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            image.save(file)
    return root


def trained(data: Path, out: Path, host: Host | None = None, **fields: Any) -> vitlab.Run:
    recipe = vitlab.recipe(
        "digits", data=str(data), model="ViT-Ti/16", width=16, depth=1, heads=1, steps=2, batch=4,
        **fields,
    )  # fmt: skip
    return vitlab.train(recipe, out, host=host or Host(workers=0, effort=BRIEF))


def test_the_run_says_how_many_test_images_were_trained_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = folders(tmp_path / "data", copied=2)
    shutil.copy(data / "train" / "a" / "4.png", data / "train" / "b" / "again.png")
    shutil.copy(data / "train" / "a" / "4.png", data / "train" / "a" / "same-class.png")
    run = trained(data, tmp_path / "run")
    assert run.metrics["trained_on"] == 2
    assert 0 <= run.metrics["accuracy_without"] <= 1
    line = "2 of the 6 test images are among the training images, as near-duplicates"
    err = capsys.readouterr().err
    assert line in err
    twice = "1 training images occur again under another class, such as "
    place = data / "train"
    assert f"{twice}{place / 'a' / '4.png'} and {place / 'b' / 'again.png'}\n" in err
    assert any(line in note for note in run.metrics["notes"])
    kept = json.loads((tmp_path / "run" / "duplicates.json").read_text())
    assert kept["kind"] == "near"
    assert len(kept["train"]) == len(kept["test"]) == 2


def test_copies_of_pictures_without_details_are_noticed(tmp_path: Path) -> None:
    data = folders(tmp_path / "data")
    for number, shade in enumerate((10, 200, 250)):
        plain = Image.new("RGB", (32, 32), (shade,) * 3)
        plain.save(data / "train" / "a" / f"plain-{number}.png")
        plain.save(data / "test" / "b" / f"plain-{number}.png")
    for split in ("train", "test"):  # damaged images, with other bytes, are no copies
        (data / split / "a" / "0.png").write_bytes(split.encode())
    found = trained(data, tmp_path / "run")
    assert found.metrics["trained_on"] == 3
    for file in data.rglob("test/?/[0-9].png"):
        file.unlink()
    with pytest.raises(DataError, match="3 of the 3 test images are copies of training images"):
        trained(data, tmp_path / "other")


def test_near_duplicates_are_left_out_and_stay_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = folders(tmp_path / "data", copied=3)
    run = trained(data, tmp_path / "run", drop_duplicates=True)
    assert "left out of training: 3 of 10 training images" in capsys.readouterr().err
    assert "trained_on" not in run.metrics
    folder = RunFolder(tmp_path / "run")
    assert folder.recipe.data.drop_duplicates
    # a run that goes on keeps to what was found
    shutil.rmtree(folder.checkpoints)
    lines = folder.journal.file.read_text().splitlines()
    folder.journal.file.write_text("\n".join(lines[:1]) + "\n")
    monkeypatch.setattr(leaking, "signatures", None)
    again = vitlab.train(
        folder.recipe, folder.path, resume=True, host=Host(workers=0, effort=BRIEF)
    )
    first, second = run.model.state_dict(), again.model.state_dict()
    assert all((first[name] == second[name]).all() for name in first)


def test_a_test_split_that_is_part_of_the_training_files_is_refused(tmp_path: Path) -> None:
    data = folders(tmp_path / "data")
    rows = [f"train/{'ab'[n % 2]}/{n}.png,{'ab'[n % 2]}" for n in range(10)]
    listed = data / "list.csv"
    lines = ["path,label,split", *(f"{row},train" for row in rows)]
    listed.write_text("\n".join([*lines, *(f"./{row},test" for row in rows[:4])]))
    with pytest.raises(DataError, match=r"4 of the 4 test images are training files too") as error:
        trained(listed, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert "drop_duplicates=True" in str(error.value)
    trained(listed, tmp_path / "run", drop_duplicates=True)


def test_a_test_split_of_copies_is_refused(tmp_path: Path) -> None:
    data = folders(tmp_path / "data")
    shutil.rmtree(data / "test")
    shutil.copytree(data / "train", data / "test")
    with pytest.raises(DataError, match="10 of the 10 test images are copies of training images"):
        trained(data, tmp_path / "run")
    with pytest.raises(DataError, match="nothing is left to learn from"):
        trained(data, tmp_path / "run", drop_duplicates=True)
    assert not (tmp_path / "run").exists()


def test_unsplit_images_that_all_look_alike_are_refused(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    for number in range(24):
        pixels[0, 0] = number
        folder = tmp_path / "data" / "ab"[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    with pytest.raises(DataError, match="nothing is left to learn from; without drop_"):
        trained(tmp_path / "data", tmp_path / "run")
    host = Host(workers=0, check_duplicates="no", report="no", effort=BRIEF)
    assert trained(tmp_path / "data", tmp_path / "run", host).metrics["accuracy"] >= 0


def many(train: int, test: int, side: int = 16) -> Splits:
    """Images in memory: of the test images 10 are copies, and 30 mirrored ones."""
    rng = np.random.default_rng(1)
    coarse = torch.from_numpy(rng.integers(0, 256, (train + test, 3, 6, 6), np.uint8)).float()
    smooth = torch.nn.functional.interpolate(coarse, side, mode="bicubic").clamp(0, 255)
    pixels = smooth.permute(0, 2, 3, 1).to(torch.uint8).numpy()
    pixels[train : train + 10] = pixels[:10]
    pixels[train + 10 : train + 40] = pixels[10:40, :, ::-1]
    labels = SingleLabels(np.arange(train + test) % 2)
    whole = Images.of(Arrays(pixels), labels, ("a", "b"))
    return Splits(whole.take(np.arange(train)), whole.take(np.arange(train, train + test)))


def leaks_of(splits: Splits, check: Literal["auto", "yes"] = "auto") -> dict[str, Any]:
    """What a run with a budget of five seconds looks for: a second's worth of images, by count."""
    recipe = vitlab.recipe("small", "x", budget="5s")
    host = Host(workers=0, check_duplicates=check, effort=BRIEF)
    found = find_leaks(recipe, host, splits, NOTHING)
    assert found is not None
    return found


def test_of_many_images_a_sample_is_compared_and_all_copies_are_found() -> None:
    splits = many(1500, 500)
    found = leaks_of(splits)
    assert found["kind"] == "sample"
    assert found["exact"] == 10
    assert set(range(10)) < set(found["train"]) < set(range(40))  # no others, and not all
    assert set(found["test"]) == set(found["train"])
    sample = found["sample"]
    assert sample["train"] + sample["other"] == pytest.approx(1 / (IMAGE + 768 * BYTE), abs=2)
    assert sample["other"] < 500 < sample["train"] < 1500
    lines = applied(splits, found).notes
    assert f"of {sample['train']:,} training images drawn at random, {sample['found']}" in lines[-1]
    assert "500 test images, at most" in lines[-1]
    assert "of all training images (95%): comparing all would take 1.4 s on two cores" in lines[-1]
    assert "test images are among the training images, as exact copies, or near-duplic" in lines[0]
    assert leaks_of(splits) == found, "the same sample every time"
    whole = leaks_of(splits, "yes")
    assert (whole["kind"], whole["seconds"]) == ("near", 0)
    assert "sample" not in whole
    assert set(whole["train"]) == set(range(40))


def test_how_much_is_compared_depends_on_counts_alone() -> None:
    recipe, host = vitlab.recipe("small", "x"), Host(effort=BRIEF)
    few, many_more = many(900, 300), many(1500, 500)
    assert images_searched(recipe, host, many_more) == 2000
    for budget, splits, count in (("5s", few, 1200), ("20s", many_more, 1416), ("40s", few, 1200)):
        small = vitlab.recipe("small", "x", budget=budget)
        assert images_searched(small, host, splits) == count
    assert leaks_of(few)["kind"] == "near"
    assert leaks_of(many(900, 300, side=8))["kind"] == "bytes"  # too small for near-duplicates
    scope = LeakScope(1.5e-3, (1_281_167, 50_000, 0), 60.0, is_tiny=False)
    assert (scope.most_images, scope.fits_all, scope.sample_counts) == (
        40_000,
        False,
        (20_000, 20_000, 0),
    )
    large = LeakScope(0.1, (100_000, 1000, 1000), 10.0, is_tiny=False)
    assert large.sample_counts == ()  # of so few nothing can be said


@pytest.mark.parametrize(
    ("found", "images", "share"), [(0, 20_000, 1.5e-4), (3, 20_000, 3.88e-4), (5, 5, 1.0)]
)
def test_a_sample_bounds_the_share_of_all(found: int, images: int, share: float) -> None:
    assert bound_share(found, images) == pytest.approx(share, rel=2e-3)


@pytest.mark.parametrize(("budget", "limit"), [("", 60), ("1h", 60), ("90s", 4.5), ("5s", 1)])
def test_a_check_takes_little_of_a_budget(budget: str, limit: float) -> None:
    assert time_limit(vitlab.recipe("small", "x", budget=budget)) == pytest.approx(limit)
