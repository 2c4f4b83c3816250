"""Metrics of a classifier from its probabilities: NumPy arrays in, numbers out.

`figures` and `curve_point` take `Labels` and give the metrics of their kind; the metrics themselves
take arrays: of single labels the indices of the true classes, integers (n,); of several labels per
image a table (n, classes) of zeros and ones.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitlab.data.labels import Labels, MultiLabels, SingleLabels
from vitlab.evaluation.predictions import check_numbers

BINS = 15  # equal-width, as in Guo et al., On Calibration of Modern Neural Networks, 2017

Probabilities = NDArray[np.float64]
"""(n, classes)."""

Threshold = float | NDArray[np.float64]
"""Above which a class is predicted where images have several: one number, or (classes,)."""

Truth = NDArray[np.integer[Any]]
"""True classes (n,), or a table (n, classes) of zeros and ones."""


@dataclass(frozen=True)
class Bin:
    """The images whose confidence is in (low, high]: their mean confidence and accuracy."""

    low: float
    high: float
    count: int
    confidence: float
    accuracy: float


def figures(
    probabilities: Probabilities, labels: Labels, threshold: Threshold = 0.5
) -> dict[str, Any]:
    """Return the metrics of predictions, and `images`, their number.

    Single labels: `accuracy`, `top5`, `nll`, `ece`, `balanced_accuracy` (the macro recall),
    `macro_precision`, `macro_f1`, `mcc` and `auroc`. Several labels per image: `map` (None where no
    image has a label), `micro_f1`, `macro_precision`, `macro_recall`, `macro_f1`, `auroc` and
    `bce`. `auroc` is None where no class has images both of it and not.

    Args:
        probabilities: (n, classes)
        labels: of the same n images
        threshold: above which a class is predicted where images have several

    Raises:
        DataError: a probability is NaN.
    """
    check_numbers(probabilities)
    match labels:
        case SingleLabels(truth):
            precision, recall, macro = balanced(probabilities, truth)
            return {
                "accuracy": top(probabilities, truth, 1),
                "top5": top(probabilities, truth, 5),
                "nll": nll(probabilities, truth),
                "ece": ece(probabilities, truth),
                "balanced_accuracy": recall,
                "macro_precision": precision,
                "macro_f1": macro,
                "mcc": mcc(confusion(probabilities, truth)),
                "auroc": auroc(probabilities, one_hot(truth, probabilities.shape[1])),
                "images": len(truth),
            }
        case MultiLabels(table):
            micro, macro = f1(probabilities, table, threshold)
            precision, recall = precision_recall(probabilities, table, threshold)
            return {
                "map": mean_average_precision(probabilities, table) if table.any() else None,
                "micro_f1": micro,
                "macro_precision": precision,
                "macro_recall": recall,
                "macro_f1": macro,
                "auroc": auroc(probabilities, table),
                "bce": bce(probabilities, table),
                "images": len(table),
            }


def curve_point(probabilities: Probabilities, labels: Labels) -> dict[str, float]:
    """Return `loss` and `accuracy` for a learning curve.

    With several labels per image: binary cross-entropy, the share of all decisions at 0.5 that are
    right, and `map`.
    """
    match labels:
        case SingleLabels(truth):
            return {"loss": nll(probabilities, truth), "accuracy": top(probabilities, truth, 1)}
        case MultiLabels(table):
            right = (probabilities > 0.5) == table.astype(bool)
            return {
                "loss": bce(probabilities, table),
                "accuracy": float(right.mean()),
                "map": mean_average_precision(probabilities, table),
            }


def mean_average_precision(probabilities: Probabilities, labels: Truth) -> float:
    """Return the mean over classes of the area under precision and recall, not interpolated.

    Images of equal probability count together, so their order does not matter. Classes that no
    image has are left out; NaN if that leaves none.

    Args:
        probabilities: (n, classes), independent per class
        labels: (n, classes), 1 where an image has a class
    """
    pairs = zip(probabilities.T, labels.T, strict=True)
    each = [_average_precision(scores, truth) for scores, truth in pairs if truth.any()]
    return float(np.mean(each)) if each else float("nan")


def _average_precision(scores: NDArray[np.float64], truth: Truth) -> float:
    order = np.argsort(-scores, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(scores[order])), len(scores) - 1)  # of equal scores
    right = np.cumsum(truth[order], dtype=np.int64)[ends]
    return float((np.diff(right, prepend=0) * right / (ends + 1)).sum() / right[-1])


def auroc(probabilities: Probabilities, labels: Truth) -> float | None:
    """Return the area under the ROC curve, one class against the rest, averaged over classes.

    It is the chance that an image of a class has a higher probability of it than an image that is
    not of it; equal probabilities count half. Classes that all images have, or none, are left out.

    Args:
        probabilities: (n, classes)
        labels: (n, classes), 1 where an image has a class

    Returns:
        None if that leaves no class.
    """
    each = []
    for scores, truth in zip(probabilities.T, labels.T, strict=True):
        positives = int(truth.sum())
        if 0 < positives < len(truth):
            _, place, count = np.unique(scores, return_inverse=True, return_counts=True)
            rank = (count.cumsum() - (count - 1) / 2)[place]  # the mean rank of equal scores
            above = rank[truth.astype(bool)].sum() - positives * (positives + 1) / 2
            each.append(above / (positives * (len(truth) - positives)))
    return float(np.mean(each)) if each else None


def one_hot(labels: Truth, classes: int) -> NDArray[np.uint8]:
    """Return a table (n, classes) with a one in the column of each image's class."""
    table = np.zeros((len(labels), classes), np.uint8)
    table[np.arange(len(labels)), labels] = 1
    return table


def mcc(table: NDArray[np.int64]) -> float:
    """Return the Matthews correlation coefficient of a confusion matrix, 0 where it has none.

    Source: Gorodkin, Comparing two K-category assignments by a K-category correlation
    coefficient, 2004.
    """
    counts = table.astype(np.float64)
    true, guessed, images = counts.sum(1), counts.sum(0), counts.sum()
    covariance = np.trace(counts) * images - true @ guessed
    spread = (images**2 - true @ true) * (images**2 - guessed @ guessed)
    return float(covariance / np.sqrt(spread)) if spread > 0 else 0.0


def f1(
    probabilities: Probabilities, labels: Truth, threshold: Threshold = 0.5
) -> tuple[float, float]:
    """Return F1: of all decisions together (micro), and the mean over classes (macro).

    A class that no image has, and none is predicted to have, counts as 0.
    """
    chosen, truth = probabilities > threshold, labels.astype(bool)
    both, sizes = (chosen & truth).sum(0), chosen.sum(0) + truth.sum(0)
    macro = 2 * both / np.maximum(sizes, 1)
    return float(2 * both.sum() / max(sizes.sum(), 1)), float(macro.mean())


def precision_recall(
    probabilities: Probabilities, labels: Truth, threshold: Threshold = 0.5
) -> tuple[float, float]:
    """Return the means of precision and recall over classes, where images have several labels.

    A class that is never predicted has precision 0, and one that no image has recall 0.
    """
    chosen, truth = probabilities > threshold, labels.astype(bool)
    both = (chosen & truth).sum(0)
    each = both / np.maximum(chosen.sum(0), 1), both / np.maximum(truth.sum(0), 1)
    return float(each[0].mean()), float(each[1].mean())


def balanced(probabilities: Probabilities, labels: Truth) -> tuple[float, float, float]:
    """Return the means of precision, recall (balanced accuracy) and F1 over the classes there are.

    A class counts if images have it; its precision is 0 if it is never predicted.
    """
    guess, classes = probabilities.argmax(1), probabilities.shape[1]
    columns = (labels[guess == labels], guess, labels)
    right, guessed, images = (np.bincount(each, minlength=classes) for each in columns)
    there = images > 0
    f1_each = 2 * right[there] / (guessed + images)[there]
    precision = right[there] / np.maximum(guessed[there], 1)
    recall = right[there] / images[there]
    return float(precision.mean()), float(recall.mean()), float(f1_each.mean())


def bce(probabilities: Probabilities, labels: Truth) -> float:
    """Return the mean binary cross-entropy over images and classes, in nats."""
    return float(losses(probabilities, labels).mean())


def top(probabilities: Probabilities, labels: Truth, k: int) -> float:
    """Return the share of images whose class is among the k likeliest (ties: the lower first)."""
    return float((ranks(probabilities, labels) < k).mean())


def ranks(probabilities: Probabilities, labels: Truth) -> NDArray[np.int64]:
    """Count, for each image, the classes that come before the true one: int64 (n,).

    A probability that is not a number comes before all others, so that it is never right.
    """
    own = np.take_along_axis(probabilities, labels[:, None], axis=1)
    before = np.arange(probabilities.shape[1])[None] < labels[:, None]
    ahead = (probabilities > own) | ((probabilities == own) & before)
    ahead |= np.isnan(probabilities) | np.isnan(own)
    return ahead.sum(axis=1)


def nll(probabilities: Probabilities, labels: Truth) -> float:
    """Return the mean negative log-likelihood of the true classes, in nats."""
    return float(losses(probabilities, labels).mean())


def losses(probabilities: Probabilities, labels: Truth) -> NDArray[np.float64]:
    """Return the loss of each image in nats, (n,).

    It is the negative log-likelihood of the true class; where images have several labels, the mean
    binary cross-entropy over the classes.
    """
    if labels.ndim == 1:
        own = np.take_along_axis(probabilities, labels[:, None], axis=1)
    else:
        own = np.where(labels.astype(bool), probabilities, 1 - probabilities)
    each: NDArray[np.float64] = -np.log(np.maximum(own, np.finfo(np.float64).tiny)).mean(1)
    return each


def ece(probabilities: Probabilities, labels: Truth) -> float:
    """Return the expected calibration error: the mean gap of confidence and accuracy per bin.

    Source: Guo et al., On Calibration of Modern Neural Networks, 2017, equation 3.
    """
    gaps = [
        each.count * abs(each.confidence - each.accuracy) for each in bins(probabilities, labels)
    ]
    return float(sum(gaps) / len(labels))


def bins(probabilities: Probabilities, labels: Truth, count: int = BINS) -> list[Bin]:
    """Return the reliability diagram: images by their confidence, in bins of equal width."""
    confidence = probabilities.max(axis=1)
    right = probabilities.argmax(axis=1) == labels
    edges, place = np.linspace(0, 1, count + 1), bin_of(confidence, count)
    result = []
    for number in range(count):
        inside = place == number
        some = inside.any()
        result.append(
            Bin(
                float(edges[number]),
                float(edges[number + 1]),
                int(inside.sum()),
                float(confidence[inside].mean()) if some else 0.0,
                float(right[inside].mean()) if some else 0.0,
            )
        )
    return result


def bin_of(confidence: NDArray[np.float64], count: int = BINS) -> NDArray[np.int64]:
    """Return the number of the bin that each confidence is in; a bin has its upper edge."""
    edges = np.linspace(0, 1, count + 1)
    return np.clip(np.searchsorted(edges, confidence, side="left") - 1, 0, count - 1)


def confusion(probabilities: Probabilities, labels: Truth) -> NDArray[np.int64]:
    """Count (classes, classes): rows are the true class, columns the likeliest."""
    classes = probabilities.shape[1]
    pairs = labels * classes + probabilities.argmax(axis=1)
    return np.bincount(pairs, minlength=classes**2).reshape(classes, classes).astype(np.int64)
