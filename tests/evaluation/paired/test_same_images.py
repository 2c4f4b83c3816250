"""Which images runs have in common, whatever their order and that of the classes."""

from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from conftest import photo_folder
from vitlab.data.images import Images
from vitlab.data.labels import MultiLabels, SingleLabels
from vitlab.data.open_splits import open_to_learn
from vitlab.data.sources.image_files import ImageFiles
from vitlab.evaluation.answers import SingleAnswers, answers_of
from vitlab.evaluation.paired_tests import same_images
from vitlab.evaluation.run_predictions import Examined, image_keys

CLASSES = ("cat", "dog", "crane", "crane")  # ImageNet has two cranes


def examined(seed: int, images: int = 40) -> Examined:
    """Random answers to images whose keys are 100, 101, …"""
    truth = np.random.default_rng(0).integers(0, len(CLASSES), images)
    table = np.random.default_rng(seed).dirichlet(np.ones(len(CLASSES)), images)
    number = np.arange(images)
    return Examined(CLASSES, SingleAnswers.of(table, truth), number, number + 100)


def reordered(run: Examined, images: NDArray[np.int64], classes: list[int]) -> Examined:
    """The same answers of a run with other orders; `classes[new]` is the old number."""
    numbers = np.argsort(classes)
    answers = run.answers.take(images).renumbered(numbers, len(classes))
    names = tuple(run.classes[old] for old in classes)
    return Examined(names, answers, np.arange(len(images)), run.keys[images])


def test_orders_of_images_and_classes_do_not_matter() -> None:
    one, other = examined(1), examined(2)
    shuffled = np.random.default_rng(3).permutation(40)
    same = same_images([one, None, reordered(other, shuffled, [2, 1, 3, 0])])
    want = same_images([one, None, other])
    assert same is not None
    assert want is not None
    assert (same.runs, same.classes, len(same), same.apart) == ((0, 2), CLASSES, 40, ())
    for ours, theirs in zip(same.answers, want.answers, strict=True):
        for name, values in vars(ours).items():
            np.testing.assert_array_equal(values, getattr(theirs, name), name)
    np.testing.assert_array_equal(same.indices[0], np.arange(40))
    np.testing.assert_array_equal(shuffled[same.indices[1]], np.arange(40))


def test_runs_that_share_a_part_are_compared_on_that_part() -> None:
    one, other = examined(1), examined(2)
    part = reordered(other, np.arange(30, 5, -1), [0, 1, 2, 3])
    same = same_images([part, one])
    assert same is not None
    assert len(same) == 25
    np.testing.assert_array_equal(same.answers[1].take([0, 1]).right, one.answers.right[[30, 29]])
    other_images = replace(examined(3), keys=np.arange(40) + 1000)
    same = same_images([other_images, one, other])
    assert same is not None
    assert (same.runs, same.apart, len(same)) == ((1, 2), (0,), 40)
    assert same_images([other_images, one]) is None
    assert same_images([one, None]) is None
    assert same_images([None]) is None


def test_images_that_were_labeled_otherwise_are_left_out() -> None:
    one, other = examined(1), examined(2)
    answers = other.answers
    assert isinstance(answers, SingleAnswers)
    truth = answers.truth.copy()
    truth[:7] = (truth[:7] + 1) % len(CLASSES)
    same = same_images([one, replace(other, answers=replace(answers, truth=truth))])
    assert same is not None
    assert (len(same), same.relabeled) == (33, 7)
    np.testing.assert_array_equal(same.indices[0], np.arange(7, 40))


def test_classes_that_only_one_run_knows() -> None:
    one, other = examined(1), examined(2)
    same = same_images([one, replace(other, classes=("dog", "cat", "owl", "crane"))])
    assert same is None or len(same) < 40  # most labels differ
    wider = replace(other, classes=CLASSES)
    more = SingleAnswers.of(
        np.random.default_rng(5).dirichlet(np.ones(5), 40), np.asarray(vars(one.answers)["truth"])
    )
    same = same_images([wider, replace(one, classes=(*CLASSES, "owl"), answers=more)])
    assert same is not None
    assert same.classes == (*CLASSES, "owl")
    assert len(same) == 40


def test_several_labels_are_not_compared_with_one() -> None:
    generator = np.random.default_rng(0)
    table = (generator.random((40, 4)) < 0.4).astype(np.uint8)
    made = [answers_of(generator.random((40, 4)), MultiLabels.of_table(table), np.full(4, 0.5))
            for _ in range(2)]  # fmt: skip
    one, two = (replace(examined(1), answers=each, classes=("a", "b", "c", "d")) for each in made)
    two = reordered(two, np.arange(40)[::-1], [3, 1, 0, 2])
    same = same_images([one, examined(3), two])
    assert same is not None
    assert (same.runs, same.apart, same.several) == ((0, 2), (1,), True)
    assert same.relabeled == 0
    np.testing.assert_allclose(vars(same.answers[1])["probabilities"], made[1].probabilities)


def test_an_image_is_recognized_by_its_content(tmp_path: Path) -> None:
    photo_folder(tmp_path / "one", {"a": 3, "b": 2}, 8, 8)
    photo_folder(tmp_path / "two", {"a": 3, "b": 2}, 8, 8)
    every = np.arange(5)
    keys = [
        image_keys(open_to_learn(str(tmp_path / name)).whole, every)  # type: ignore[arg-type]
        for name in ("one", "two")
    ]
    np.testing.assert_array_equal(keys[0], keys[1])
    assert len(set(keys[0].tolist())) == 5
    image = str(tmp_path / "one" / "a" / "000.png")
    missing = str(tmp_path / "gone.png")
    source = Images.of(
        ImageFiles(Path(), [image, image, missing]), SingleLabels.blank(3, 1), ("a",)
    )
    found = image_keys(source, np.arange(3))
    assert found[0] == keys[0][0]
    assert len(set(found.tolist())) == 3  # the second of two equal images is another one
    named = image_keys(source, np.arange(3), by_name=True)
    assert named[2] == found[2]
    assert named[0] != found[0]
