"""Paired tests against independent definitions: scipy, scikit-learn, closed testing."""

from fractions import Fraction
from itertools import combinations
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import accuracy_score, cohen_kappa_score, f1_score

from vitlab.data.labels import MultiLabels
from vitlab.evaluation.answers import MultiAnswers, SingleAnswers, answers_of
from vitlab.evaluation.multiple_tests import holm
from vitlab.evaluation.paired_tests import mcnemar, pairs_of


def answers(seed: int, skill: float, images: int = 300, classes: int = 4) -> SingleAnswers:
    """A model that is right about `skill` of the time on images that are the same for all seeds."""
    truth = np.random.default_rng(0).integers(0, classes, images)
    generator = np.random.default_rng(seed)
    scores = generator.normal(size=(images, classes)) + skill * np.eye(classes)[truth]
    return SingleAnswers.of(np.exp(scores) / np.exp(scores).sum(1, keepdims=True), truth)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 60), st.integers(0, 60))
def test_mcnemar_is_the_exact_binomial_test(one: int, other: int) -> None:
    count = one + other
    ways = sum(comb(count, k) for k in range(count + 1) if abs(2 * k - count) >= abs(one - other))
    assert mcnemar(one, other) == pytest.approx(float(Fraction(ways, 2**count)), rel=1e-12)


def test_mcnemar_of_very_many_images() -> None:
    assert mcnemar(20_000, 20_400) == pytest.approx(0.047, rel=0.01)  # 2 standard deviations
    assert mcnemar(0, 5000) == 2.0 ** (1 - 5000) == 0
    assert mcnemar(0, 1000) == pytest.approx(2.0**-999)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_holm_is_closed_testing_by_bonferroni(values: list[float]) -> None:
    """A hypothesis is refused if every set of hypotheses that it is in is refused."""
    places = range(len(values))
    sets = [set(each) for size in places for each in combinations(places, size + 1)]
    adjusted = {each: min(1.0, len(own) * min(values[j] for j in own))
                for each, own in ((frozenset(own), own) for own in sets)}  # fmt: skip
    want = [max(p for own, p in adjusted.items() if place in own) for place in places]
    assert holm(values) == pytest.approx(want)


def test_a_pair_counts_what_sets_of_images_do() -> None:
    one, other = answers(1, 1.0), answers(2, 2.0)
    (pair,) = pairs_of([one, other])
    right, too = set(np.flatnonzero(one.right)), set(np.flatnonzero(other.right))
    every = set(range(len(one)))
    assert (pair.only_first, pair.only_second) == (len(right - too), len(too - right))
    assert pair.both_wrong == len(every - right - too)
    assert pair.overlap == pytest.approx(len(every - right - too) / len(every - (right & too)))
    assert pair.agreement == pytest.approx(np.mean(one.guess == other.guess))
    assert pair.consistency == pytest.approx(cohen_kappa_score(one.right, other.right))
    assert pair.p == pair.adjusted == mcnemar(pair.only_first, pair.only_second)
    gaps = {name: gap.value for name, gap in pair.differences.items()}
    for name, of in {
        "accuracy": lambda each: accuracy_score(each.truth, each.guess),
        "macro_f1": lambda each: f1_score(each.truth, each.guess, average="macro"),
        "nll": lambda each: -np.log(each.own).mean(),
    }.items():
        assert gaps[name] == pytest.approx(of(other) - of(one)), name


def test_the_interval_is_that_of_scipys_paired_bootstrap() -> None:
    one, other = answers(1, 1.0), answers(2, 1.3)
    (pair,) = pairs_of([one, other])
    rows = (one.right.astype(float), other.right.astype(float))
    want = stats.bootstrap(
        rows, lambda a, b, axis: b.mean(axis) - a.mean(axis), paired=True, method="BCa",
        n_resamples=4000, rng=np.random.default_rng(1),
    ).confidence_interval  # fmt: skip
    ours = pair.differences["accuracy"].interval
    assert ours == pytest.approx([want.low, want.high], abs=2.1 / len(one))
    alone = [stats.sem(each) for each in rows]
    wide = 2 * 1.96 * np.hypot(*alone)  # of models that did not see the same images
    other_way = pairs_of([other, one])[0].differences["accuracy"]
    assert other_way.value == pytest.approx(-pair.differences["accuracy"].value)
    assert ours[1] - ours[0] < 1.1 * wide


def test_a_model_and_itself() -> None:
    one = answers(1, 1.0)
    (pair,) = pairs_of([one, one])
    assert (pair.p, pair.agreement, pair.overlap, pair.consistency) == (1, 1, 1, 1)
    low, high = pair.differences["accuracy"].interval or (0, 0)
    assert 0 < high == -low < 0.01  # an image more may tell them apart
    sure = SingleAnswers(one.truth, one.truth, one.own, one.own, one.rank * 0, one.square)
    (pair,) = pairs_of([sure, sure])
    assert (pair.overlap, pair.consistency) == (1, 1)  # neither ever wrong


def test_all_pairs_are_corrected_together() -> None:
    pairs = pairs_of([answers(1, 0.5), answers(2, 1.0), answers(3, 3.0)])
    assert [(pair.first, pair.second) for pair in pairs] == [(0, 1), (0, 2), (1, 2)]
    assert [pair.adjusted for pair in pairs] == holm([pair.p for pair in pairs])
    assert max(pair.adjusted for pair in pairs[1:]) < 0.05


def test_of_several_labels_the_test_is_of_the_average_precision() -> None:
    generator = np.random.default_rng(0)
    table = (generator.random((200, 3)) < 0.4).astype(np.uint8)
    good, bad = (
        answers_of(
            np.clip(weight * table + (1 - weight) * generator.random(table.shape), 0, 1),
            MultiLabels.of_table(table), np.array(0.5),
        )
        for weight in (0.6, 0.1)
    )  # fmt: skip
    assert isinstance(good, MultiAnswers)
    assert good.right.mean() == 1
    (pair,) = pairs_of([bad, good])
    assert pair.differences["map"].value > 0.2
    assert (pair.differences["map"].interval or (0, 0))[0] > 0
    assert pair.p == pytest.approx(2 / 1001)
    assert pair.only_first == 0
    assert pairs_of([bad, bad])[0].p == 1
