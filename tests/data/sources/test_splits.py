"""Splits: held out, found, recognized."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from vitlab.data.holdout import fingerprint, with_train_images, with_validation
from vitlab.data.labels import SingleLabels
from vitlab.data.learning import open_to_learn
from vitlab.data.sources.memory import Arrays, split_digits
from vitlab.data.sources.request import Splits, by_split, split_of
from vitlab.data.sources.source import Subset, counts
from vitlab.errors import OptionError


def test_held_out_is_stratified_fixed_and_apart() -> None:
    labels = SingleLabels(np.repeat([0, 1, 2], [100, 10, 1]))
    source = Arrays(np.zeros((111, 2, 2, 1), np.uint8), labels, ("a", "b", "c"))
    splits = split_digits(source)
    assert sorted([*splits.train.indices, *splits.test.indices]) == list(range(111))
    assert splits.test.labels.counts(3) == [20, 2, 0]
    assert np.array_equal(splits.test.indices, split_digits(source).test.indices)
    assert any("'c' has only one image" in note for note in splits.notes)
    labels = SingleLabels(np.arange(40) % 2)  # the images held out never change
    splits = split_digits(Arrays(np.zeros((40, 1, 1, 1), np.uint8), labels, ("a", "b")))
    assert splits.test.indices.tolist() == [4, 8, 9, 12, 15, 23, 33, 38]


def test_files_are_grouped_by_the_split_that_their_names_mention() -> None:
    names = {"photos-VAL-000": "validation", "train_of_2024": "train", "dev": "validation",
             "Testing": "test", "tested": "train"}  # the last is not a whole word  # fmt: skip
    assert {name: split_of(name) for name in names} == names
    files = [("a-train", "1"), ("b-test", "2"), ("c", "3")]
    assert by_split(files) == {"train": ["1", "3"], "test": ["2"]}
    assert by_split([("test-0", "1"), ("val-0", "2")]) == {"train": ["1", "2"]}


def test_a_validation_split_is_taken_only_where_there_is_none() -> None:
    labels = SingleLabels(np.repeat([0, 1], [50, 30]))
    pixels = np.random.default_rng(0).integers(0, 256, (80, 4, 4, 1), np.uint8)
    splits = split_digits(Arrays(pixels, labels, ("a", "b")))
    after = with_validation(splits)
    assert after.validation is not None
    held, kept = after.validation.labels.counts(2), after.train.labels.counts(2)
    assert min(held) > 0
    assert [sum(pair) for pair in zip(held, kept, strict=True)] == [40, 24]
    assert set(after.parts) == {"train", "validation", "test"}
    assert set(splits.parts) == {"train", "test"}
    assert "10% of each class held out of the training images" in after.notes[-1]
    assert after.notes[:-1] == splits.notes
    assert with_validation(after) is after


def test_a_subset_of_a_subset() -> None:
    pixels = np.arange(10, dtype=np.uint8)[:, None, None, None]
    whole = Arrays(pixels, SingleLabels(np.arange(10)), tuple("abcdefghij"), "number")
    part = Subset(Subset(whole, np.array([9, 3, 5])), np.array([2, 0]))
    assert (len(part), part.in_memory, part.classes) == (2, True, whole.classes)
    assert part.labels.values.tolist() == [5, 9]
    assert [part.name(index) for index in range(2)] == ["number 5", "number 9"]
    assert part.image(1).decode(1).item() == 9
    assert counts(part)["j"] == 1
    assert sum(counts(part).values()) == 2


def test_the_fingerprint_follows_labels_classes_and_pixels(photos: Path, tmp_path: Path) -> None:
    pixels = np.zeros((4, 2, 2, 1), np.uint8)
    labels = SingleLabels(np.array([0, 1, 0, 1]))
    base = fingerprint(Arrays(pixels, labels, ("a", "b")))
    assert base == fingerprint(Arrays(pixels.copy(), labels, ("a", "b"), "other"))
    assert base != fingerprint(Arrays(pixels + 1, labels, ("a", "b")))
    assert base != fingerprint(Arrays(pixels, labels, ("a", "c")))
    assert base != fingerprint(Arrays(pixels, SingleLabels(1 - labels.values), ("a", "b")))
    moved = shutil.copytree(photos, tmp_path / "moved")
    whole = fingerprint(open_to_learn(str(photos)).whole)
    assert whole == fingerprint(open_to_learn(str(moved)).whole)  # wherever the data lies
    (moved / "red" / "007.png").unlink()
    assert whole != fingerprint(open_to_learn(str(moved)).whole)


UNEVEN = SingleLabels(np.random.default_rng(0).permutation(np.repeat([0, 1, 2], [200, 40, 10])))


def uneven() -> Splits:
    """250 images in three classes, a fifth of each held out: 200 to train on."""
    return split_digits(Arrays(np.zeros((250, 2, 2, 1), np.uint8), UNEVEN, ("a", "b", "c")))


def test_smaller_amounts_of_training_images_are_within_larger_ones() -> None:
    splits, before = uneven(), set()
    for amount, count in ((3, 3), (0.1, 20), (50, 50), (0.5, 100), (199, 199), (200, 200)):
        less = with_train_images(splits, amount)
        assert len(less.train) == count
        assert (less.test, less.validation, less.whole) == (splits.test, None, splits.whole)
        assert less.notes[:-1] == splits.notes
        assert less.notes[-1] == f"trained on {count} of 200 training images (always the same)"
        chosen = set(less.train.indices.tolist())
        assert chosen > before
        before = chosen
    assert with_train_images(splits, 0.5).train.labels.counts(3) == [80, 16, 4]
    assert with_train_images(splits, 3).train.labels.counts(3) == [1, 1, 1]
    all_ = with_train_images(splits, 200).train
    assert all_.indices.tolist() == list(range(200))  # the very same data
    assert with_train_images(splits, 0) is splits
    chosen = with_train_images(splits, 10).train  # a figure of years ago can be measured again
    assert chosen.indices.tolist() == [6, 65, 71, 90, 92, 105, 153, 159, 165, 168]


def test_too_many_training_images_or_too_few() -> None:
    for amount, message in (
        (201, "there are only 200 training images: choose a --train-images of at most 200, not "),
        (2, "train_images comes to 2, too few to show every class: choose a --train"),
        (0.001, "train_images comes to 0, too few to show every class: choose a --train"),
    ):
        with pytest.raises(OptionError) as caught:
            with_train_images(uneven(), amount)
        assert str(caught.value).startswith(message)
        advice = int(re.search(r"(?:most|least) (\d+)", str(caught.value))[1])
        assert len(with_train_images(uneven(), advice).train) == advice
