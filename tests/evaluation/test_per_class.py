"""Figures of each class and confused pairs, against scikit-learn."""

import numpy as np
import pytest
from sklearn import metrics as sk

from vitlab.data.labels import MultiLabels, SingleLabels
from vitlab.evaluation.metrics import figures
from vitlab.evaluation.per_class import class_figures, confused_pairs, worst_first


@pytest.mark.parametrize("classes", [2, 7, 30])
def test_single_labels_against_scikit_learn(classes: int) -> None:
    generator = np.random.default_rng(classes)
    labels = generator.integers(0, classes, 300)
    probabilities = generator.random((300, classes)) + np.eye(classes)[labels] * 0.5
    guess = probabilities.argmax(1)
    names = [f"class {number}" for number in range(classes)]
    ours = class_figures(probabilities, SingleLabels(labels), names)
    want = sk.precision_recall_fscore_support(labels, guess, labels=range(classes), zero_division=0)
    for values, key in zip(want, ("precision", "recall", "f1", "images"), strict=True):
        np.testing.assert_allclose([getattr(each, key) for each in ours], values)
    assert [each.as_dict()["class"] for each in ours] == names
    whole = figures(probabilities, SingleLabels(labels))
    assert whole["balanced_accuracy"] == pytest.approx(sk.balanced_accuracy_score(labels, guess))
    assert whole["macro_f1"] == pytest.approx(sk.f1_score(labels, guess, average="macro"))


def test_a_class_without_images_has_no_figures() -> None:
    labels = np.array([0, 0, 1, 1])
    probabilities = np.eye(4)[[0, 2, 0, 0]]  # class 1 is never predicted, class 2 never right
    ours = [each.as_dict() for each in class_figures(probabilities, SingleLabels(labels), "abcd")]
    assert ours == [
        {"class": "a", "precision": 1 / 3, "recall": 0.5, "f1": 0.4, "images": 2},
        {"class": "b", "precision": 0.0, "recall": 0.0, "f1": 0.0, "images": 2},
        {"class": "c", "precision": None, "recall": None, "f1": None, "images": 0},
        {"class": "d", "precision": None, "recall": None, "f1": None, "images": 0},
    ]
    whole = figures(probabilities, SingleLabels(labels))
    assert (whole["balanced_accuracy"], whole["macro_f1"]) == (0.25, 0.2)
    several = class_figures(np.array([[0.9, 0.9]]), MultiLabels(np.array([[1, 0]], np.uint8)), "ab")
    assert [each.f1 for each in several] == [1.0, None]


def test_the_worst_classes_come_first() -> None:
    labels = SingleLabels(np.array([0, 0, 1, 2, 2, 2]))
    figures_ = class_figures(np.eye(4)[[0, 0, 2, 2, 3, 3]], labels, "abcd")
    assert [each.name for each in worst_first(figures_)] == ["b", "c", "a"]


def test_pairs_are_those_of_the_confusion_matrix() -> None:
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 6, 500)
    probabilities = generator.random((500, 6)) + np.eye(6)[labels] * 0.4
    matrix = sk.confusion_matrix(labels, probabilities.argmax(1))
    np.fill_diagonal(matrix, 0)
    ours = confused_pairs(probabilities, SingleLabels(labels), "abcdef", most=100)
    counts = [each.images for each in ours]
    assert counts == sorted(counts, reverse=True)
    assert sum(counts) == matrix.sum()
    for each in ours:
        true, predicted = "abcdef".index(each.true), "abcdef".index(each.predicted)
        assert each.images == matrix[true, predicted] > 0
        assert each.share == pytest.approx(each.images / (labels == true).sum())
    first = confused_pairs(probabilities, SingleLabels(labels), "abcdef")
    assert first == ours[:20]
    assert first[0].as_dict() == {
        "true": ours[0].true, "predicted": ours[0].predicted, "images": counts[0],
    }  # fmt: skip
