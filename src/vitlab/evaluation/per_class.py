"""Figures of each class, and the confusion matrix as pairs: which classes are mistaken for which.

The matrix is never stored: of 100,000 classes it would have ten billion cells, and no more of them
are occupied than there are images.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from vitlab.data.labels import Labels, SingleLabels
from vitlab.errors import OptionError
from vitlab.evaluation.answers import Floats, Integers, check_labels

PAIRS = 20  # most confused pairs that are listed
DENSE = 4000  # most classes of a matrix of all cells


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


@dataclass(frozen=True)
class Confusion:
    """A class whose images were mistaken for those of another: their number and share."""

    true: str
    predicted: str
    images: int
    share: float


@dataclass(frozen=True, eq=False)
class ConfusionMatrix:
    """The occupied cells of a confusion matrix, row by row.

    Attributes:
        classes: their number
        true: the true class of each cell, int64 (cells,)
        predicted: the predicted one
        counts: images in it, at least 1
    """

    classes: int
    true: Integers
    predicted: Integers
    counts: Integers

    @property
    def images(self) -> int:
        """The number of images in all cells."""
        return int(self.counts.sum())

    @property
    def wrong(self) -> int:
        """The number of images off the diagonal."""
        return int(self.counts[self.true != self.predicted].sum())

    def dense(self) -> Integers:
        """Return all cells, int64 (classes, classes): rows are true classes, columns predicted.

        Raises:
            OptionError: more than 4,000 classes.
        """
        if self.classes > DENSE:
            raise OptionError(
                f"a confusion matrix of {self.classes:,} classes is too large to be made: use its "
                f"cells, or at most {DENSE:,} classes"
            )
        table = np.zeros((self.classes, self.classes), np.int64)
        table[self.true, self.predicted] = self.counts
        return table


def confusion(probabilities: Floats, labels: Labels) -> ConfusionMatrix:
    """Count the images of each true class and likeliest class; none where they have several labels.

    Args:
        probabilities: (n, classes)
        labels: of the same n images

    Raises:
        DataError: a label is no class of the model.
    """
    classes = probabilities.shape[1]
    check_labels(probabilities, labels)
    truth = labels.values if isinstance(labels, SingleLabels) else np.empty(0, np.int64)
    guess = probabilities[: len(truth)].argmax(1)
    cells, counts = np.unique(truth * classes + guess, return_counts=True)
    return ConfusionMatrix(classes, cells // classes, cells % classes, counts)


def class_figures(
    probabilities: Floats, labels: Labels, classes: Sequence[str], threshold: Floats | float = 0.5
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


def class_tables(
    probabilities: Floats, labels: Labels, classes: Sequence[str], threshold: Floats | float = 0.5
) -> dict[str, Any]:
    """Return `classes`, the figures of each, and `confused`, the pairs, as JSON holds them."""
    rows = map(asdict, class_figures(probabilities, labels, classes, threshold))
    pairs = confused_pairs(probabilities, labels, classes)
    return {
        "classes": [{"class": each.pop("name")} | each for each in rows],
        "confused": [
            {"true": each.true, "predicted": each.predicted, "images": each.images}
            for each in pairs
        ],
    }


def decisions(
    probabilities: Floats, labels: Labels, threshold: Floats | float = 0.5
) -> tuple[Integers, Integers, Integers]:
    """Count for each class the images recognized, predicted, and there: three times (classes,)."""
    check_labels(probabilities, labels)
    count = probabilities.shape[1]
    if isinstance(labels, SingleLabels):
        truth = labels.values
        guess = probabilities.argmax(1)
        columns = (truth[guess == truth], guess, truth)
        right, predicted, images = (np.bincount(each, minlength=count) for each in columns)
        return right, predicted, images
    chosen = probabilities > threshold
    own = labels.values.astype(bool)
    return (chosen & own).sum(0), chosen.sum(0), own.sum(0)


def confused_pairs(
    probabilities: Floats, labels: Labels, classes: Sequence[str], most: int = PAIRS
) -> list[Confusion]:
    """Return the most frequent mistakes first; none where images have several labels.

    Args:
        probabilities: (n, classes)
        labels: of the same n images
        classes: their names
        most: how many pairs to return
    """
    cells = confusion(probabilities, labels)
    totals = np.bincount(cells.true, cells.counts, minlength=cells.classes)
    wrong = np.flatnonzero(cells.true != cells.predicted)
    first = wrong[np.argsort(-cells.counts[wrong], kind="stable")[:most]]
    rows = zip(cells.true[first], cells.predicted[first], cells.counts[first], strict=True)
    return [
        Confusion(classes[true], classes[guess], int(count), float(count / totals[true]))
        for true, guess, count in rows
    ]


def worst_first(figures: Sequence[ClassFigures]) -> list[ClassFigures]:
    """Return the classes that have images, the lowest F1 first."""
    seen = [each for each in figures if each.f1 is not None]
    return sorted(seen, key=lambda each: (each.f1 or 0.0, -each.images))
