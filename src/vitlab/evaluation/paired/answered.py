"""What a model answered to each test image, in a few numbers an image."""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from vitlab.data.labels import Indices, Labels, SingleLabels
from vitlab.evaluation.metrics import Probabilities, Truth, ranks

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class SingleAnswers:
    """The answers to images that have one label each.

    Attributes:
        truth: the class, int64 (n,)
        guess: the likeliest class, int64 (n,)
        confidence: the probability of the guess, float64 (n,)
        own: the probability of the true class, float64 (n,)
        rank: how many classes come before the true one, int64 (n,)
    """

    truth: Integers
    guess: Integers
    confidence: Floats
    own: Floats
    rank: Integers

    @classmethod
    def of(cls, probabilities: Probabilities, truth: Truth) -> Self:
        """Return the answers in probabilities (n, classes) to images of these classes (n,)."""
        own = np.take_along_axis(probabilities, truth[:, None], axis=1)[:, 0]
        guess, confidence = probabilities.argmax(1), probabilities.max(1)
        return cls(truth.astype(np.int64), guess, confidence, own, ranks(probabilities, truth))

    def __len__(self) -> int:
        return len(self.truth)

    @property
    def right(self) -> NDArray[np.bool_]:
        """Whether the guess is the class of the image: (n,)."""
        return self.guess == self.truth

    def agrees(self, other: "SingleAnswers") -> NDArray[np.bool_]:
        """Return whether both models guess the same class: (n,)."""
        return self.guess == other.guess

    def take(self, places: Indices) -> Self:
        """Return the answers to some of the images."""
        return type(self)(
            self.truth[places],
            self.guess[places],
            self.confidence[places],
            self.own[places],
            self.rank[places],
        )

    def renumbered(self, places: Integers, classes: int) -> Self:
        """Return the same answers where class c has the number `places[c]`, of so many classes."""
        columns = (self.confidence, self.own, self.rank)
        return type(self)(places[self.truth], places[self.guess], *columns)


@dataclass(frozen=True, eq=False)
class MultiAnswers:
    """The answers to images that have any number of labels each.

    Attributes:
        table: 1 where an image has a class, uint8 (n, classes)
        probabilities: of each class by itself, float64 (n, classes)
        thresholds: above which a class is predicted, float64 (classes,)
    """

    table: NDArray[np.uint8]
    probabilities: Probabilities
    thresholds: Floats

    def __len__(self) -> int:
        return len(self.table)

    @property
    def chosen(self) -> NDArray[np.bool_]:
        """Which classes are predicted: (n, classes)."""
        return self.probabilities > self.thresholds

    @property
    def right(self) -> NDArray[np.bool_]:
        """Whether exactly the labels of the image are predicted: (n,)."""
        return (self.chosen == self.table.astype(bool)).all(1)

    @property
    def confidence(self) -> Floats:
        """The highest probability of a class: (n,)."""
        return self.probabilities.max(1)

    def agrees(self, other: "MultiAnswers") -> NDArray[np.bool_]:
        """Return whether both models predict the same classes: (n,)."""
        return (self.chosen == other.chosen).all(1)

    def take(self, places: Indices) -> Self:
        """Return the answers to some of the images."""
        return type(self)(self.table[places], self.probabilities[places], self.thresholds)

    def renumbered(self, places: Integers, classes: int) -> Self:
        """Return the same answers where class c has the number `places[c]`, of so many classes.

        A class that the model does not know is never predicted.
        """
        shape = (len(self), classes)
        table, probabilities = np.zeros(shape, np.uint8), np.zeros(shape)
        table[:, places], probabilities[:, places] = self.table, self.probabilities
        thresholds = np.full(classes, 0.5)
        thresholds[places] = self.thresholds
        return type(self)(table, probabilities, thresholds)


Answers = SingleAnswers | MultiAnswers


def answers_of(probabilities: Probabilities, labels: Labels, thresholds: Floats) -> Answers:
    """Return the answers in probabilities (n, classes) to the n images of these labels.

    Args:
        probabilities: (n, classes)
        labels: of the same n images
        thresholds: of each class, (classes,), or of all, (); only used where images have several
    """
    if isinstance(labels, SingleLabels):
        return SingleAnswers.of(probabilities, labels.values)
    above = np.broadcast_to(thresholds, probabilities.shape[1:]).astype(np.float64)
    return MultiAnswers(labels.values, probabilities, above)
