"""What is told about the classes before training."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.dummy import DummyClassifier

from vitlab.data.labels import MultiLabels, SingleLabels
from vitlab.data.sources.memory import Arrays
from vitlab.data.sources.request import Splits
from vitlab.data.summary import class_lines, most_frequent


def source(counts: list[int], names: tuple[str, ...] | None = None) -> Arrays:
    labels = SingleLabels(np.repeat(np.arange(len(counts)), counts))
    images = np.zeros((len(labels), 1, 1, 1), np.uint8)
    return Arrays(images, labels, names or tuple(f"class {n}" for n in range(len(counts))))


def test_few_classes_are_listed() -> None:
    names = ("cat", "dog", "fox")
    splits = Splits(source([1200, 80, 8], names), source([30, 9, 1], names))
    assert class_lines(splits) == [
        "training images per class: cat 1,200, dog 80, fox 8",
        "always answering 'cat' would be right for 75.0% of the test images",
    ]


def test_of_many_classes_the_smallest_and_the_largest_are_named() -> None:
    many = source([732, *[1000] * 1000, 1300])
    assert class_lines(Splits(many, many))[0] == (
        "1,002 classes, the smallest with 732 training images (class 0), the largest with 1,300 "
        "(class 1001)"
    )
    even = source([50] * 13)
    assert class_lines(Splits(even, even))[0] == "13 classes with 50 training images each"


def test_the_largest_class_is_that_of_the_training_images() -> None:
    """As scikit-learn's most frequent guess: the test images may have another one."""
    splits = Splits(source([5, 9, 1]), source([6, 3, 1]))
    train, test = splits.train.labels.values, splits.test.labels.values
    guess = DummyClassifier(strategy="most_frequent").fit(train[:, None], train)
    assert most_frequent(splits) == ("class 1", pytest.approx(guess.score(test[:, None], test)))


def test_several_labels_have_no_such_guess() -> None:
    labels = MultiLabels(np.array([[1, 1], [0, 1], [0, 0]], np.uint8))
    images = replace(source([2, 1]), labels=labels)
    splits = Splits(images, images)
    assert class_lines(splits) == ["training images per class: class 0 1, class 1 2"]
    assert most_frequent(splits) is None
