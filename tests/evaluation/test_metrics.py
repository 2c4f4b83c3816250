"""Figures against scikit-learn and torchmetrics."""

import warnings

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn import metrics as sk

from vitlab.data.labels import MultiLabels, SingleLabels
from vitlab.errors import DataError
from vitlab.evaluation.metrics import (
    auroc,
    bins,
    confusion,
    curve_point,
    ece,
    figures,
    mcc,
    nll,
    one_hot,
    top,
)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its own imports warn
    from torchmetrics.functional.classification import multiclass_calibration_error


def some(classes: int, images: int = 500) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    generator = np.random.default_rng(classes)
    labels = generator.integers(0, classes, images)
    scores = generator.normal(size=(images, classes)) + 1.5 * np.eye(classes)[labels]
    probabilities = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    return probabilities, labels


@pytest.mark.parametrize("classes", [2, 3, 10, 37])
def test_against_scikit_learn(classes: int) -> None:
    probabilities, labels = some(classes)
    every = list(range(classes))
    accuracy = sk.accuracy_score(labels, probabilities.argmax(1))
    assert top(probabilities, labels, 1) == pytest.approx(accuracy)
    if classes > 5:
        five = sk.top_k_accuracy_score(labels, probabilities, k=5, labels=every)
        assert top(probabilities, labels, 5) == pytest.approx(five)
    assert nll(probabilities, labels) == pytest.approx(
        sk.log_loss(labels, probabilities, labels=every)
    )
    want = sk.confusion_matrix(labels, probabilities.argmax(1), labels=every)
    assert np.array_equal(confusion(probabilities, labels), want)
    assert mcc(want) == pytest.approx(sk.matthews_corrcoef(labels, probabilities.argmax(1)))
    coarse = probabilities.round(2)  # many equal scores
    table = one_hot(labels, classes)
    for scores in (probabilities, coarse):
        area = sk.roc_auc_score(table, scores, average="macro")
        assert auroc(scores, table) == pytest.approx(area)


@pytest.mark.parametrize("missing", [(), (1,), (1, 3)])
@pytest.mark.parametrize("unpredicted", [(), (0,), (0, 3)])
def test_degenerate_predictions_against_scikit_learn(
    missing: tuple[int, ...], unpredicted: tuple[int, ...]
) -> None:
    """Classes without images, classes that are never predicted, and equal probabilities."""
    probabilities, labels = some(5, 80)
    keep = ~np.isin(labels, missing)
    probabilities, labels = probabilities[keep].round(1) + 1e-3, labels[keep]
    probabilities[:, unpredicted] = 1e-4
    guess, there = probabilities.argmax(1), np.unique(labels)
    ours = figures(probabilities, SingleLabels(labels))
    how = {"labels": there, "average": "macro", "zero_division": 0}
    assert ours["accuracy"] == pytest.approx(sk.accuracy_score(labels, guess))
    assert ours["macro_precision"] == pytest.approx(sk.precision_score(labels, guess, **how))
    assert ours["balanced_accuracy"] == pytest.approx(sk.recall_score(labels, guess, **how))
    assert ours["macro_f1"] == pytest.approx(sk.f1_score(labels, guess, **how))
    assert ours["mcc"] == pytest.approx(sk.matthews_corrcoef(labels, guess))
    table = one_hot(labels, 5)[:, there]
    assert ours["auroc"] == pytest.approx(sk.roc_auc_score(table, probabilities[:, there]))


def test_two_classes_have_the_binary_area() -> None:
    probabilities, labels = some(2)
    area = sk.roc_auc_score(labels, probabilities[:, 1])
    assert figures(probabilities, SingleLabels(labels))["auroc"] == pytest.approx(area)


def test_no_figures_are_made_of_nan() -> None:
    probabilities, labels = some(3)
    probabilities[7, 1] = np.nan
    for kind in (SingleLabels(labels), MultiLabels(one_hot(labels, 3))):
        with pytest.raises(DataError, match="gives 1 of 500 images a probability that is not a"):
            figures(probabilities, kind)


def test_figures_of_a_single_class() -> None:
    probabilities = np.array([[0.9, 0.1], [0.8, 0.2]])
    ours = figures(probabilities, SingleLabels(np.array([0, 0])))
    assert (ours["mcc"], ours["auroc"]) == (0.0, None)


@pytest.mark.parametrize("classes", [2, 10])
def test_calibration_against_torchmetrics(classes: int) -> None:
    probabilities, labels = some(classes)
    theirs = multiclass_calibration_error(
        torch.from_numpy(probabilities), torch.from_numpy(labels), num_classes=classes, n_bins=15
    )
    assert ece(probabilities, labels) == pytest.approx(float(theirs), abs=1e-6)


def test_bins_hold_every_image_once() -> None:
    probabilities, labels = some(10)
    parts = bins(probabilities, labels)
    assert sum(part.count for part in parts) == 500
    for part in parts:
        assert part.count == 0 or part.low < part.confidence <= part.high
    hits = sum(part.count * part.accuracy for part in parts)
    assert hits == pytest.approx(500 * top(probabilities, labels, 1))


def test_bins_are_open_below_and_closed_above() -> None:
    edge = 2 / 3  # the upper edge of bin 10 of 15, to the bit
    probabilities = np.array([[edge, 1 - edge], [np.nextafter(edge, 1), 1 - edge], [1.0, 0.0]])
    parts = bins(probabilities, np.array([0, 1, 0]))
    assert [part.count for part in parts] == [0] * 9 + [1, 1, 0, 0, 0, 1]
    assert (parts[9].high, parts[10].low) == (edge, edge)
    assert (parts[9].accuracy, parts[10].accuracy, parts[14].confidence) == (1.0, 0.0, 1.0)
    assert (parts[0].confidence, parts[0].accuracy) == (0.0, 0.0)
    level = bins(np.full((4, 4), 0.25), np.arange(4), count=4)
    assert [part.count for part in level] == [4, 0, 0, 0]
    assert bins(np.array([[0.0, 0.0]]), np.array([0]), count=2)[0].count == 1  # no bin below


def test_certainty_and_ties() -> None:
    sure = np.eye(3)[[0, 1, 2]]
    assert figures(sure, SingleLabels(np.array([0, 1, 2]))) == {
        "accuracy": 1.0, "top5": 1.0, "nll": 0.0, "ece": 0.0, "balanced_accuracy": 1.0,
        "macro_precision": 1.0, "macro_f1": 1.0, "mcc": 1.0, "auroc": 1.0, "images": 3,
    }  # fmt: skip
    assert np.isfinite(nll(sure, np.array([1, 1, 2])))
    level = np.full((4, 4), 0.25)  # a tie goes to the lower class, as argmax has it
    assert top(level, np.arange(4), 1) == 0.25
    assert top(level, np.arange(4), 2) == 0.5


@pytest.mark.parametrize("classes", [2, 7])
@pytest.mark.parametrize("rounded", [False, True])
def test_several_labels_against_scikit_learn(classes: int, rounded: bool) -> None:
    generator = np.random.default_rng(classes)
    labels = (generator.random((200, classes)) < 0.3).astype(np.uint8)
    probabilities = np.clip(0.3 * labels + 0.7 * generator.random((200, classes)), 0.01, 0.99)
    if rounded:  # many equal scores
        probabilities = probabilities.round(1)
    ours = figures(probabilities, MultiLabels(labels))
    assert ours["map"] == pytest.approx(sk.average_precision_score(labels, probabilities))
    chosen = probabilities > 0.5
    assert ours["auroc"] == pytest.approx(sk.roc_auc_score(labels, probabilities))
    assert ours["micro_f1"] == pytest.approx(sk.f1_score(labels, chosen, average="micro"))
    assert ours["macro_f1"] == pytest.approx(sk.f1_score(labels, chosen, average="macro"))
    for name, theirs in (("precision", sk.precision_score), ("recall", sk.recall_score)):
        known = theirs(labels, chosen, average="macro", zero_division=0)
        assert ours[f"macro_{name}"] == pytest.approx(known)
    each = [sk.log_loss(labels[:, k], probabilities[:, k], labels=[0, 1]) for k in range(classes)]
    assert ours["bce"] == pytest.approx(np.mean(each))
    assert ours["images"] == 200
    point = curve_point(probabilities, MultiLabels(labels))
    assert point["accuracy"] == pytest.approx((chosen == labels).mean())
    assert (point["loss"], point["map"]) == (ours["bce"], ours["map"])


def test_classes_without_images_do_not_count_for_map() -> None:
    labels = np.array([[1, 0], [0, 0], [1, 0]], np.uint8)
    probabilities = np.array([[0.9, 0.9], [0.4, 0.1], [0.2, 0.6]])
    assert figures(probabilities, MultiLabels(labels))["map"] == pytest.approx((1 + 2 / 3) / 2)
    assert figures(probabilities, MultiLabels(0 * labels))["map"] is None


def test_one_label_an_image_has_the_usual_curve() -> None:
    probabilities, labels = some(5)
    assert curve_point(probabilities, SingleLabels(labels)) == {
        "loss": nll(probabilities, labels),
        "accuracy": top(probabilities, labels, 1),
    }


def test_a_probability_that_is_not_a_number_is_never_right() -> None:
    probabilities = np.full((4, 3), np.nan)
    labels = SingleLabels(np.array([0, 1, 2, 0]))
    assert curve_point(probabilities, labels)["accuracy"] == 0
    probabilities[1:] = [0.2, 0.5, 0.3]
    assert curve_point(probabilities, labels)["accuracy"] == 0.25
