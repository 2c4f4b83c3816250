"""Figures of a classifier from its probabilities: NumPy arrays in, plain numbers out."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitlab.data.labels import Labels, is_multi

BINS = 15  # equal-width, as in Guo et al., On Calibration of Modern Neural Networks, 2017

Probabilities = NDArray[np.float64]


@dataclass(frozen=True)
class Bin:
    """The images whose confidence lies in (low, high]: their mean confidence and accuracy."""

    low: float
    high: float
    count: int
    confidence: float
    accuracy: float


def figures(probabilities: Probabilities, labels: Labels) -> dict[str, float]:
    """`accuracy`, `top5`, `nll`, `ece` and `images` of probabilities (n, K) against labels (n,).

    Against a table (n, K) of several labels an image: `map`, `micro_f1`, `macro_f1`, `bce` and
    `images`.
    """
    if is_multi(labels):
        return {
            "map": mean_average_precision(probabilities, labels),
            "micro_f1": f1(probabilities, labels)[0],
            "macro_f1": f1(probabilities, labels)[1],
            "bce": bce(probabilities, labels),
            "images": len(labels),
        }
    return {
        "accuracy": top(probabilities, labels, 1),
        "top5": top(probabilities, labels, 5),
        "nll": nll(probabilities, labels),
        "ece": ece(probabilities, labels),
        "images": len(labels),
    }


def curve_point(probabilities: Probabilities, labels: Labels) -> dict[str, float]:
    """`loss` and `accuracy` for a learning curve.

    With several labels an image: binary cross-entropy, and the share of all yeses and noes that are
    right at 0.5, with `map` beside them.
    """
    if is_multi(labels):
        right = (probabilities > 0.5) == labels.astype(bool)
        share = mean_average_precision(probabilities, labels)
        return {"loss": bce(probabilities, labels), "accuracy": float(right.mean()), "map": share}
    return {"loss": nll(probabilities, labels), "accuracy": top(probabilities, labels, 1)}


def mean_average_precision(probabilities: Probabilities, labels: Labels) -> float:
    """The mean over classes of the area under precision and recall, without interpolation.

    Images of equal probability come in together, so their order does not matter. Classes that no
    image has are left out; NaN if that leaves none.

    Args:
        probabilities: (n, K), of each class by itself
        labels: (n, K), 1 where an image has a class
    """
    pairs = zip(probabilities.T, labels.T, strict=True)
    each = [_average_precision(scores, truth) for scores, truth in pairs if truth.any()]
    return float(np.mean(each)) if each else float("nan")


def _average_precision(scores: NDArray[np.float64], truth: Labels) -> float:
    order = np.argsort(-scores, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(scores[order])), len(scores) - 1)  # of equal scores
    right = np.cumsum(truth[order], dtype=np.int64)[ends]
    return float((np.diff(right, prepend=0) * right / (ends + 1)).sum() / right[-1])


def f1(probabilities: Probabilities, labels: Labels) -> tuple[float, float]:
    """F1 at 0.5: of all decisions together (micro), and the mean over classes (macro).

    A class that no image has, and none is said to have, counts as 0.
    """
    said, truth = probabilities > 0.5, labels.astype(bool)
    both, sizes = (said & truth).sum(0), said.sum(0) + truth.sum(0)
    macro = 2 * both / np.maximum(sizes, 1)
    return float(2 * both.sum() / max(sizes.sum(), 1)), float(macro.mean())


def bce(probabilities: Probabilities, labels: Labels) -> float:
    """Mean binary cross-entropy over images and classes, in nats."""
    own = np.where(labels.astype(bool), probabilities, 1 - probabilities)
    return float(-np.log(np.maximum(own, np.finfo(np.float64).tiny)).mean())


def top(probabilities: Probabilities, labels: Labels, k: int) -> float:
    """Share of images whose true class is among the k likeliest; ties go to the lower class."""
    own = np.take_along_axis(probabilities, labels[:, None], axis=1)
    before = np.arange(probabilities.shape[1])[None] < labels[:, None]
    ahead = (probabilities > own) | ((probabilities == own) & before)
    return float((ahead.sum(axis=1) < k).mean())


def nll(probabilities: Probabilities, labels: Labels) -> float:
    """Mean negative log-likelihood of the true classes, in nats."""
    own = np.take_along_axis(probabilities, labels[:, None], axis=1)
    return float(-np.log(np.maximum(own, np.finfo(np.float64).tiny)).mean())


def ece(probabilities: Probabilities, labels: Labels) -> float:
    """Expected calibration error: the gap between confidence and accuracy, averaged over images."""
    gaps = [
        each.count * abs(each.confidence - each.accuracy) for each in bins(probabilities, labels)
    ]
    return float(sum(gaps) / len(labels))


def bins(probabilities: Probabilities, labels: Labels, count: int = BINS) -> list[Bin]:
    """The reliability diagram: images by their confidence, in bins of equal width."""
    confidence = probabilities.max(axis=1)
    right = probabilities.argmax(axis=1) == labels
    edges = np.linspace(0, 1, count + 1)
    place = np.clip(np.searchsorted(edges, confidence, side="left") - 1, 0, count - 1)
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


def confusion(probabilities: Probabilities, labels: Labels) -> NDArray[np.int64]:
    """Counts (K, K): rows the true class, columns the likeliest."""
    classes = probabilities.shape[1]
    pairs = labels * classes + probabilities.argmax(axis=1)
    return np.bincount(pairs, minlength=classes**2).reshape(classes, classes).astype(np.int64)
