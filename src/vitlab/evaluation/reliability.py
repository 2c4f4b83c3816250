"""Calibration error: how far confidence and accuracy are apart, in bins of confidence.

The reliability diagram and the plain expected calibration error (ECE) have 15 bins of equal width
(Guo et al., On Calibration of Modern Neural Networks, 2017). In every bin chance puts accuracy off
confidence, so that the plain figure is too large, and of few images mostly chance.

`calibration_error` is without that part (Kumar et al., Verified Uncertainty Calibration, 2019). In
bins of equally many images, the squared mean gap is estimated by the mean product of the gaps of
two different images, whose expectation is the square of the expected gap, however few there are.
"""

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from vitlab.evaluation.answers import Answers, Floats, Integers, Truth, Weighted, descending, ratio

BINS = 15  # equal-width
LARGEST = 15  # bins of equally many images, of many images
IN_A_BIN = 10  # images at least, of few
LEVEL = 0.95  # of all confidence intervals of figures
REACH = NormalDist().inv_cdf((1 + LEVEL) / 2)


@dataclass(frozen=True)
class Bin:
    """The images whose confidence is in (low, high]: their mean confidence and accuracy."""

    low: float
    high: float
    count: int
    confidence: float
    accuracy: float


def bins(probabilities: Floats, labels: Truth, count: int = BINS) -> list[Bin]:
    """Return the reliability diagram: images by their confidence, in bins of equal width.

    Args:
        probabilities: (n, classes)
        labels: the true classes, (n,)
        count: of bins
    """
    confidence = probabilities.max(1)
    right = probabilities.argmax(1) == labels
    edges = np.linspace(0, 1, count + 1)
    table = _members(bin_of(confidence, count), count)
    images = table.sum(0)
    sure = confidence @ table
    hits = right @ table
    columns = edges[:-1], edges[1:], images.astype(int), ratio(sure, images), ratio(hits, images)
    return [Bin(*row) for row in zip(*(each.tolist() for each in columns), strict=True)]


def bin_of(confidence: Floats, count: int = BINS) -> Integers:
    """Return the number of the bin that each confidence is in; a bin has its upper edge."""
    edges = np.linspace(0, 1, count + 1)
    return np.clip(np.searchsorted(edges, confidence, side="left") - 1, 0, count - 1)


def ece(given: Weighted) -> Floats:
    """Return the expected calibration error: the mean gap of confidence and accuracy per bin.

    Source: Guo et al., 2017, equation 3.
    """
    gaps = given.answers.confidence - given.answers.right
    table = _members(bin_of(given.answers.confidence), BINS)
    return np.abs(given.sums(table * gaps[:, None])).sum(1) / given.total


def calibration_error(given: Weighted) -> Floats:
    """Return the root mean square calibration error without what chance adds to it.

    Source: Kumar et al., 2019, section 4; the estimate of a bin is that of its gaps' U-statistic.
    """
    table = _equal_mass(given.answers)
    gaps = given.answers.confidence - given.answers.right
    columns = (table * gaps[:, None], table, table * gaps[:, None] ** 2)
    sums, images, squares = (given.sums(each) for each in columns)
    each = ratio(sums**2 - squares, images * (images - 1))
    return np.sqrt(np.maximum((each * images).sum(1), 0) / given.total)


def calibration_interval(answers: Answers) -> tuple[float, float]:
    """Return the 95% interval of `calibration_error`, found by inverting a test.

    It holds every error at which what was found is within 1.96 standard deviations. The variance
    of the squared error grows with it; that of a bin without mistakes is as if there was one more
    image of either kind (docs/evaluation.md has how often the interval covers).
    """
    table = _equal_mass(answers)
    gaps = answers.confidence - answers.right
    images = table.sum(0)
    mean = gaps @ table / images
    sample = (gaps**2 @ table - images * mean**2) / np.maximum(images - 1, 1)
    hits = answers.right @ table
    variance = np.maximum(sample, (hits + 1) * (images - hits + 1) / (images + 2) ** 2)
    share = images / len(answers)
    square = mean**2
    found = float((share * (square - sample / images)).sum())
    fixed = float((2 * (share * variance) ** 2 / (images * np.maximum(images - 1, 1))).sum())
    likely = share * (square + variance / images)  # the part of each bin in the error
    slope = float((share * likely * variance / images).sum() / likely.sum())
    middle = found + 2 * REACH**2 * slope  # (found - e)^2 <= REACH^2 (4 slope e + fixed)
    reach = np.sqrt(max(middle**2 - found**2 + REACH**2 * fixed, 0.0))
    low, high = (float(np.sqrt(max(middle + side, 0.0))) for side in (-reach, reach))
    return low, min(high, 1.0)


def _equal_mass(answers: Answers) -> Floats:
    """Return which images are in which bin of about equally many, ties in one: (n, bins)."""
    order, _ = descending(answers.confidence)
    ranked = answers.confidence[order][::-1]
    count = int(np.clip(len(ranked) // IN_A_BIN, 1, LARGEST))
    edges = np.unique(ranked[len(ranked) * np.arange(count) // count])
    place = np.searchsorted(edges, answers.confidence, side="right") - 1
    return _members(place, len(edges))


def _members(place: Integers, count: int) -> Floats:
    """Return which images are in which bin: (n, bins) of zeros and ones."""
    return (place[:, None] == np.arange(count)).astype(np.float64)
