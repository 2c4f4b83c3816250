"""Verdicts on claims against SciPy's t-tests, a least-squares contrast, and their own errors."""

import numpy as np
import pytest
from scipy import stats

from vitlab.studies.grid.paper_claims import (
    CONFIRMED,
    CONTRADICTED,
    NOT_RUN,
    UNSEEN,
    UNTESTED,
    Claim,
    judged,
)

HIGH, LOW = [0.83, 0.85, 0.84, 0.86], [0.80, 0.81, 0.83]


def test_two_arms_have_the_interval_of_a_pooled_t_test() -> None:
    verdict = judged(Claim("", ("a",), ("b",)), {"a": HIGH, "b": LOW})
    found = stats.ttest_ind(HIGH, LOW, equal_var=True).confidence_interval(0.95)
    assert verdict.difference is not None
    assert verdict.reach is not None
    assert verdict.difference - verdict.reach == pytest.approx(found.low, rel=1e-6)
    assert verdict.difference + verdict.reach == pytest.approx(found.high, rel=1e-6)
    assert verdict.word == CONFIRMED


def test_groups_of_arms_have_the_interval_of_a_least_squares_contrast() -> None:
    generator = np.random.default_rng(0)
    values = {
        name: list(generator.normal(size=count))
        for name, count in zip("abcd", (3, 2, 4, 1), strict=True)
    }
    verdict = judged(Claim("", ("a", "b", "c"), ("d",)), values)
    design = np.repeat(np.eye(4), [3, 2, 4, 1], axis=0)
    observed = np.concatenate(list(values.values()))
    means, (squares,), _, _ = np.linalg.lstsq(design, observed, rcond=None)
    contrast = np.array([1 / 3, 1 / 3, 1 / 3, -1])
    error = np.sqrt(squares / 6 * contrast @ np.linalg.inv(design.T @ design) @ contrast)
    assert verdict.difference == pytest.approx(contrast @ means)
    assert verdict.reach == pytest.approx(stats.t.ppf(0.975, 6) * error, rel=1e-6)


@pytest.mark.parametrize(
    ("difference", "word"), [(0.05, CONFIRMED), (-0.05, CONTRADICTED), (0.005, UNSEEN)]
)
def test_a_difference(difference: float, word: str) -> None:
    low = [0.80, 0.81, 0.82]
    values = {"a": [each + difference for each in low], "b": low}
    assert judged(Claim("", ("a",), ("b",)), values).word == word


@pytest.mark.parametrize(
    ("difference", "spread", "word"),
    [
        (0.003, 0.001, CONFIRMED),  # significant, and yet within the margin
        (0.05, 0.001, CONTRADICTED),
        (-0.05, 0.001, CONTRADICTED),
        (0.021, 0.001, UNSEEN),  # the interval holds the margin
        (0.0, 0.03, UNSEEN),  # too noisy to say
    ],
)
def test_equality_within_a_margin(difference: float, spread: float, word: str) -> None:
    low = [0.8 - spread, 0.8, 0.8 + spread]
    values = {"a": [each + difference for each in low], "b": low}
    assert judged(Claim("", ("a",), ("b",), kind="equal", least=0.02), values).word == word


@pytest.mark.parametrize(
    ("difference", "spread", "word"),
    [
        (-0.05, 0.001, CONFIRMED),  # lower, even
        (0.003, 0.001, CONFIRMED),
        (0.05, 0.001, CONTRADICTED),
        (0.021, 0.001, UNSEEN),
        (0.0, 0.03, UNSEEN),
    ],
)
def test_no_higher_by_more_than_a_margin(difference: float, spread: float, word: str) -> None:
    low = [0.8 - spread, 0.8, 0.8 + spread]
    values = {"a": [each + difference for each in low], "b": low}
    assert judged(Claim("", ("a",), ("b",), "no higher", least=0.02), values).word == word


def test_what_cannot_be_said() -> None:
    assert judged(Claim("of ImageNet"), {"a": HIGH}).word == UNTESTED
    assert judged(Claim("", ("a",), ("b",)), {"a": HIGH}).word == NOT_RUN
    assert judged(Claim("", ("a",), ("b",)), {"a": HIGH, "b": []}).word == NOT_RUN
    single = judged(Claim("", ("a",), ("b",)), {"a": [0.9], "b": [0.1]})
    assert (single.word, single.difference, single.reach) == (UNSEEN, 0.8, None)


def test_true_claims_are_contradicted_and_false_ones_confirmed_in_one_case_of_forty() -> None:
    """At most 2.5% errors, at the least favorable difference: 0, and the margin of equality."""
    generator = np.random.default_rng(1)
    cases = 400
    wrong, apart = 0, 0
    for _ in range(cases):
        a, b = generator.normal(0, 1, (2, 3)).tolist()
        wrong += judged(Claim("", ("a",), ("b",)), {"a": a, "b": b}).word == CONFIRMED
        moved = [each + 2 for each in a]
        claim = Claim("", ("a",), ("b",), kind="equal", least=2.0)
        apart += judged(claim, {"a": moved, "b": b}).word == CONTRADICTED
    assert wrong <= stats.binom.ppf(0.9999, cases, 0.025)
    assert apart <= stats.binom.ppf(0.9999, cases, 0.025)
