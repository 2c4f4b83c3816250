"""Figures of each class, and which classes are mistaken for which."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitlab.data.labels import Labels, MultiLabels, SingleLabels
from vitlab.evaluation.metrics import Probabilities, Threshold

PAIRS = 20  # most confused pairs that are listed


@dataclass(frozen=True)
class ClassFigures:
    """How well one class is recognized.

    Attributes:
        name: of the class
        precision: share of the images predicted to be of the class that are; 0 if there are none
        recall: share of the images of the class that are predicted to be
        f1: harmonic mean of the two
        images: that have the class; without any, the other figures are None
    """

    name: str
    precision: float | None
    recall: float | None
    f1: float | None
    images: int

    def as_dict(self) -> dict[str, Any]:
        """Return the figures as JSON holds them."""
        values = asdict(self)
        return {"class": values.pop("name")} | values


@dataclass(frozen=True)
class Confusion:
    """A class whose images were mistaken for those of another: their number and share."""

    true: str
    predicted: str
    images: int
    share: float

    def as_dict(self) -> dict[str, Any]:
        """Return the pair as JSON holds it."""
        return {"true": self.true, "predicted": self.predicted, "images": self.images}


def class_figures(
    probabilities: Probabilities,
    labels: Labels,
    classes: Sequence[str],
    threshold: Threshold = 0.5,
) -> list[ClassFigures]:
    """Return the figures of each class, in the order of the classes.

    The likeliest class of an image is the predicted one; where images have several labels, every
    class whose probability is above its threshold.

    Args:
        probabilities: (n, classes)
        labels: of the same n images
        classes: their names
        threshold: of each class, or of all
    """
    right, predicted, images = decisions(probabilities, labels, threshold)
    rows = zip(classes, right.tolist(), predicted.tolist(), images.tolist(), strict=True)
    return [
        ClassFigures(
            name, hits / max(guesses, 1), hits / count, 2 * hits / (guesses + count), count
        )
        if count
        else ClassFigures(name, None, None, None, 0)
        for name, hits, guesses, count in rows
    ]


def decisions(
    probabilities: Probabilities, labels: Labels, threshold: Threshold = 0.5
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Count for each class the images recognized, predicted, and there: three times (classes,)."""
    count = probabilities.shape[1]
    match labels:
        case SingleLabels(truth):
            guess = probabilities.argmax(1)
            columns = (truth[guess == truth], guess, truth)
            right, predicted, images = (np.bincount(each, minlength=count) for each in columns)
            return right, predicted, images
        case MultiLabels(table):
            chosen, own = probabilities > threshold, table.astype(bool)
            return (chosen & own).sum(0), chosen.sum(0), own.sum(0)


def confused_pairs(
    probabilities: Probabilities, labels: Labels, classes: Sequence[str], most: int = PAIRS
) -> list[Confusion]:
    """Return the most frequent mistakes, most frequent first.

    There are none where images have several labels.

    Args:
        probabilities: (n, classes)
        labels: of the same n images
        classes: their names
        most: how many pairs to return
    """
    if not isinstance(labels, SingleLabels):
        return []  # no class stands in the place of another
    truth, guess = labels.values, probabilities.argmax(1)
    wrong = truth != guess
    pairs, counts = np.unique(truth[wrong] * len(classes) + guess[wrong], return_counts=True)
    totals = np.bincount(truth, minlength=len(classes))
    return [
        Confusion(
            classes[int(pairs[place]) // len(classes)],
            classes[int(pairs[place]) % len(classes)],
            int(counts[place]),
            float(counts[place] / totals[int(pairs[place]) // len(classes)]),
        )
        for place in np.argsort(-counts, kind="stable")[:most]
    ]


def worst_first(figures: Sequence[ClassFigures]) -> list[ClassFigures]:
    """Return the classes that have images, the lowest F1 first."""
    seen = [each for each in figures if each.f1 is not None]
    return sorted(seen, key=lambda each: (each.f1 or 0.0, -each.images))
