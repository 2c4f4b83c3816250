"""How far a figure might be off because the test images are a sample: bootstrap intervals.

The test images are resampled with replacement many times, and each figure is computed of every
resample (Efron & Tibshirani, *An Introduction to the Bootstrap*, 1993). An interval is the middle
95% of its values, corrected for their median bias (the BC interval of chapter 14: BCa without its
acceleration). The correction matters for the ECE, whose values in resamples are too large; the
interval of a mean, as accuracy is one, hardly differs from the plain percentiles.

A resample is a row of weights: how often it has each image. Every figure is a function of weighted
sums, so that a block of resamples is a few matrix products.
"""

from collections.abc import Callable
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitlab.data.labels import Labels, MultiLabels, SingleLabels
from vitlab.evaluation.metrics import (
    BINS,
    Probabilities,
    Threshold,
    Truth,
    bin_of,
    figures,
    losses,
    one_hot,
)
from vitlab.evaluation.paired.answered import SingleAnswers

LEVEL = 0.95
MEANS = ("mcc", "auroc", "balanced_accuracy", "macro_precision", "macro_recall", "macro_f1")
SHARES = (
    "accuracy", "top5", "balanced_accuracy", "macro_precision", "macro_recall", "macro_f1",
    "micro_f1",
)  # fmt: skip
PAIRS = 1_000_000  # pairs of images that the area under the ROC curve compares, at most
RESAMPLES = 1000  # fewer, but never under FEWEST, where they would cost more than WORK
FEWEST = 200
WORK = 2e8  # resamples x images, x classes where images have several labels
_BLOCK = 4_000_000  # weights in memory at once
_SEED = 0  # the same predictions give the same intervals

Floats = NDArray[np.float64]
Statistics = Callable[[Floats], dict[str, Floats]]
"""Weights (b, n) of the images in b resamples -> each figure, (b,)."""

Interval = tuple[float, float]


def with_intervals(
    probabilities: Probabilities,
    labels: Labels,
    resamples: int | None = None,
    threshold: Threshold = 0.5,
) -> dict[str, Any]:
    """Return the `figures` of predictions, and `intervals`: their 95% confidence intervals.

    Args:
        probabilities: (n, classes)
        labels: of the same n images
        resamples: None for 1,000, or as many as a few seconds allow, at least 200
        threshold: above which a class is predicted where images have several
    """
    own = figures(probabilities, labels, threshold)
    found = intervals(probabilities, labels, own, resamples, threshold)
    return {**own, "intervals": {name: list(each) for name, each in found.items()}}


def intervals(
    probabilities: Probabilities,
    labels: Labels,
    points: dict[str, float | None],
    resamples: int | None = None,
    threshold: Threshold = 0.5,
) -> dict[str, Interval]:
    """Return the 95% confidence interval of each figure.

    Where all images are right, or none, no resample differs: the interval of a share then ends at
    the exact binomial bound (Clopper & Pearson, 1934).

    Args:
        probabilities: (n, classes)
        labels: of the same n images
        points: the figures; those that are None have no interval
        resamples: None for 1,000, or as many as a few seconds allow, at least 200
        threshold: above which a class is predicted where images have several
    """
    match labels:
        case SingleLabels(truth):
            statistics, size = of_single(probabilities, truth), len(truth)
        case MultiLabels(table):
            statistics, size = of_several(probabilities, table, threshold), table.size
    if resamples is None:
        resamples = round(min(max(WORK / size, FEWEST), RESAMPLES))
    samples = resampled(statistics, len(labels), resamples)
    found = {}
    for name, values in samples.items():
        if (point := points.get(name)) is not None:
            found[name] = interval(point, values)
    if sure := [name for name in SHARES if found.get(name) in ((0.0, 0.0), (1.0, 1.0))]:
        margin = 1 - ((1 - LEVEL) / 2) ** (1 / len(labels))
        for name in sure:
            if name != "top5" or probabilities.shape[1] > 5:
                found[name] = (1 - margin, 1.0) if points[name] else (0.0, margin)
    alike = [name for name, (low, high) in found.items() if low == high and name in MEANS]
    for name in alike:  # in all resamples, which says nothing of other images
        del found[name]
    return found


def resampled(statistics: Statistics, images: int, resamples: int) -> dict[str, Floats]:
    """Return the value of each figure in each resample: (resamples,).

    Args:
        statistics: the figures
        images: how many there are
        resamples: how many to draw
    """
    generator = np.random.default_rng(_SEED)
    block, parts = max(1, _BLOCK // images), []
    for first in range(0, resamples, block):
        weights = np.empty((min(block, resamples - first), images))
        for row in weights:
            drawn = generator.integers(0, images, images, dtype=np.int32)
            row[:] = np.bincount(drawn, minlength=images)
        parts.append(statistics(weights))
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def interval(point: float, samples: Floats) -> Interval:
    """Return the bias-corrected interval of a figure, which always contains the figure itself.

    Args:
        point: the figure of all images
        samples: its values in resamples; those that are NaN do not count
    """
    samples = samples[np.isfinite(samples)]
    if not len(samples):
        return point, point
    normal, edge = NormalDist(), 0.5 / len(samples)
    below = float((np.mean(samples < point) + np.mean(samples <= point)) / 2)
    shift = normal.inv_cdf(min(max(below, edge), 1 - edge))
    reach = normal.inv_cdf((1 + LEVEL) / 2)
    shares = [normal.cdf(2 * shift + side) for side in (-reach, reach)]
    low, high = np.quantile(samples, shares).tolist()
    return min(low, point), max(high, point)


def of_single(probabilities: Probabilities, truth: Truth) -> Statistics:
    """Return the figures of images that have one label each."""
    own = of_answers(SingleAnswers.of(probabilities, truth))
    area = _areas(probabilities, one_hot(truth, probabilities.shape[1]))
    return lambda weights: own(weights) | area(weights)


def of_answers(answers: SingleAnswers) -> Statistics:
    """Return these figures but for the AUROC, which takes the probabilities of all classes."""
    truth, guess, confidence = answers.truth, answers.guess, answers.confidence
    count, bins_, right = len(truth), np.arange(BINS), answers.right.astype(np.float64)
    loss = -np.log(np.maximum(answers.own, np.finfo(np.float64).tiny))
    means = np.stack([answers.rank < 1, answers.rank < 5, loss], 1).astype(np.float64)
    gaps = (bin_of(confidence)[:, None] == bins_) * (confidence - right)[:, None]
    columns = np.concatenate([means, gaps], 1)
    by_truth, starts = _grouped(truth)
    by_guess, guesses = _grouped(guess)
    place = _places(truth[by_truth][starts], guess[by_guess][guesses])

    def statistics(weights: Floats) -> dict[str, Floats]:
        sums = weights @ columns / count
        images = np.add.reduceat(weights[:, by_truth], starts, axis=1)  # (b, classes present)
        hits = np.add.reduceat((weights * right)[:, by_truth], starts, axis=1)
        guessed = np.add.reduceat(weights[:, by_guess], guesses, axis=1)
        spread = (count**2 - (images**2).sum(1)) * (count**2 - (guessed**2).sum(1))
        guessed = np.pad(guessed, ((0, 0), (0, 1)))[:, place]
        covariance = count * hits.sum(1) - (images * guessed).sum(1)
        there = images > 0
        classes = there.sum(1)
        recall = np.divide(hits, images, where=there, out=np.zeros_like(hits))
        f1 = np.divide(2 * hits, images + guessed, where=there, out=np.zeros_like(hits))
        precision = np.where(there, hits / np.maximum(guessed, 1), 0)
        mcc = covariance / np.sqrt(np.where(spread > 0, spread, np.inf))
        return {
            "accuracy": sums[:, 0],
            "top5": sums[:, 1],
            "nll": sums[:, 2],
            "ece": np.abs(sums[:, 3:]).sum(1),
            "balanced_accuracy": recall.sum(1) / classes,
            "macro_precision": precision.sum(1) / classes,
            "macro_f1": f1.sum(1) / classes,
            "mcc": mcc,
        }

    return statistics


def of_several(
    probabilities: Probabilities, table: Truth, threshold: Threshold = 0.5
) -> Statistics:
    """Return the figures of images that have any number of labels each."""
    own, chosen = table.astype(np.float64), (probabilities > threshold).astype(np.float64)
    both, sizes = own * chosen, own + chosen
    loss, area = losses(probabilities, table), _areas(probabilities, table)
    ranked = [
        _ranking(scores, truth) for scores, truth in zip(probabilities.T, table.T, strict=True)
    ]

    def statistics(weights: Floats) -> dict[str, Floats]:
        hits, total = weights @ both, weights @ sizes
        guessed, images = np.maximum(weights @ chosen, 1), np.maximum(weights @ own, 1)
        precision = np.stack([_average_precision(weights, *each) for each in ranked])
        there = np.isfinite(precision)
        mean = np.where(there, precision, 0).sum(0) / np.maximum(there.sum(0), 1)
        return {
            "map": np.where(there.any(0), mean, np.nan),
            "micro_f1": 2 * hits.sum(1) / np.maximum(total.sum(1), 1),
            "macro_precision": (hits / guessed).mean(1),
            "macro_recall": (hits / images).mean(1),
            "macro_f1": (2 * hits / np.maximum(total, 1)).mean(1),
            **area(weights),
            "bce": weights @ loss / len(loss),
        }

    return statistics


def _places(present: NDArray[np.integer[Any]], guessed: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return where each class that images have stands among those guessed; else their number."""
    place = np.searchsorted(guessed, present)
    return np.where(np.isin(present, guessed), place, len(guessed))


def _grouped(values: NDArray[np.integer[Any]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the order that sorts values, and where each group of equal ones begins."""
    order = np.argsort(values, kind="stable")
    starts = np.flatnonzero(np.diff(values[order], prepend=-1))
    return order, starts


def _areas(probabilities: Probabilities, table: Truth) -> Statistics:
    """Return the area under the ROC curve in resamples; nothing where that would take long.

    It is the share of pairs, of an image of a class and one that is not, that are in the right
    order; so it is a product of their weights, and NaN where a resample has no such pair.
    """
    positives = table.sum(0, dtype=np.int64)
    if (positives * (len(table) - positives)).sum() > PAIRS:
        return lambda weights: {}
    sides = [(np.flatnonzero(column), np.flatnonzero(column == 0)) for column in table.T]
    compared = []
    for (own, rest), scores in zip(sides, probabilities.T, strict=True):
        ahead = scores[own][:, None] - scores[rest]
        compared.append((np.sign(ahead) + 1) / 2)

    def area(weights: Floats) -> dict[str, Floats]:
        each = np.full((len(sides), len(weights)), np.nan)
        for place, ((own, rest), right) in enumerate(zip(sides, compared, strict=True)):
            mine, others = weights[:, own], weights[:, rest]
            pairs = mine.sum(1) * others.sum(1)
            ordered = ((mine @ right) * others).sum(1)
            np.divide(ordered, pairs, out=each[place], where=pairs > 0)
        there = np.isfinite(each)
        mean = np.where(there, each, 0).sum(0) / np.maximum(there.sum(0), 1)
        return {"auroc": np.where(there.any(0), mean, np.nan)}

    return area


def _ranking(scores: Floats, truth: Truth) -> tuple[NDArray[np.int64], ...]:
    """Return images best first, the places of those that have the class, the ends of their ties."""
    order = np.argsort(-scores, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(scores[order])), len(scores) - 1)  # of equal scores
    places = np.flatnonzero(truth[order])
    return order, places, ends[np.searchsorted(ends, places)]


def _average_precision(
    weights: Floats,
    order: NDArray[np.int64],
    places: NDArray[np.int64],
    ends: NDArray[np.int64],
) -> Floats:
    """Return the average precision of one class in each resample, NaN where no image has it."""
    ranked = weights[:, order]
    own = ranked[:, places]
    right = np.cumsum(own, 1)
    last = np.searchsorted(places, ends, side="right") - 1  # of the images that share a score
    seen = np.cumsum(ranked, 1)[:, ends]
    precision = right[:, last] / np.maximum(seen, 1)
    total = own.sum(1)
    with np.errstate(invalid="ignore"):
        return (own * precision).sum(1) / total
