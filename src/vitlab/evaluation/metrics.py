"""Figures of a classifier from its probabilities: NumPy arrays in, plain numbers out."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

BINS = 15  # equal-width, as in Guo et al., On Calibration of Modern Neural Networks, 2017

Probabilities = NDArray[np.float64]
Labels = NDArray[np.int64]


@dataclass(frozen=True)
class Bin:
    """The images whose confidence lies in (low, high]: their mean confidence and accuracy."""

    low: float
    high: float
    count: int
    confidence: float
    accuracy: float


def figures(probabilities: Probabilities, labels: Labels) -> dict[str, float]:
    """`accuracy`, `top5`, `nll`, `ece` and `images` of probabilities (n, K) against labels (n,)."""
    return {
        "accuracy": top(probabilities, labels, 1),
        "top5": top(probabilities, labels, 5),
        "nll": nll(probabilities, labels),
        "ece": ece(probabilities, labels),
        "images": len(labels),
    }


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
