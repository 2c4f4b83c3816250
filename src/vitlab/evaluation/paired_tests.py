"""Paired comparisons of models: the test images that they have in common, and McNemar's test.

Two models that saw the same images are compared image by image, which tells far smaller differences
from chance than two intervals side by side do. Of two classifiers, McNemar's test (1947) asks
whether the images that only one of them gets right are split as evenly as coins fall; here it is
exact, by the binomial distribution. The interval of a difference comes from resampling the images,
each resample being the same for both (the paired bootstrap; Efron & Tibshirani, 1993, as in
evaluation/intervals). Several tests at once are corrected by Holm's method (1979): the chance of a
single false alarm among all of them stays below the level.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np

from vitlab.evaluation.answers import Answers, Bools, Floats, Integers, SingleAnswers, Weighted
from vitlab.evaluation.intervals import RESAMPLES, difference, resampled, resamples_for
from vitlab.evaluation.metrics import METRICS, Interval, values_of
from vitlab.evaluation.multiple_tests import holm
from vitlab.evaluation.run_predictions import Examined


@dataclass(frozen=True, eq=False)
class SameImages:
    """The answers of several models to the same images, in the same order.

    Attributes:
        runs: numbers of the models that have images in common, at least two, rising
        classes: names of all classes that these models know
        answers: of each of them, (n,), classes numbered as in `classes`
        indices: of each of them, the numbers of the images among its own test images, int64 (n,)
        relabeled: images left out because their labels are not the same for all
        apart: numbers of the models that were tested on other images
    """

    runs: tuple[int, ...]
    classes: tuple[str, ...]
    answers: list[Answers]
    indices: list[Integers]
    relabeled: int
    apart: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.indices[0])

    @property
    def several(self) -> bool:
        """Whether an image has any number of labels."""
        return not isinstance(self.answers[0], SingleAnswers)


def same_images(examined: Sequence[Examined | None]) -> SameImages | None:
    """Find the images that models were tested on in common, and match their classes by name.

    It begins with the test images that most models share; a model without any of them stays apart.

    Args:
        examined: the answers of each model; None where they are not known

    Returns:
        None if no two models have an image in common.
    """
    known = {number: each for number, each in enumerate(examined) if each is not None}
    if not known:
        return None
    sets = Counter(_test_set(each) for each in known.values())
    usual = sets.most_common(1)[0][0]
    first = next(number for number, each in known.items() if _test_set(each) == usual)
    runs = [first]
    common = np.unique(known[first].keys)
    for number, each in known.items():
        shared = np.intersect1d(common, each.keys)
        if number != first and len(shared) and type(each.answers) is type(known[first].answers):
            runs.append(number)
            common = shared
    if len(runs) < 2:
        return None
    runs.sort()
    chosen = [known[number] for number in runs]
    order = chosen[0].keys[np.isin(chosen[0].keys, common)]  # as the first has them
    places = [_places(each, order) for each in chosen]
    # those of the first model, then what others add; namesakes counted
    classes = list(dict.fromkeys(each for own in chosen for each in _with_rank(own.classes)))
    answers: list[Answers] = [
        each.answers.take(own).renumbered(_numbers(each.classes, classes), len(classes))
        for each, own in zip(chosen, places, strict=True)
    ]
    alike = _same_truth(answers)
    if not alike.any():
        return None
    return SameImages(
        tuple(runs),
        tuple(name for name, _ in classes),
        [each.take(np.flatnonzero(alike)) for each in answers],
        [each.indices[own][alike] for each, own in zip(chosen, places, strict=True)],
        int((~alike).sum()),
        tuple(sorted(known.keys() - set(runs))),
    )


def _test_set(examined: Examined) -> tuple[str, bytes]:
    return type(examined.answers).__name__, np.sort(examined.keys).tobytes()


def _places(examined: Examined, keys: Integers) -> Integers:
    """Return where each of these images stands among those of a model."""
    order = np.argsort(examined.keys, kind="stable")
    return order[np.searchsorted(examined.keys, keys, sorter=order)]


def _with_rank(names: Sequence[str]) -> list[tuple[str, int]]:
    """Return names, each with how often it stood before: two classes may share one."""
    before: Counter[str] = Counter()
    found = []
    for name in names:
        found.append((name, before[name]))
        before[name] += 1
    return found


def _numbers(names: tuple[str, ...], classes: Sequence[tuple[str, int]]) -> Integers:
    place = {each: number for number, each in enumerate(classes)}
    return np.array([place[each] for each in _with_rank(names)], np.int64)


def _same_truth(answers: Sequence[Answers]) -> Bools:
    """Return of which images all models were told the same labels: (n,)."""
    truths = [each.truth if isinstance(each, SingleAnswers) else each.table for each in answers]
    tables = [each.reshape(len(each), -1) for each in truths]
    return np.all([(each == tables[0]).all(1) for each in tables], axis=0)


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
    from scipy.stats import binomtest

    images = only_first + only_second
    return float(binomtest(only_first, images).pvalue) if images else 1.0


def figures_of(answers: Answers) -> Figures:
    """Return the figures of a model on all its images; those that are not defined are left out."""
    found = values_of(Weighted(answers, np.ones((1, len(answers)))))
    return {name: float(value[0]) for name, value in found.items() if np.isfinite(value[0])}


def pairs_of(answers: Sequence[Answers], resamples: int = RESAMPLES) -> list[Pair]:
    """Compare all models with each other, each pair once.

    Args:
        answers: of each model, to the same images in the same order
        resamples: how many at most
    """
    points = [figures_of(each) for each in answers]
    count = resamples_for(answers[0], resamples)
    samples = [resampled(each, count) for each in answers]
    found = []
    for first, second in combinations(range(len(answers)), 2):
        counted = _counted(answers[first], answers[second])
        gaps = {}
        p = mcnemar(counted["only_first"], counted["only_second"])
        for name in [each for each in points[first] if each in points[second]]:
            gap = points[second][name] - points[first][name]
            drawn = samples[second][name] - samples[first][name]
            gaps[name] = Difference(gap, difference(METRICS[name], gap, drawn, len(answers[0])))
            if name == "map":
                p = _p_of(drawn)
        found.append(Pair(first, second, **counted, p=p, adjusted=p, differences=gaps))
    adjusted = holm([pair.p for pair in found])
    return [replace(pair, adjusted=p) for pair, p in zip(found, adjusted, strict=True)]


def _counted(one: Answers, other: Answers) -> dict[str, Any]:
    """Return what counting images tells of two models."""
    right, too = one.right, other.right
    only_first = int((right & ~too).sum())
    only_second = int((too & ~right).sum())
    both_wrong = int((~right & ~too).sum())
    shares = (float(right.mean()), float(too.mean()))
    wrong = both_wrong + only_first + only_second
    alike = 1 - (only_first + only_second) / len(one)
    expected = shares[0] * shares[1] + (1 - shares[0]) * (1 - shares[1])
    return {
        "only_first": only_first,
        "only_second": only_second,
        "both_wrong": both_wrong,
        "agreement": float(one.agrees(other).mean()),  # type: ignore[arg-type]
        "overlap": both_wrong / wrong if wrong else 1.0,
        "consistency": (alike - expected) / (1 - expected) if expected < 1 else 1.0,
    }


def _p_of(samples: Floats) -> float:
    """Return the two-sided p of a difference by its values in resamples; 0 lies beyond few."""
    samples = samples[np.isfinite(samples)]
    beyond = min(int((samples <= 0).sum()), int((samples >= 0).sum()))
    return min(1.0, 2 * (beyond + 1) / (len(samples) + 1))
