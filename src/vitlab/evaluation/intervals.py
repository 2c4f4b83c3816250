"""Confidence intervals of figures: how far they might be off because the test images are a sample.

Shares of the images have Wilson's score interval (1927). Of other figures the test images are drawn
again with replacement many times (the bootstrap; Efron & Tibshirani, 1993), and the deviation of
the values is taken to a scale on which they are about normal: the logit of a share, the logarithm
of a loss, Fisher's z of a correlation. A metric says which (`Metric.interval`), and from how many
images on its intervals cover the truth as often as they say (`Metric.least`): by simulation, in
docs/evaluation.md. Others are not given. Near 0% and 100% another method holds (near_ends).

A resample is a row of weights: how often it has each image.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from vitlab.evaluation.answers import Answers, Floats, MultiAnswers, Weighted, answers_of, finite
from vitlab.evaluation.metrics import METRICS, Interval, Metric, figures_of, values_of
from vitlab.evaluation.near_ends import near_end, of_share, widen_ends
from vitlab.evaluation.near_ends import wilson as wilson
from vitlab.evaluation.reliability import LEVEL, REACH

if TYPE_CHECKING:
    from vitlab.data.labels import Labels

RESAMPLES = 1000  # fewer, but never under FEWEST, where they would cost more than WORK
FEWEST = 200
WORK = 2e8  # resamples x images, x classes where images have several labels
MOST = 2e8  # resamples x images x classes of a metric that goes through the classes one by one
FAR = 500.0  # on a scale, where all of it ends
SCALES: dict[str, tuple[Callable[[float], float], ...]] = {  # to it, back, the inverse slope
    "logit": (
        lambda p: math.log(p / (1 - p)),
        lambda x: 1 / (1 + math.exp(-x)),
        lambda p: p * (1 - p),
    ),
    "log": (math.log, math.exp, lambda p: p),
    "fisher": (math.atanh, math.tanh, lambda p: 1 - p * p),
}
_BLOCK = 4_000_000  # weights in memory at once
_SEED = 0  # the same predictions give the same intervals


def with_intervals(
    probabilities: Floats,
    labels: "Labels",
    resamples: int = RESAMPLES,
    threshold: Floats | float = 0.5,
) -> dict[str, Any]:
    """Return the `figures` of predictions, and `intervals`: their 95% confidence intervals.

    Args:
        probabilities: (n, classes)
        labels: of the same n images
        resamples: how many at most; fewer where they would take more than a few seconds
        threshold: above which a class is predicted where images have several

    Raises:
        DataError: a probability is NaN, or a label no class of the model.
    """
    answers, (images, classes) = answers_of(probabilities, labels, threshold), probabilities.shape
    points = figures_of(answers, probabilities)
    count = resamples_for(answers, resamples)
    having = [
        metric
        for metric in METRICS.values()
        if points.get(metric.name) is not None
        and metric.interval
        and metric.least <= images
        and metric.tells(classes)
        and not (metric.columns and count * images * classes > MOST)
    ]
    drawn = [each for each in having if each.interval in SCALES]
    samples = resampled(answers, count, probabilities, drawn)
    found = dict[str, list[float]]()
    for metric in having:
        name = metric.name
        if callable(metric.interval):
            found[name] = [*metric.interval(answers)]
            continue
        ends = interval_of(metric, images, points[name], samples.get(name, np.empty(0)))
        if metric.interval != "wilson" and (ends is None or near_end(answers, metric)):
            ends = widen_ends(metric, answers, points[name], ends)
        if ends is not None:
            found[name] = [*ends]
    return points | {"intervals": found}


def resamples_for(answers: Answers, most: int = RESAMPLES) -> int:
    """Return how many resamples a few seconds allow, at most so many."""
    size = answers.table.size if isinstance(answers, MultiAnswers) else len(answers)
    return affordable(size, most)


def affordable(size: int, most: int = RESAMPLES) -> int:
    """Return how many resamples a few seconds allow that each look at so many numbers."""
    return round(min(max(WORK / max(size, 1), FEWEST), most))


def resampled(
    answers: Answers,
    resamples: int,
    probabilities: Floats | None = None,
    metrics: Iterable[Metric] | None = None,
) -> dict[str, Floats]:
    """Return the value of each metric in each resample: (resamples,).

    Args:
        answers: to n images
        resamples: how many to draw; the same ones for the same number of images
        probabilities: (n, classes), if they are at hand
        metrics: None for all
    """
    images = len(answers)
    chosen = list(METRICS.values() if metrics is None else metrics)
    generator = np.random.default_rng(_SEED)
    parts = []
    block = max(1, _BLOCK // images)
    for first in range(0, resamples, block) if chosen else ():
        weights = np.empty((min(block, resamples - first), images))
        for row in weights:
            drawn = generator.integers(0, images, images, dtype=np.int32)
            row[:] = np.bincount(drawn, minlength=images)
        parts.append(values_of(Weighted(answers, weights, probabilities), chosen))
    names = parts[0] if parts else {}
    return {name: np.concatenate([part[name] for part in parts]) for name in names}


def redrawn(images: int, resamples: int = RESAMPLES) -> Iterator[Floats]:
    """Yield how often a resample has each image, (images,)."""
    generator = np.random.default_rng(_SEED)
    shares = np.full(images, 1 / images)
    for _ in range(resamples):
        yield generator.multinomial(images, shares).astype(np.float64)


def interval_of(metric: Metric, images: int, point: float, samples: Floats) -> Interval | None:
    """Return the interval of a figure of so many images; None if it has none.

    Args:
        metric: the figure
        images: their number
        point: its value
        samples: its values in resamples, which a share of the images does not need
    """
    if images < metric.least or not math.isfinite(point):
        return None
    if metric.interval == "wilson":
        return of_share(point, images)
    if metric.interval not in SCALES:
        return None
    ends = transformed(metric.interval, point, samples)
    return ends if all(map(math.isfinite, ends)) else None


def bootstrapped(values: dict[str, Floats], images: int, *, biased: bool = False) -> dict[str, Any]:
    """Return figures, None in place of NaN, and `intervals`, those of the figures that have one.

    Args:
        values: of all images, then of resamples, (1 + resamples,) each
        images: how many
        biased: whether few images raise the figures: intervals then are around the figure less the
            bias that the resamples show (Efron & Tibshirani, 1993, chapter 10), and hold the figure
    """
    points = {name: float(own[0]) for name, own in values.items()}
    found = {}
    for name, point in points.items():
        samples = values[name][1:]
        middle = 2 * point - float(np.nanmean(samples)) if biased and len(samples) else point
        if ends := interval_of(METRICS[name], images, middle, samples):
            found[name] = [min(ends[0], point), max(ends[1], point)]
    return {name: finite(own) for name, own in points.items()} | {"intervals": found}


def transformed(scale: str, point: float, samples: Floats) -> Interval:
    """Return the interval of a figure by the deviation of its resamples, on a scale.

    It is NaN where all resamples are alike or the figure lies at an end of the scale, which says
    nothing of other images.

    Args:
        scale: logit, of shares; log, of what is not negative; fisher, of what lies within -1 and 1
        point: the figure of all images
        samples: its values in resamples; those that are NaN do not count
    """
    samples, (to, back, slope) = samples[np.isfinite(samples)], SCALES[scale]
    wide = float(samples.std()) if len(samples) > 1 else 0.0
    if not wide or slope(point) <= 0:
        return math.nan, math.nan
    middle = to(point)
    reach = min(REACH * wide / slope(point), FAR)
    return back(middle - reach), back(middle + reach)


def difference(metric: Metric, gap: float, samples: Floats, images: int) -> Interval | None:
    """Return the interval of a difference of two models by resamples that are the same for both.

    That of a share of the images is as if there were two more, one that only either model gets
    right (Bonett & Price, 2012). None of too few images, and of figures whose differences the
    resamples do not cover (docs/evaluation.md).

    Args:
        metric: the figure
        gap: of all images
        samples: the differences in resamples; those that are NaN do not count
        images: their number
    """
    samples = samples[np.isfinite(samples)]
    if metric.interval not in ("wilson", *SCALES) or images < metric.least or len(samples) < 2:
        return None
    if metric.interval == "wilson":
        apart = images * (images * float(samples.var()) + gap**2) + 2  # images that one has right
        middle = gap * images / (images + 2)
        reach = REACH * math.sqrt(apart / (images + 2) - middle**2) / math.sqrt(images + 2)
        return min(middle - reach, gap), max(middle + reach, gap)
    if not samples.std():  # alike on these images says nothing of others
        return None
    low, high = np.quantile(samples, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]).tolist()
    return min(low, gap), max(high, gap)
