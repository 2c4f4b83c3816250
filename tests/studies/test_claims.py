"""Verdicts on claims: how they are won, how they are lost, and how often by chance."""

import numpy as np
import pytest
from scipy import stats

from vitlab.errors import OptionError
from vitlab.studies.claims import (
    CONFIRMED,
    CONTRADICTED,
    NO_EFFECT,
    NOT_RUN,
    SMALLER,
    UNSEEN,
    UNTESTED,
    Claim,
    Verdict,
    contrast_of,
    judged,
)
from vitlab.studies.papers import STUDIES, claims_of

HIGH, LOW = [0.83, 0.85, 0.84, 0.86], [0.80, 0.81, 0.83]


def verdict(claim: Claim, **values: list[float]) -> Verdict:
    (found,) = judged([claim], {"": values})
    return found


def around(mean: float, spread: float) -> list[float]:
    return [mean - spread, mean, mean + spread]


def test_a_comparison_is_a_contrast() -> None:
    assert contrast_of("a b > c") == {"a": 0.5, "b": 0.5, "c": -1.0}
    assert contrast_of("adamw+sam r-x2 >= none") == {"adamw+sam": 0.5, "r-x2": 0.5, "none": -1.0}
    assert contrast_of("") == {}


@pytest.mark.parametrize("comparison", ["a", "a > b > c", "a b", "a >", "> a", "a < b"])
def test_what_is_no_comparison_is_refused(comparison: str) -> None:
    with pytest.raises(OptionError, match="looks like 'a b > c'"):
        Claim("", comparison)


def test_an_equality_that_cannot_be_lost_is_refused() -> None:
    for comparison in ("a = b", "a >= b"):
        with pytest.raises(OptionError, match="needs an effect, or the paper's difference"):
            Claim("both are equal", comparison)


@pytest.mark.parametrize(
    ("difference", "word"), [(0.05, CONFIRMED), (-0.05, CONTRADICTED), (0.005, UNSEEN)]
)
def test_a_difference(difference: float, word: str) -> None:
    found = verdict(Claim("", "a > b"), a=around(0.81 + difference, 0.01), b=around(0.81, 0.01))
    assert found.word == word
    assert found.difference == pytest.approx(difference)
    test = stats.ttest_ind(around(difference, 0.01), around(0, 0.01), equal_var=False)
    assert found.p == pytest.approx(test.pvalue)


@pytest.mark.parametrize(
    ("difference", "spread", "equal", "as_good"),
    [
        (0.003, 0.001, CONFIRMED, CONFIRMED),  # significant, and yet within the margin
        (0.05, 0.001, CONTRADICTED, CONFIRMED),
        (-0.05, 0.001, CONTRADICTED, CONTRADICTED),
        (-0.021, 0.001, UNSEEN, UNSEEN),  # the interval holds the margin
        (0.0, 0.03, UNSEEN, UNSEEN),  # too noisy to say
    ],
)
def test_equality_within_the_papers_difference(
    difference: float, spread: float, equal: str, as_good: str
) -> None:
    values = {"a": around(0.8 + difference, spread), "b": around(0.8, spread)}
    assert verdict(Claim("", "a = b", paper=-0.02), **values).word == equal
    found = verdict(Claim("", "a >= b", paper=-0.02), **values)
    assert (found.word, found.margin) == (as_good, 0.02)


TUNED = Claim("attention is as good as everything", "attention >= all", effect="all > none")


def test_as_good_is_a_third_of_the_effect() -> None:
    """Not tuning at all is not as good as everything, however little tuning is worth."""
    values = {"none": around(0.390, 2e-4), "all": around(0.402, 2e-4)}
    found = verdict(TUNED, attention=around(0.400, 2e-4), **values)
    assert found.word == CONFIRMED
    assert found.margin == pytest.approx(0.004)
    assert verdict(TUNED, attention=around(0.391, 2e-4), **values).word == CONTRADICTED
    assert verdict(TUNED, attention=values["none"], **values).word == CONTRADICTED


def test_without_an_effect_there_is_nothing_to_compare() -> None:
    small = {"none": around(0.39, 0.01), "all": around(0.40, 0.01)}
    assert verdict(TUNED, attention=around(0.40, 0.01), **small).word == NO_EFFECT
    worse = {"none": around(0.45, 0.001), "all": around(0.40, 0.001)}
    assert verdict(TUNED, attention=around(0.40, 0.001), **worse).word == NO_EFFECT
    assert verdict(TUNED, attention=[0.4, 0.41], all=[0.4, 0.41]).word == NO_EFFECT  # not run


def test_what_is_better_is_as_good_whatever_the_effect() -> None:
    """All weights learn less than the classifier alone, attention more than both."""
    worse = {"none": around(0.48, 0.001), "all": around(0.40, 0.001)}
    found = verdict(TUNED, attention=around(0.57, 0.001), **worse)
    assert (found.word, found.margin) == (CONFIRMED, None)
    less = verdict(TUNED, attention=around(0.30, 0.001), **worse)
    assert (less.word, less.seeds) == (NO_EFFECT, None)
    equal = Claim("the same", "attention = all", effect="all > none")
    assert verdict(equal, attention=around(0.57, 0.001), **worse).word == NO_EFFECT


def test_the_noise_of_the_effect_is_part_of_the_test() -> None:
    """The same difference and the same effect, which is known better or worse."""
    known = {"attention": around(0.400, 0.001), "all": around(0.402, 0.001)}
    assert verdict(TUNED, none=around(0.380, 0.001), **known).word == CONFIRMED
    assert verdict(TUNED, none=around(0.380, 0.008), **known).word == UNSEEN


def test_seeds_that_share_weights_are_compared_in_pairs() -> None:
    """Seeds differ by 10 points, arms of one seed by 1: only pairs see it, and both are said."""
    values = {"a": [0.41, 0.512, 0.611], "b": [0.40, 0.50, 0.60]}
    claim = Claim("", "a > b")
    apart, shared = (
        judged([claim], {"": values}, starts)[0]
        for starts in ({"a": "first", "b": "other"}, {"a": "first", "b": "first"})
    )
    assert (apart.word, apart.paired) == (UNSEEN, None)
    assert shared.word == CONFIRMED
    assert shared.reach == apart.reach
    assert shared.paired is not None
    assert shared.reach is not None
    assert shared.paired < 0.1 * shared.reach
    assert shared.p == pytest.approx(stats.ttest_rel(values["a"], values["b"]).pvalue)
    assert judged([claim], {"": values}, {"a": "first"})[0].paired is None  # a seed of b diverged
    fewer = {"": values | {"b": [0.4, 0.5]}}
    assert judged([claim], fewer, {"a": "first", "b": "first"})[0].paired is None
    claim = Claim("", "a >= b", effect="b > none")  # whose effect was not run
    assert judged([claim], {"": values}, {"a": "first", "b": "first"})[0].paired is not None


def test_verdicts_are_corrected_for_their_number() -> None:
    """One of two claims by the same runs is confirmed alone, and not among nine others."""
    values = {"a": around(0.83, 0.01), "b": around(0.80, 0.01)}
    claim = Claim("", "a > b")
    (alone,) = judged([claim], {"": values})
    assert alone.p is not None
    among = judged([claim, *[Claim("", "b > a")] * 9], {"": values})
    assert (alone.word, among[0].word) == (CONFIRMED, UNSEEN)
    assert among[0].p == pytest.approx(10 * alone.p)


def test_what_is_not_seen_says_how_many_seeds_would_see_it() -> None:
    """The paper's difference, or that there is none, four times in five: so do simulated runs."""
    better, equal = Claim("", "a > b", paper=0.01), Claim("", "a = b", paper=0.02)
    values = {"a": around(0.805, 0.01), "b": around(0.80, 0.01)}
    for claim, difference in ((better, 0.01), (equal, 0.0)):
        found = verdict(claim, **values)
        assert found.word == UNSEEN
        assert found.seeds is not None
        generator, seen = np.random.default_rng(5), 0
        for _ in range(1000):
            a = generator.normal(0.8 + difference, 0.01, found.seeds)
            b = generator.normal(0.8, 0.01, found.seeds)
            seen += verdict(claim, a=[*a], b=[*b]).word == CONFIRMED
        assert 770 < seen < 870
        assert judged([claim] * 4, {"": values})[0].seeds > found.seeds
    assert verdict(Claim("", "a > b"), **values).seeds is None  # of no size
    assert verdict(better, a=around(0.9, 0.01), b=around(0.8, 0.01)).seeds is None
    assert verdict(better, a=around(0.8, 0.3), b=around(0.8, 0.3)).seeds == 200


@pytest.mark.parametrize(
    ("difference", "spread", "word"),
    [
        (0.0, 0.005, SMALLER),
        (-0.006, 0.005, SMALLER),  # on the wrong side of 0, perhaps by chance
        (0.02, 0.005, CONFIRMED),  # both above 0 and below the paper's
        (-0.02, 0.005, CONTRADICTED),
        (0.0, 0.05, UNSEEN),
    ],
)
def test_a_difference_that_is_smaller_than_the_papers(
    difference: float, spread: float, word: str
) -> None:
    values = {"a": around(0.8 + difference, spread), "b": around(0.8, spread)}
    found = verdict(Claim("", "a > b", paper=0.04), **values)
    assert found.word == word
    if word == SMALLER:
        less = [each - 0.04 for each in values["a"]]
        test = stats.ttest_ind(less, values["b"], equal_var=False)
        assert found.p == pytest.approx(test.pvalue)
    assert verdict(Claim("", "a > b"), **values).word != SMALLER


def test_what_cannot_be_said() -> None:
    assert verdict(Claim("of ImageNet"), a=HIGH).word == UNTESTED
    assert verdict(Claim("", "a > b"), a=HIGH).word == NOT_RUN
    assert verdict(Claim("", "a > b"), a=HIGH, b=[]).word == NOT_RUN
    single = verdict(Claim("", "a > b"), a=[0.9], b=[0.1])
    assert (single.word, single.difference, single.reach, single.p) == (UNSEEN, 0.8, None, None)
    assert verdict(Claim("", "a > b"), a=HIGH, b=HIGH).p == 1.0


SIMULATED = {
    "one is better": [
        Claim("", "a > b"),
        Claim("", "b > c"),
        Claim("", "a c > b"),
        Claim("", "c > a"),
    ],
    "of a size": [Claim("", "far > a", paper=2.0), Claim("", "far > b", paper=2.0)],
    "equal": [Claim("", "a = far", paper=2.0), Claim("", "b = far", paper=2.0)],
    "as good": [Claim("", "a >= far", paper=2.0), Claim("", "b c >= far", paper=2.0)],
    "a third of an effect": [Claim("", "a >= far", effect="far > lost")],
    "a third of nothing": [Claim("", f"{arms} >= b", effect="lost > far") for arms in ("a", "c")],
}


@pytest.mark.parametrize("kind", SIMULATED)
def test_of_null_studies_at_most_five_percent_are_wrong(kind: str) -> None:
    """At the least favorable truth: no difference, one of exactly the margin, or the paper's.

    A study is wrong if the verdict on any of its claims is; the arms have three seeds each, and
    their deviations differ fourfold.
    """
    generator, studies, wrong = np.random.default_rng(7), 300, 0
    means, deviations = {"far": 2.0, "lost": -4.0}, {"a": 0.5, "b": 1.0, "c": 2.0}
    for _ in range(studies):
        values = {
            name: generator.normal(means.get(name, 0.0), deviations.get(name, 0.5), 3).tolist()
            for name in ("a", "b", "c", "far", "lost")
        }
        words = {each.word for each in judged(SIMULATED[kind], {"": values})}
        wrong += bool(words & ({SMALLER, CONTRADICTED} if kind == "of a size" else {CONFIRMED}))
    assert wrong <= 0.05 * studies


def test_claims_of_the_papers_say_whose_they_are() -> None:
    claims = [claim for study in STUDIES for claim in claims_of(study)]
    assert {claim.source for claim in claims if not claim.of_seeds} == {
        "Naseer et al.", "Tuli et al.", "Park and Kim", "Geirhos et al.", "CHG",
        "stable-pretraining",
    }  # fmt: skip
    assert len({(claim.text, claim.source) for claim in claims}) == len(claims)
    assert claims_of("my own") == ()
