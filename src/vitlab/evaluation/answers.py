"""Answers of a classifier to labeled images: a few numbers an image that metrics are made from."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from vitlab.errors import DataError

if TYPE_CHECKING:
    from vitlab.data.labels import Labels
    from vitlab.data.target import Indices

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Bools = NDArray[np.bool_]
Float32s = NDArray[np.float32]
Truth = NDArray[np.integer[Any]]
"""True classes (n,), or a table (n, classes) of zeros and ones."""
BLOCK = 4_000_000  # probabilities that are looked through at once


@dataclass(frozen=True, eq=False)
class SingleAnswers:
    """The answers to images that have one label each.

    Attributes:
        truth: the class, int64 (n,)
        guess: the likeliest class (ties: the lower number), int64 (n,)
        confidence: the probability of the guess, float64 (n,)
        own: the probability of the true class, float64 (n,)
        rank: how many classes come before the true one, int64 (n,)
        square: the sum of the squared probabilities of all classes, float64 (n,)
    """

    truth: Integers
    guess: Integers
    confidence: Floats
    own: Floats
    rank: Integers
    square: Floats

    @classmethod
    def of(cls, probabilities: Floats, truth: Truth) -> Self:
        """Return the answers in probabilities (n, classes) to images of these classes (n,)."""
        own = np.take_along_axis(probabilities, truth[:, None], axis=1)[:, 0]
        square = np.einsum("ij,ij->i", probabilities, probabilities)
        parts = range(0, len(truth), rows := max(1, BLOCK // probabilities.shape[1]))
        each = [ranks(probabilities[k : k + rows], truth[k : k + rows]) for k in parts]
        best = probabilities.argmax(1), probabilities.max(1)
        return cls(truth.astype(np.int64), *best, own, np.concatenate(each), square)

    def __len__(self) -> int:
        return len(self.truth)

    @property
    def right(self) -> Bools:
        """Whether the guess is the class of the image: (n,)."""
        return self.guess == self.truth

    @property
    def loss(self) -> Floats:
        """The negative log-likelihood of the true class, in nats: (n,)."""
        each: Floats = -np.log(np.maximum(self.own, np.finfo(np.float64).tiny))
        return each

    @property
    def squares(self) -> Floats:
        """The squared distance of the probabilities from the truth, summed over classes: (n,)."""
        return self.square - 2 * self.own + 1

    def agrees(self, other: "SingleAnswers") -> Bools:
        """Return whether both models guess the same class: (n,)."""
        return self.guess == other.guess

    def take(self, places: "Indices") -> Self:
        """Return the answers to some of the images."""
        return type(self)(*(each[places] for each in vars(self).values()))

    def renumbered(self, places: Integers, classes: int) -> Self:
        """Return the same answers where class c has the number `places[c]`, of so many classes."""
        columns = (self.confidence, self.own, self.rank, self.square)
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
    probabilities: Floats
    thresholds: Floats

    def __len__(self) -> int:
        return len(self.table)

    @property
    def chosen(self) -> Bools:
        """Which classes are predicted: (n, classes)."""
        return self.probabilities > self.thresholds

    @property
    def right(self) -> Bools:
        """Whether exactly the labels of the image are predicted: (n,)."""
        return (self.chosen == self.table.astype(bool)).all(1)

    @property
    def confidence(self) -> Floats:
        """The highest probability of a class: (n,)."""
        return self.probabilities.max(1)

    @property
    def loss(self) -> Floats:
        """The binary cross-entropy in nats, mean over classes: (n,)."""
        own = np.where(self.table.astype(bool), self.probabilities, 1 - self.probabilities)
        each: Floats = -np.log(np.maximum(own, np.finfo(np.float64).tiny)).mean(1)
        return each

    @property
    def squares(self) -> Floats:
        """The squared distance of the probabilities from the truth, mean over classes: (n,)."""
        each: Floats = ((self.probabilities - self.table) ** 2).mean(1)
        return each

    def agrees(self, other: "MultiAnswers") -> Bools:
        """Return whether both models predict the same classes: (n,)."""
        return (self.chosen == other.chosen).all(1)

    def take(self, places: "Indices") -> Self:
        """Return the answers to some of the images."""
        return type(self)(self.table[places], self.probabilities[places], self.thresholds)

    def renumbered(self, places: Integers, classes: int) -> Self:
        """Return the same answers where class c has the number `places[c]`, of so many classes.

        A class that the model does not know is never predicted.
        """
        shape = (len(self), classes)
        table = np.zeros(shape, np.uint8)
        probabilities = np.zeros(shape)
        table[:, places], probabilities[:, places] = self.table, self.probabilities
        thresholds = np.full(classes, 0.5)
        thresholds[places] = self.thresholds
        return type(self)(table, probabilities, thresholds)


Answers = SingleAnswers | MultiAnswers


def answers_of(
    probabilities: Floats, labels: "Labels", thresholds: Floats | float = 0.5
) -> Answers:
    """Return the answers in probabilities (n, classes) to the n images of these labels.

    Args:
        probabilities: (n, classes)
        labels: of the same n images
        thresholds: of each class, (classes,), or of all; only used where images have several

    Raises:
        DataError: the labels are not those of these images, or of other classes.
    """
    check_labels(probabilities, labels)
    if not labels.several:
        return SingleAnswers.of(probabilities, labels.values)
    above = np.broadcast_to(thresholds, probabilities.shape[1:]).astype(np.float64)
    return MultiAnswers(labels.values.astype(np.uint8, copy=False), probabilities, above)


def check_labels(probabilities: Floats, labels: "Labels") -> None:
    """Refuse labels that do not belong to probabilities (n, classes).

    Raises:
        DataError: another number of images, none at all, or labels of other classes.
    """
    images, classes = probabilities.shape
    if not images:
        raise DataError("there are no images to measure")
    if len(labels) != images:
        raise DataError(f"{len(labels):,} labels for predictions of {images:,} images")
    values = labels.values
    if labels.several:
        if values.shape != (images, classes):
            raise DataError(f"a table of {values.shape[1]:,} classes for a model of {classes:,}")
    elif values.min() < 0 or values.max() >= classes:
        wrong = values[(values < 0) | (values >= classes)]
        raise DataError(
            f"label {wrong[0]} is out of range: the model has {classes:,} classes, numbered 0 to "
            f"{classes - 1:,} ({len(wrong):,} of {images:,} labels are)"
        )


def check_numbers(rows: NDArray[np.floating[Any]], what: str = "images a probability") -> None:
    """Refuse what a model gives, (n, classes) or (n, width), if it is not finite.

    Args:
        rows: of n images
        what: they are of, and what each has

    Raises:
        DataError: a number is NaN or infinite.
    """
    wrong = len(rows) - int(np.isfinite(rows.sum(1, dtype=np.float64)).sum())
    if wrong:
        raise DataError(
            f"the model gives {wrong:,} of {len(rows):,} {what} that is not a number: its weights "
            "are damaged, or it diverged"
        )


def ranks(probabilities: Floats, labels: Truth) -> Integers:
    """Count, for each image, the classes that come before the true one: int64 (n,).

    Ties: the lower number first. A probability that is not a number comes before all others, so
    that it is never right.
    """
    own = np.take_along_axis(probabilities, labels[:, None], axis=1)
    before = np.arange(probabilities.shape[1])[None] < labels[:, None]
    ahead = (probabilities > own) | ((probabilities == own) & before)
    ahead |= np.isnan(probabilities) | np.isnan(own)
    return ahead.sum(axis=1)


@dataclass(frozen=True, eq=False)
class Weighted:
    """Answers to n images, and b rows of weights: how often each image counts.

    Attributes:
        answers: to the images
        weights: float64 (b, n)
        probabilities: of all classes, (n, classes); None where only the answers are kept
    """

    answers: Answers
    weights: Floats
    probabilities: Floats | None = None

    @property
    def single(self) -> SingleAnswers:
        """The answers, of one label an image."""
        assert isinstance(self.answers, SingleAnswers)
        return self.answers

    @cached_property
    def total(self) -> Floats:
        """The weight of all images, (b,)."""
        return self.weights.sum(1)

    def sums(self, columns: Floats) -> Floats:
        """Return the weighted sums of columns (n, k): (b, k); of one row always the same bits."""
        if len(self.weights) > 1:
            return self.weights @ columns
        return (self.weights[0] * columns.T).sum(1)[None]

    def mean(self, values: NDArray[Any]) -> Floats:
        """Return the weighted mean of values (n,): (b,)."""
        return self.sums(values.astype(np.float64)[:, None])[:, 0] / self.total

    def balanced(self, values: NDArray[Any]) -> Floats:
        """Return the mean over the classes that images have of each one's mean of values (n,)."""
        order, starts = grouped(self.single.truth)
        sums = np.add.reduceat((self.weights * values)[:, order], starts, axis=1)
        return over_classes(sums, self.counts[2])

    @cached_property
    def counts(self) -> tuple[Floats, Floats, Floats, Floats]:
        """The weight of the images recognized, predicted and there: (b, classes) three times.

        Of one label an image, the classes are those that images have, and the fourth is the sum
        over all classes of the squared weight of the images predicted to be of it, (b,).
        """
        if isinstance(self.answers, MultiAnswers):
            own = self.answers.table.astype(np.float64)
            chosen = self.answers.chosen
            columns = (own * chosen, chosen.astype(np.float64), own)
            hits, guessed, there = (self.sums(each) for each in columns)
            return hits, guessed, there, (guessed**2).sum(1)
        truth = self.answers.truth
        guess = self.answers.guess
        weights = self.weights
        (by_truth, starts), (by_guess, guesses) = grouped(truth), grouped(guess)
        present = truth[by_truth][starts]
        named = guess[by_guess][guesses]
        there = np.add.reduceat(weights[:, by_truth], starts, axis=1)
        hits = np.add.reduceat((weights * self.answers.right)[:, by_truth], starts, axis=1)
        guessed = np.add.reduceat(weights[:, by_guess], guesses, axis=1)
        place = np.searchsorted(named, present)
        place = np.where(np.isin(present, named), place, len(named))
        return hits, np.pad(guessed, ((0, 0), (0, 1)))[:, place], there, (guessed**2).sum(1)

    @cached_property
    def ranked(self) -> tuple[Floats, Floats, Floats]:
        """The weight of each group of equal confidence, most confident first, and the sums so far.

        The sums are of the weights and of those of wrong answers: (b, groups) three times.
        """
        order, ends = descending(self.answers.confidence)
        weights = self.weights[:, order]
        seen = np.cumsum(weights, 1)[:, ends]
        wrong = np.cumsum(weights * ~self.answers.right[order], 1)[:, ends]
        return np.diff(seen, axis=1, prepend=0), seen, wrong

    def columns(self) -> Iterator[tuple[Floats, Bools]]:
        """Yield the probabilities of each class that some images have, and which images: (n,)."""
        if isinstance(self.answers, MultiAnswers):
            table = self.answers.table.astype(bool)
            for place in np.flatnonzero(table.any(0)):
                yield self.answers.probabilities[:, place], table[:, place]
            return
        assert self.probabilities is not None
        for place in np.unique(self.answers.truth):
            yield self.probabilities[:, place], self.answers.truth == place


def over_classes(sums: Floats, weights: Floats, present: Bools | None = None) -> Floats:
    """Return the mean over classes of a ratio, 0 where it has no denominator: (b,)."""
    present = weights > 0 if present is None else present
    return (ratio(sums, weights) * present).sum(1) / np.maximum(present.sum(1), 1)


def ratio(above: Floats, below: Floats, otherwise: float = 0.0) -> Floats:
    """Return quotients, or another value where there is nothing below."""
    found: Floats = np.full(np.broadcast(above, below).shape, otherwise)
    return np.divide(above, below, out=found, where=below > 0)


def mean_known(values: Floats, axis: int = -1) -> Floats:
    """Return the mean along an axis of the numbers that are not NaN; NaN of none."""
    there = np.isfinite(values)
    total = np.where(there, values, 0).sum(axis)
    return ratio(total, there.sum(axis).astype(np.float64), np.nan)


def finite(value: float) -> float | None:
    """Return a number as JSON has it: None in place of NaN."""
    return float(value) if np.isfinite(value) else None


def grouped(values: Integers) -> tuple[Integers, Integers]:
    """Return the order that sorts values, and where each group of equal ones begins."""
    order = np.argsort(values, kind="stable")
    return order, np.flatnonzero(np.diff(values[order], prepend=-1))


def descending(scores: Floats) -> tuple[Integers, Integers]:
    """Return the order of scores, highest first, and where each group of equal ones ends."""
    order = np.argsort(-scores, kind="stable")
    return order, np.append(np.flatnonzero(np.diff(scores[order])), len(scores) - 1)


def sample(count: int, most: int, seed: int) -> Integers:
    """Choose numbers at random, all equally likely.

    Args:
        count: how many there are to choose from
        most: how many to choose
        seed: of the choice

    Returns:
        int64, ascending.
    """
    if count <= most:
        return np.arange(count)
    return np.sort(np.random.default_rng(seed).choice(count, most, replace=False))
