"""Intervals of figures near 0% or 100%, where hardly an answer is wrong, or right.

Test images with few errors have too few of them about as often as too many, and resamples of none
have none: of figures of 99.9% the bootstrap held the truth in 0 to 80% of simulated test sets, and
gave nothing for flawless ones. Here a figure is taken as a share of as many images as decide about
it, with the interval of a share; where resamples say more, the wider ends hold. Losses without a
bound have no interval: one more error may cost anything.
"""

import math

import numpy as np

from vitlab.evaluation.answers import Answers, Bools, Floats, SingleAnswers
from vitlab.evaluation.metrics import Interval, Metric
from vitlab.evaluation.reliability import REACH

FEW = 5  # wrong or right answers, from which on resamples vary as test sets do
LEAST = (0.0, 0.0513, 0.3554, 0.8177)  # errors that 0, 1, 2 and 3 of them stand for, with 95%
SMALL = 0.1  # shares at which the number of errors is about Poisson
UNBOUNDED = ("nll", "bce", "balanced_nll")
ELSEWHERE = ("brier",)  # not at an end of its scale where hardly an answer is right
OF_IMAGES = ("aurc", "brier")  # means over the images
AGREEMENT = ("mcc", "kappa")


def wilson(share: float, images: float) -> Interval:
    """Return Wilson's score interval of a share of so many images.

    Source: Wilson, Probable inference, the law of succession, and statistical inference, 1927.
    """
    square = REACH**2 / images
    middle = (share + square / 2) / (1 + square)
    reach = math.sqrt(square * (share * (1 - share) + square / 4)) / (1 + square)
    return min(max(middle - reach, 0.0), share), max(min(middle + reach, 1.0), share)


def of_share(share: float, images: float) -> Interval:
    """Return Wilson's interval of a share, near its ends modified to hold the truth often enough.

    With 1 to 3 errors (or hits) the near end is that of a Poisson variable. Source: Brown, Cai &
    DasGupta, Interval estimation for a binomial proportion, 2001, section 4.1.1.
    """
    low, high = wilson(share, images)
    return min(low, _least(share, images)), max(high, 1 - _least(1 - share, images))


def _least(share: float, images: float) -> float:
    """Return the least share that a small one of so many images may stand for; 1 of others."""
    count = share * images
    if share > SMALL or count > len(LEAST) - 0.5:
        return 1.0
    return float(np.interp(count, range(len(LEAST)), LEAST)) / images


def near_end(answers: Answers, metric: Metric) -> bool:
    """Return whether fewer than `FEW` answers are wrong, or right, as a metric counts them."""
    if isinstance(answers, SingleAnswers):
        right: Bools = answers.rank < 5 if metric.name == "balanced_top5" else answers.right
        hits = int(right.sum())
        errors = len(answers) - hits
    else:
        hits = int((answers.chosen & answers.table.astype(bool)).sum())
        errors = int((~answers.right).sum())
    return errors < FEW or (hits < FEW and metric.name not in ELSEWHERE)


def widen_ends(
    metric: Metric, answers: Answers, point: float, ends: Interval | None
) -> Interval | None:
    """Return the interval of a figure near an end of its scale; None for a loss without a bound.

    None, too, where no image decides about it.

    Args:
        metric: the figure
        answers: to the test images
        point: its value
        ends: by resamples, if they say anything
    """
    if metric.name in UNBOUNDED or not deciding(metric, answers):
        return None
    low, high = _as_a_share(metric, answers, point)
    return (low, high) if ends is None else (min(low, ends[0]), max(high, ends[1]))


def _as_a_share(metric: Metric, answers: Answers, point: float) -> Interval:
    """Return the interval of a figure as a share of the images that decide about it."""
    if metric.name in AGREEMENT and isinstance(answers, SingleAnswers):
        return _agreement(answers, point)
    most = 2.0 if metric.name == "brier" and isinstance(answers, SingleAnswers) else 1.0
    low, high = of_share(min(point / most, 1.0), deciding(metric, answers))
    return most * low, most * high


def deciding(metric: Metric, answers: Answers) -> float:
    """Return how many images decide about a figure: of a mean over classes, those of each class.

    A mean of shares of n images each varies as one share of K² / sum(1 / n) images.
    """
    if metric.name in OF_IMAGES:
        return len(answers)
    if isinstance(answers, SingleAnswers):
        counts = np.unique(answers.truth, return_counts=True)[1]
    else:
        counts = answers.table.sum(0, dtype=np.int64)
    if metric.name == "micro_f1":
        return float(min(counts.sum(), len(answers)))
    if metric.name == "auroc":
        counts = np.minimum(counts, len(answers) - counts)
    known: Floats = counts[counts > 0].astype(np.float64)
    return float(len(known) ** 2 / (1 / known).sum()) if len(known) else 0.0


def _agreement(answers: SingleAnswers, point: float) -> Interval:
    """Return the interval of an agreement beyond chance, by that of the accuracy."""
    classes = int(max(answers.truth.max(), answers.guess.max())) + 1
    truth, guess = (
        np.bincount(each, minlength=classes) / len(answers)
        for each in (answers.truth, answers.guess)
    )
    chance = float(truth @ guess)
    accuracy = float(answers.right.mean())
    if chance >= 1:
        return -1.0, 1.0
    low, high = (
        point + (end - accuracy) / (1 - chance) for end in of_share(accuracy, len(answers))
    )
    return max(low, -1.0), min(high, 1.0)
