"""Figures against scikit-learn and torchmetrics, over ties, absent classes and single images."""

import tracemalloc
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn import metrics as sk

from oracles import peers
from vitlab.data.labels import Labels, MultiLabels, SingleLabels
from vitlab.errors import DataError, OptionError
from vitlab.evaluation.answers import Floats, SingleAnswers, Weighted, answers_of
from vitlab.evaluation.metrics import METRICS, curve_point, figures, top, values_of
from vitlab.evaluation.per_class import (
    class_figures,
    class_tables,
    confused_pairs,
    confusion,
    worst_first,
)
from vitlab.evaluation.reliability import bins, calibration_error


@pytest.fixture(scope="module")
def tm() -> Any:
    """The figures of torchmetrics, which is imported for a second."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its own imports warn
        peers.prepare_torchvision()
        from torchmetrics.functional import classification
    return classification


def some(classes: int, images: int = 500) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    generator = np.random.default_rng(classes)
    labels = generator.integers(0, classes, images)
    scores = generator.normal(size=(images, classes)) + 1.5 * np.eye(classes)[labels]
    probabilities = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    return probabilities, labels


def one_hot(labels: NDArray[np.int64], classes: int) -> NDArray[np.uint8]:
    return np.eye(classes, dtype=np.uint8)[labels]


@pytest.mark.parametrize(("classes", "rounded"), [(2, False), (3, True), (10, True), (37, False)])
def test_against_scikit_learn(classes: int, rounded: bool, tm: Any) -> None:
    probabilities, labels = some(classes)
    probabilities = probabilities.round(2) + 1e-3 if rounded else probabilities  # many equal ones
    ours, guess = figures(probabilities, SingleLabels(labels)), probabilities.argmax(1)
    every = list(range(classes))
    assert ours["accuracy"] == pytest.approx(sk.accuracy_score(labels, guess))
    if classes > 5 and not rounded:
        five = sk.top_k_accuracy_score(labels, probabilities, k=5, labels=every)
        assert ours["top5"] == pytest.approx(five)
        per_class = [ours5 for k in every if (ours5 := hit5(probabilities, labels, k)) is not None]
        assert ours["balanced_top5"] == pytest.approx(np.mean(per_class))
    if not rounded:
        assert ours["nll"] == pytest.approx(sk.log_loss(labels, probabilities, labels=every))
        weights = 1 / np.bincount(labels, minlength=classes)[labels]
        balanced = sk.log_loss(labels, probabilities, labels=every, sample_weight=weights)
        assert ours["balanced_nll"] == pytest.approx(balanced)
    brier = ((probabilities - one_hot(labels, classes)) ** 2).sum(1).mean()
    assert ours["brier"] == pytest.approx(brier)
    cells = confusion(probabilities, SingleLabels(labels))
    want = sk.confusion_matrix(labels, guess, labels=every)
    assert np.array_equal(cells.dense(), want)
    assert (cells.images, cells.wrong) == (500, (labels != guess).sum())
    assert ours["mcc"] == pytest.approx(sk.matthews_corrcoef(labels, guess))
    assert ours["kappa"] == pytest.approx(sk.cohen_kappa_score(labels, guess))
    given = torch.from_numpy(probabilities), torch.from_numpy(labels)
    theirs = tm.multiclass_calibration_error(*given, num_classes=classes, n_bins=15)
    assert ours["ece"] == pytest.approx(float(theirs), abs=1e-6) or rounded
    area = sk.roc_auc_score(one_hot(labels, classes), probabilities, average="macro")
    assert ours["auroc"] == pytest.approx(area)


def hit5(probabilities: Floats, labels: NDArray[np.int64], label: int) -> float | None:
    """The top-5 accuracy of the images of one class."""
    own = labels == label
    places = np.argsort(-probabilities[own], axis=1)[:, :5]
    return float((places == label).any(1).mean()) if own.any() else None


@settings(max_examples=12, deadline=None)
@given(st.integers(1, 6), st.integers(2, 5), st.integers(0, 10**6), st.booleans())
def test_few_images_against_scikit_learn(images: int, classes: int, seed: int, tied: bool) -> None:
    """From one image on: classes absent from the labels, from the predictions, from both; ties."""
    generator = np.random.default_rng(seed)
    probabilities = generator.dirichlet(np.ones(classes), images)
    probabilities = probabilities.round(1) if tied else probabilities
    labels = generator.integers(0, classes, images)
    ours, guess = figures(probabilities, SingleLabels(labels)), probabilities.argmax(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        how = {"labels": np.unique(labels), "average": "macro", "zero_division": 0}
        assert ours["balanced_accuracy"] == pytest.approx(sk.recall_score(labels, guess, **how))
        assert ours["macro_precision"] == pytest.approx(sk.precision_score(labels, guess, **how))
        assert ours["macro_f1"] == pytest.approx(sk.f1_score(labels, guess, **how))
        assert ours["mcc"] == pytest.approx(sk.matthews_corrcoef(labels, guess), abs=1e-12)
        kappa = sk.cohen_kappa_score(labels, guess)
        assert ours["kappa"] == pytest.approx(np.nan_to_num(kappa), abs=1e-12)
        columns = [k for k in range(classes) if 0 < (labels == k).sum() < images]
        areas = [sk.roc_auc_score(labels == k, probabilities[:, k]) for k in columns]
    assert ours["auroc"] == (pytest.approx(np.mean(areas)) if areas else None)
    order = np.argsort(-probabilities.max(1), kind="stable")
    if len(np.unique(probabilities.max(1))) == images:
        wrong = np.cumsum((guess != labels)[order]) / np.arange(1, images + 1)
        assert ours["aurc"] == pytest.approx(wrong.mean())
        answered = np.flatnonzero(wrong <= 0.05)
        assert ours["coverage_at_5"] == pytest.approx((answered.max() + 1) / images
                                                      if len(answered) else 0)  # fmt: skip


def test_no_figures_are_made_of_nan() -> None:
    probabilities, labels = some(3)
    probabilities[7, 1] = np.nan
    with pytest.raises(DataError, match="there are no images to measure"):
        figures(np.empty((0, 3)), SingleLabels(np.empty(0, np.int64)))
    for kind in (SingleLabels(labels), MultiLabels.of_table(one_hot(labels, 3))):
        with pytest.raises(DataError, match="gives 1 of 500 images a probability that is not a"):
            figures(probabilities, kind)


def test_the_calibration_error_has_no_bias() -> None:
    """Its square, before it is cut at 0, is right on average; the plain ECE is too large."""
    generator = np.random.default_rng(0)
    plain, found = [], []
    for _ in range(150):
        sure = generator.uniform(0.5, 1, 100)
        right = generator.random(100) < sure - 0.2  # overconfident by 20 points
        rows = np.stack([sure, 1 - sure], 1)
        answers = SingleAnswers.of(rows, np.where(right, 0, 1))
        found.append(calibration_error(Weighted(answers, np.ones((1, 100))))[0] ** 2)
        calm = np.where(generator.random(100) < sure, 0, 1)
        plain.append(figures(rows, SingleLabels(calm))["ece"])
    assert np.mean(found) == pytest.approx(0.2**2, abs=3 * np.std(found) / np.sqrt(150))
    assert np.mean(plain) > 0.05  # of a calibrated model


@pytest.mark.parametrize("kind", ["single", "several"])
def test_weights_count_as_repeated_images(kind: str) -> None:
    """Each metric of a weighted set is that of the images that the weights repeat."""
    probabilities, labels = some(6, 80)
    probabilities = probabilities.round(2) + 1e-3
    labels[labels == 4] = 3  # a class without images
    made: Labels = SingleLabels(labels)
    if kind == "several":
        made = MultiLabels.of_table(one_hot(labels, 6) | one_hot((labels + 2) % 5, 6))
    generator = np.random.default_rng(0)
    rows = [np.arange(80), *generator.integers(0, 80, (4, 80))]
    weights = np.stack([np.bincount(row, minlength=80) for row in rows]).astype(float)
    ours = values_of(Weighted(answers_of(probabilities, made), weights, probabilities))
    for place, row in enumerate(rows):
        want = figures(probabilities[row], made.take(row))
        assert set(ours) == set(want) - {"images"}
        for name in set(ours) - {"calibration_error"}:  # whose bins are those of all images
            assert ours[name][place] == pytest.approx(want[name]), (name, place)


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
    ours = figures(sure, SingleLabels(np.array([0, 1, 2])))
    assert {name for name, value in ours.items() if value == 0} == {
        "nll", "balanced_nll", "brier", "ece", "calibration_error", "aurc",
    }  # fmt: skip
    assert ours.pop("images") == 3
    assert set(ours.values()) == {0, 1}
    wrong = figures(sure, SingleLabels(np.array([1, 1, 2])))
    assert np.isfinite(wrong["nll"])
    level = SingleAnswers.of(np.full((4, 4), 0.25), np.arange(4))
    ones = Weighted(level, np.ones((1, 4)))  # a tie goes to the lower class, as argmax has it
    assert [float(top(count)(ones)[0]) for count in (1, 2)] == [0.25, 0.5]
    assert [METRICS["top5"].tells(classes) for classes in (5, 6)] == [False, True]


@pytest.mark.parametrize(("classes", "rounded"), [(2, True), (7, False)])
def test_several_labels_against_scikit_learn(classes: int, rounded: bool, tm: Any) -> None:
    generator = np.random.default_rng(classes)
    labels = (generator.random((200, classes)) < 0.3).astype(np.uint8)
    probabilities = np.clip(0.3 * labels + 0.7 * generator.random((200, classes)), 0.01, 0.99)
    if rounded:  # many equal scores
        probabilities = probabilities.round(1)
    ours = figures(probabilities, MultiLabels.of_table(labels))
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
    each = [sk.brier_score_loss(labels[:, k], probabilities[:, k]) for k in range(classes)]
    assert ours["brier"] == pytest.approx(np.mean(each))
    assert ours["exact_match"] == pytest.approx(sk.accuracy_score(labels, chosen))
    given = torch.from_numpy(probabilities), torch.from_numpy(labels.astype(np.int64))
    area = tm.multilabel_average_precision(*given, num_labels=classes)
    assert ours["map"] == pytest.approx(float(area), abs=1e-6)
    assert ours["images"] == 200
    point = curve_point(probabilities, MultiLabels.of_table(labels))
    assert point["accuracy"] == pytest.approx((chosen == labels).mean())
    assert (point["loss"], point["map"]) == (ours["bce"], ours["map"])


def test_classes_without_images_do_not_count_for_map() -> None:
    labels = np.array([[1, 0], [0, 0], [1, 0]], np.uint8)
    probabilities = np.array([[0.9, 0.9], [0.4, 0.1], [0.2, 0.6]])
    assert figures(probabilities, MultiLabels.of_table(labels))["map"] == pytest.approx(
        (1 + 2 / 3) / 2
    )
    assert figures(probabilities, MultiLabels.of_table(0 * labels))["map"] is None


def test_a_probability_that_is_not_a_number_is_never_right() -> None:
    given, truth = some(5)
    assert curve_point(given, SingleLabels(truth)) == {
        "loss": pytest.approx(sk.log_loss(truth, given)),
        "accuracy": pytest.approx(sk.accuracy_score(truth, given.argmax(1))),
    }
    probabilities = np.full((4, 3), np.nan)
    labels = SingleLabels(np.array([0, 1, 2, 0]))
    assert curve_point(probabilities, labels)["accuracy"] == 0
    probabilities[1:] = [0.2, 0.5, 0.3]
    assert curve_point(probabilities, labels)["accuracy"] == 0.25


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (SingleLabels(np.array([0, 3, 1])), r"label 3 is out of range: the model has 3 classes"),
        (SingleLabels(np.array([0, -1, 5])), r"label -1 is out of range: .* \(2 of 3 labels are\)"),
        (SingleLabels(np.array([0, 1])), r"2 labels for predictions of 3 images"),
        (MultiLabels.of_table(np.ones((3, 4), np.uint8)), r"a table of 4 classes for a model of 3"),
    ],
)
def test_labels_that_do_not_belong_are_refused_in_a_line(labels: Labels, message: str) -> None:
    probabilities = np.full((3, 3), 1 / 3)
    with pytest.raises(DataError, match=message) as found:
        figures(probabilities, labels)
    assert "\n" not in str(found.value)
    for refuse in (
        lambda: confusion(probabilities, labels),
        lambda: class_figures(probabilities, labels, "abc"),
        lambda: confused_pairs(probabilities, labels, "abc"),
        lambda: curve_point(probabilities, labels),
    ):
        with pytest.raises(DataError, match=message):
            refuse()


def test_very_many_classes() -> None:
    """All figures, the confusions and those of each class: no table of classes by classes."""
    classes = 20_000
    generator = np.random.default_rng(0)
    probabilities = generator.random((200, classes))
    labels = SingleLabels(generator.integers(0, classes, 200))
    probabilities[np.arange(100), labels.values[:100]] = 2
    names = [str(number) for number in range(classes)]
    tracemalloc.start()
    ours = figures(probabilities, labels)
    cells = confusion(probabilities, labels)
    class_figures(probabilities, labels, names)
    pairs = confused_pairs(probabilities, labels, names)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    guess = probabilities.argmax(1)
    assert ours["mcc"] == pytest.approx(sk.matthews_corrcoef(labels.values, guess))
    assert ours["kappa"] == pytest.approx(sk.cohen_kappa_score(labels.values, guess))
    assert (cells.images, cells.wrong, len(pairs)) == (200, 100, 20)
    assert peak < 40e6  # a table of them would take 400 MB in bytes alone
    with pytest.raises(OptionError, match="is too large to be made: use its cells, or at most"):
        cells.dense()


# Figures of each class, and confused pairs


@pytest.mark.parametrize("classes", [2, 7, 30])
def test_each_class_against_scikit_learn(classes: int) -> None:
    generator = np.random.default_rng(classes)
    labels = generator.integers(0, classes, 300)
    probabilities = generator.random((300, classes)) + np.eye(classes)[labels] * 0.5
    guess = probabilities.argmax(1)
    names = [f"class {number}" for number in range(classes)]
    ours = class_figures(probabilities, SingleLabels(labels), names)
    want = sk.precision_recall_fscore_support(labels, guess, labels=range(classes), zero_division=0)
    for values, key in zip(want, ("precision", "recall", "f1", "images"), strict=True):
        np.testing.assert_allclose([getattr(each, key) for each in ours], values)
    assert [each.name for each in ours] == names
    whole = figures(probabilities, SingleLabels(labels))
    assert whole["balanced_accuracy"] == pytest.approx(sk.balanced_accuracy_score(labels, guess))
    assert whole["macro_f1"] == pytest.approx(sk.f1_score(labels, guess, average="macro"))


def test_a_class_without_images_has_no_figures() -> None:
    labels = np.array([0, 0, 1, 1])
    probabilities = np.eye(4)[[0, 2, 0, 0]]  # class 1 is never predicted, class 2 never right
    ours = class_tables(probabilities, SingleLabels(labels), "abcd")
    assert ours["classes"] == [
        {"class": "a", "precision": 1 / 3, "recall": 0.5, "f1": 0.4, "images": 2},
        {"class": "b", "precision": 0.0, "recall": 0.0, "f1": 0.0, "images": 2},
        {"class": "c", "precision": None, "recall": None, "f1": None, "images": 0},
        {"class": "d", "precision": None, "recall": None, "f1": None, "images": 0},
    ]
    whole = figures(probabilities, SingleLabels(labels))
    assert (whole["balanced_accuracy"], whole["macro_f1"]) == (0.25, 0.2)
    several = class_figures(
        np.array([[0.9, 0.9]]), MultiLabels.of_table(np.array([[1, 0]], np.uint8)), "ab"
    )
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
    table = class_tables(probabilities, SingleLabels(labels), "abcdef")["confused"]
    assert table[0] == {
        "true": ours[0].true, "predicted": ours[0].predicted, "images": counts[0],
    }  # fmt: skip
