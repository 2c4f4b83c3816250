"""Splits: held out, found, recognized."""

import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.model_selection import StratifiedKFold

import vitlab
from conftest import BRIEF, LIGHT, TINY, photo_folder
from made_files import png
from vitlab.data.holdout import (
    fingerprint,
    fold_of,
    take_partition,
    with_train_images,
    with_validation,
)
from vitlab.data.images import Images, places_in
from vitlab.data.labels import SingleLabels
from vitlab.data.open import open_images
from vitlab.data.open_splits import open_to_learn
from vitlab.data.settings import Data
from vitlab.data.sources.memory import Arrays, split_digits
from vitlab.data.sources.request import by_split, split_of
from vitlab.data.splits import Splits
from vitlab.errors import DataError, OptionError
from vitlab.recipes.recipe import Host


def test_held_out_is_stratified_fixed_and_apart() -> None:
    labels = SingleLabels(np.repeat([0, 1, 2], [100, 10, 1]))
    source = Images.of(Arrays(np.zeros((111, 2, 2, 1), np.uint8)), labels, ("a", "b", "c"))
    splits = split_digits(source)
    assert sorted([*splits.train.rows, *splits.test.rows]) == list(range(111))
    assert splits.test.target.counts(3) == [20, 2, 0]
    assert np.array_equal(splits.test.rows, split_digits(source).test.rows)
    assert any("'c' has only one image" in note for note in splits.notes)
    labels = SingleLabels(np.arange(40) % 2)  # the images held out never change
    splits = split_digits(Images.of(Arrays(np.zeros((40, 1, 1, 1), np.uint8)), labels, ("a", "b")))
    assert splits.test.rows.tolist() == [4, 8, 9, 12, 15, 23, 33, 38]


def test_files_are_grouped_by_the_split_that_their_names_mention() -> None:
    names = {"photos-VAL-000": "validation", "train_of_2024": "train", "dev": "validation",
             "Testing": "test", "tested": "train"}  # the last is not a whole word  # fmt: skip
    assert {name: split_of(name) for name in names} == names
    for folder in ("", "train-256/", "my-test/"):  # a folder's name is not the file's
        files = [f"{folder}{name}.tar" for name in ("a-train", "b-test", "c")]
        assert by_split(files) == {"train": files[::2], "test": files[1:2]}
    assert by_split(["test-0.tar", "val-0.tar"]) == {"train": ["test-0.tar", "val-0.tar"]}
    inside = ["training/0.tar", "s3://bucket/val/0.tar"]
    assert by_split(inside) == {"train": inside[:1], "validation": inside[1:]}


def test_a_validation_split_is_taken_only_where_there_is_none() -> None:
    labels = SingleLabels(np.repeat([0, 1], [50, 30]))
    pixels = np.random.default_rng(0).integers(0, 256, (80, 4, 4, 1), np.uint8)
    splits = split_digits(Images.of(Arrays(pixels), labels, ("a", "b")))
    after = with_validation(splits)
    held, kept = after.validation.target.counts(2), after.train.target.counts(2)
    assert min(held) > 0
    assert [sum(pair) for pair in zip(held, kept, strict=True)] == [40, 24]
    assert set(after.parts) == {"train", "validation", "test"}
    assert set(splits.parts) == {"train", "test"}
    assert "10% of each class held out of the training images" in after.notes[-1]
    assert after.notes[:-1] == splits.notes
    assert with_validation(after) is after
    few = splits.train.take(np.array([0, 1]))
    with pytest.raises(DataError, match="2 training images are too few to hold some out to decide"):
        with_validation(replace(splits, train=few))


def test_a_subset_of_a_subset() -> None:
    pixels = np.arange(10, dtype=np.uint8)[:, None, None, None]
    whole = Images.of(Arrays(pixels, "number"), SingleLabels(np.arange(10)), tuple("abcdefghij"))
    part = whole.take(np.array([9, 3, 5])).take(np.array([2, 0]))
    assert (len(part), part.in_memory, part.classes) == (2, True, whole.classes)
    assert part.target.values.tolist() == [5, 9]
    assert [part.name(index) for index in range(2)] == ["number 5", "number 9"]
    assert part.image(1).decode(1).item() == 9
    assert part.counts()["j"] == 1
    assert sum(part.counts().values()) == 2


def test_the_fingerprint_follows_labels_classes_and_pixels(photos: Path, tmp_path: Path) -> None:
    pixels = np.arange(16, dtype=np.uint8).reshape(4, 2, 2, 1)
    labels = SingleLabels(np.array([0, 1, 0, 1]))
    base = fingerprint(Images.of(Arrays(pixels), labels, ("a", "b")))
    assert base[:16] == "83db552671c3759d"  # the data of a run of years ago is recognized
    assert base == fingerprint(Images.of(Arrays(pixels.copy(), "other"), labels, ("a", "b")))
    assert base != fingerprint(Images.of(Arrays(pixels + 1), labels, ("a", "b")))
    assert base != fingerprint(Images.of(Arrays(pixels), labels, ("a", "c")))
    assert base != fingerprint(
        Images.of(Arrays(pixels), SingleLabels(1 - labels.values), ("a", "b"))
    )
    moved = shutil.copytree(photos, tmp_path / "moved")
    whole = fingerprint(open_to_learn(str(photos)).whole)
    assert whole == fingerprint(open_to_learn(str(moved)).whole)  # wherever the data lies
    (moved / "red" / "007.png").unlink()
    assert whole != fingerprint(open_to_learn(str(moved)).whole)


THREE = SingleLabels(np.random.default_rng(0).permutation(np.repeat([0, 1, 2], [200, 40, 10])))


def of_three_classes() -> Splits:
    """250 images in three classes, a fifth of each held out: 200 to train on."""
    return split_digits(
        Images.of(Arrays(np.zeros((250, 2, 2, 1), np.uint8)), THREE, ("a", "b", "c"))
    )


def test_smaller_amounts_of_training_images_are_within_larger_ones() -> None:
    splits, before = of_three_classes(), set()
    for amount, count in ((3, 3), (0.1, 20), (50, 50), (0.5, 100), (199, 199), (200, 200)):
        less = with_train_images(splits, amount)
        assert len(less.train) == count
        assert (less.test, less.validation, less.whole) == (splits.test, None, splits.whole)
        assert less.notes[:-1] == splits.notes
        assert less.notes[-1] == f"trained on {count} of 200 training images (always the same)"
        chosen = set(places_in(less.train, splits.train).tolist())
        assert chosen > before
        before = chosen
    assert with_train_images(splits, 0.5).train.target.counts(3) == [80, 16, 4]
    assert with_train_images(splits, 3).train.target.counts(3) == [1, 1, 1]
    all_ = with_train_images(splits, 200).train
    assert places_in(all_, splits.train).tolist() == list(range(200))  # the very same data
    assert with_train_images(splits, 0) is splits
    chosen = with_train_images(splits, 10).train  # a figure of years ago can be measured again
    assert places_in(chosen, splits.train).tolist() == [6, 65, 71, 90, 92, 105, 153, 159, 165, 168]


def test_too_many_training_images_or_too_few() -> None:
    for amount, message in (
        (201, "there are only 200 training images: choose a --train-images of at most 200, not "),
        (1, "train_images comes to 1, too few to show every class: choose a --train"),
        (2, "train_images comes to 2, too few to show every class: choose a --train"),
        (0.001, "train_images comes to 0, too few to show every class: choose a --train"),
    ):
        with pytest.raises(OptionError) as caught:
            with_train_images(of_three_classes(), amount)
        assert str(caught.value).startswith(message)
        advice = int(re.search(r"(?:most|least) (\d+)", str(caught.value))[1])
        assert len(with_train_images(of_three_classes(), advice).train) == advice


UNEVEN = {"blue": 23, "green": 12, "red": 5}


@pytest.fixture
def uneven(tmp_path: Path) -> Path:
    """Classes of three sizes, not split."""
    return photo_folder(tmp_path / "uneven", UNEVEN, 4, 4)


def names(source: Images) -> set[str]:
    return {source.name(index) for index in range(len(source))}


def test_parts_are_as_even_as_those_of_scikit_learn() -> None:
    values = np.repeat(np.arange(4), [61, 23, 12, 8])
    for parts in (2, 3, 5, 7):
        dealt = SingleLabels(values).parts(parts, np.random.default_rng(0))
        peer = np.empty_like(values)
        folds = StratifiedKFold(parts, shuffle=True, random_state=0).split(values, values)
        for part, (_, test) in enumerate(folds):
            peer[test] = part
        for own in (dealt, peer):
            table = [np.bincount(own[values == label], minlength=parts) for label in range(4)]
            assert np.ptp(np.array(table), axis=1).max() <= 1
        assert np.ptp(np.bincount(dealt, minlength=parts)) <= 1
        other = SingleLabels(values).parts(parts, np.random.default_rng(1))
        assert not np.array_equal(dealt, other)
        assert (np.diff(dealt[values == 0]) % parts != 1).any()  # at random, not in turn


def test_folds_of_unsplit_data_are_all_images_each_once(uneven: Path) -> None:
    whole = open_to_learn(str(uneven))
    folds = [take_partition(whole, Data(data=str(uneven), fold=f"{n}/5")) for n in range(1, 6)]
    tests = [names(fold.test) for fold in folds]
    assert set().union(*tests) == names(whole.whole)
    assert sum(map(len, tests)) == len(whole.whole) == 40
    for fold, test in zip(folds, tests, strict=True):
        assert names(fold.train) == names(whole.whole) - test
        assert fold.classes == whole.classes
    count = len(tests[1])
    line = f"fold 2 of 5: tested on {count} of 40 images, trained on the others"
    assert folds[1].notes[0] == line
    assert names(fold_of(open_to_learn(str(uneven)), "2/5").test) == tests[1]  # always the same


def test_folds_of_split_data_leave_the_test_images_alone(tmp_path: Path) -> None:
    photo_folder(tmp_path / "train", {"a": 6, "b": 6, "c": 1}, 4, 4)
    photo_folder(tmp_path / "test", {"a": 2, "b": 2}, 4, 4)
    splits = open_to_learn(str(tmp_path))
    folds = [fold_of(splits, f"{part}/2") for part in (1, 2)]
    for fold in folds:
        assert len(fold.train) + len(fold.test) == 13
        assert names(fold.train) | names(fold.test) == names(splits.train)
    remark = "class 'c': its only images are in the test fold"
    assert [remark in fold.notes for fold in folds].count(True) == 1


def test_a_share_of_the_training_images_takes_the_place_of_the_test_images(uneven: Path) -> None:
    splits = open_to_learn(str(uneven))
    dev = take_partition(splits, Data(data=str(uneven), dev_share=0.25))
    assert all(dev.test.counts().values())
    assert len(dev.test) < len(dev.train)
    assert names(dev.train) | names(dev.test) == names(splits.train)
    assert not names(dev.test) & names(splits.test)
    assert f"{len(dev.test)} images; the test images play no part" in dev.notes[-1]
    validated = replace(splits, validation=splits.test)
    assert take_partition(validated, Data(dev_share=0.25)).validation is splits.test
    assert take_partition(splits, Data()) is splits


def test_the_dev_share_is_held_out_of_train_images(uneven: Path, tmp_path: Path) -> None:
    """Else a sweep would learn its rate from labels that the last run does not have."""
    few = take_partition(open_to_learn(str(uneven)), Data(data=str(uneven), train_images=16))
    assert len(few.train) == len(open_to_learn(str(uneven)).train)  # that is done later
    dev = take_partition(open_to_learn(str(uneven)), Data(train_images=16, dev_share=0.25))
    assert len(dev.train) + len(dev.test) == 16
    quick = TINY | {"steps": 1, "batch": 8, "train_images": 16}
    again = vitlab.recipe("small", str(uneven), **quick, dev_share=0.25)
    part = vitlab.train(again, tmp_path / "part", host=Host(workers=0, effort=BRIEF))
    assert part.metrics["images"] == len(dev.test)
    lines = (tmp_path / "part" / "run.toml").read_text().splitlines()
    assert "train_images = 16" in lines


def test_what_cannot_be_is_refused(uneven: Path) -> None:
    splits = open_to_learn(str(uneven))
    with pytest.raises(DataError, match="40 images cannot be dealt out to 41 folds"):
        fold_of(splits, "1/41")
    with pytest.raises(DataError, match=r"1.0% of each class is less than one image: choose a lar"):
        take_partition(splits, Data(data="x", dev_share=0.01))


def test_a_fold_is_evaluated_on_its_own_images(tmp_path: Path, uneven: Path) -> None:
    recipe = vitlab.recipe("small", str(uneven), **TINY | {"steps": 1, "batch": 8}, fold="2/5")
    run = vitlab.train(recipe, tmp_path / "run", host=Host(workers=0, effort=BRIEF))
    again = vitlab.evaluate(run.model, str(uneven))
    assert again["images"] == run.metrics["images"]
    assert again["nll"] == pytest.approx(run.metrics["nll"])
    with pytest.raises(vitlab.UserError, match="was started with fold=2/5, not 3/5"):
        vitlab.train(recipe.changed(fold="3/5"), tmp_path / "run", resume=True, host=LIGHT)


@pytest.mark.parametrize("splits", [
    ("trainval", "test"), ("train_v1", "train_v2", "test"), ("train_set", "holdout"),
    ("training_data", "validation_data", "evaluation"),
])  # fmt: skip
def test_folders_that_are_like_splits_are_no_classes(
    splits: tuple[str, ...], tmp_path: Path
) -> None:
    for number, (split, name) in enumerate((a, b) for a in splits for b in ("cat", "dog")):
        file = tmp_path / split / name / "1.png"
        file.parent.mkdir(parents=True)
        file.write_bytes(png(number))
    assert len(open_images(str(tmp_path), "optional").every()) == 2 * len(splits)


@pytest.mark.parametrize("folders", [
    ("train_station/day", "train_station/night", "test_tube/glass"), ("test/a", "test/b", "exam/a"),
    ("train", "bus"),
])  # fmt: skip
def test_classes_may_have_words_of_splits(folders: tuple[str, ...], tmp_path: Path) -> None:
    for number, folder in enumerate(folders):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "1.png").write_bytes(png(number))
    opened = open_images(str(tmp_path))
    assert {*opened.every().classes} == {folder.partition("/")[0] for folder in folders}
