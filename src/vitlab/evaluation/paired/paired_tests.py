"""Whether two models differ by more than chance on the same test images.

Two models that saw the same images are compared image by image, which tells far smaller differences
from chance than two intervals side by side do. Of two classifiers, McNemar's test (1947) asks
whether the images that only one of them gets right are split as evenly as coins fall; here it is
exact, by the binomial distribution. The interval of a difference comes from resampling the images,
each resample being the same for both (the paired bootstrap; Efron & Tibshirani, 1993, as in
evaluation/intervals). Several tests at once are corrected by Holm's method (1979): the chance of a
single false alarm among all of them stays below the level.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from vitlab.evaluation.answers import Answers, SingleAnswers, Weighted
from vitlab.evaluation.intervals import difference, resampled, resamples_for
from vitlab.evaluation.metrics import METRICS, Interval, values_of

Figures = dict[str, float]


@dataclass(frozen=True)
class Difference:
    """How much higher a figure of the second model is, and its 95% interval where that holds."""

    value: float
    interval: Interval | None


@dataclass(frozen=True)
class Pair:
    """Two models on the same images.

    Attributes:
        first: number of the one
        second: number of the other
        only_first: images that the first alone gets right
        only_second: images that the second alone gets right
        both_wrong: images that both get wrong
        agreement: share of images to which they give the same answer
        overlap: images that both get wrong, as a share of those that either gets wrong; 1 if there
            are none
        consistency: Cohen's kappa of being right: how far their mistakes coincide beyond what two
            independent models of their accuracies would share (Geirhos et al., 2020); 1 if neither
            or both are always right
        p: of McNemar's exact test, two-sided; where images have several labels, of the bootstrap of
            the difference in mAP
        adjusted: the same after Holm's correction for all pairs
        differences: second minus first, of each figure
    """

    first: int
    second: int
    only_first: int
    only_second: int
    both_wrong: int
    agreement: float
    overlap: float
    consistency: float
    p: float
    adjusted: float
    differences: dict[str, Difference]


def mcnemar(only_first: int, only_second: int) -> float:
    """Return the two-sided p of McNemar's exact test: 1 if no image tells the two apart.

    Args:
        only_first: images that the first model alone gets right
        only_second: images that the second alone gets right
    """
    images, fewer = only_first + only_second, min(only_first, only_second)
    term = total = 1  # C(images, k), in whole numbers: nothing is rounded before the end
    for k in range(fewer):
        term = term * (images - k) // (k + 1)
        total += term
    return min(1.0, 2 * total / 2**images)


def holm(values: Sequence[float]) -> list[float]:
    """Return p-values adjusted for all tests at once by Holm's step-down method, in their order."""
    adjusted, highest = [0.0] * len(values), 0.0
    for rank, place in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        highest = max(highest, min(1.0, (len(values) - rank) * values[place]))
        adjusted[place] = highest
    return adjusted


def figures_of(answers: Answers) -> Figures:
    """Return the figures of a model on all its images; those that are not defined are left out."""
    found = values_of(Weighted(answers, np.ones((1, len(answers)))))
    return {name: float(value[0]) for name, value in found.items() if np.isfinite(value[0])}


def pairs_of(answers: Sequence[Answers], resamples: int | None = None) -> list[Pair]:
    """Compare all models with each other, each pair once.

    Args:
        answers: of each model, to the same images in the same order
        resamples: of the images; None for as many as the intervals of one model have
    """
    points = [figures_of(each) for each in answers]
    count = resamples or resamples_for(answers[0])
    samples = [resampled(each, count) for each in answers]
    found = []
    for first, second in combinations(range(len(answers)), 2):
        pair = _counted(answers[first], answers[second])
        gaps, p = {}, pair.p
        for name in [each for each in points[first] if each in points[second]]:
            gap = points[second][name] - points[first][name]
            drawn = samples[second][name] - samples[first][name]
            gaps[name] = Difference(gap, difference(METRICS[name], gap, drawn, len(answers[0])))
            if name == "map":
                p = _p_of(drawn)
        found.append(replace(pair, first=first, second=second, p=p, differences=gaps))
    adjusted = holm([pair.p for pair in found])
    return [replace(pair, adjusted=p) for pair, p in zip(found, adjusted, strict=True)]


def _counted(one: Answers, other: Answers) -> Pair:
    """Return what counting images tells of two models, and McNemar's p."""
    assert isinstance(one, SingleAnswers) == isinstance(other, SingleAnswers)
    right, too = one.right, other.right
    only_first, only_second = int((right & ~too).sum()), int((too & ~right).sum())
    both_wrong, images = int((~right & ~too).sum()), len(one)
    shares = float(right.mean()), float(too.mean())
    alike = 1 - (only_first + only_second) / images
    expected = shares[0] * shares[1] + (1 - shares[0]) * (1 - shares[1])
    return Pair(
        first=0,
        second=1,
        only_first=only_first,
        only_second=only_second,
        both_wrong=both_wrong,
        agreement=float(one.agrees(other).mean()),  # type: ignore[arg-type]
        overlap=both_wrong / wrong if (wrong := int((~right | ~too).sum())) else 1.0,
        consistency=(alike - expected) / (1 - expected) if expected < 1 else 1.0,
        p=(p := mcnemar(only_first, only_second)),
        adjusted=p,
        differences={},
    )


def _p_of(samples: NDArray[np.float64]) -> float:
    """Return the two-sided p of a difference by its values in resamples; 0 lies beyond few."""
    samples = samples[np.isfinite(samples)]
    beyond = min(int((samples <= 0).sum()), int((samples >= 0).sum()))
    return min(1.0, 2 * (beyond + 1) / (len(samples) + 1))
