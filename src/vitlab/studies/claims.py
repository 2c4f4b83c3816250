"""Claims of papers about the arms of a study, and the verdicts of its runs on them.

A claim compares two groups of arms in one line: `a b > c` says that the mean of a and b is above
c, `a = c` that they are equal, `a >= c` that a is as good as c. What counts as equal is a third of
an effect that the runs themselves must show, or else the paper's own difference.

The statistics are those of few seeds: Welch's and paired intervals, Holm's correction, power. An
arm has one figure per seed; what is estimated is a contrast, a sum of the arms' means, each with a
coefficient: `{"a": 1.0, "b": -1.0}` is the mean of a less that of b.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev, variance
from typing import Any, Self

from vitlab.errors import OptionError
from vitlab.experiments.statistics import t_quantile

LEVEL = 0.05  # of a two-sided test; intervals hold the other 95%
POWER = 0.8  # the usual chance of seeing a difference that is there
MOST_SEEDS = 200

Contrast = Mapping[str, float]
Values = Mapping[str, Sequence[float]]
"""The figures of each arm's runs, one per seed."""

CONFIRMED, UNSEEN, CONTRADICTED = "confirmed", "not seen", "contradicted"
NO_EFFECT, NOT_RUN = "no effect to compare", "not run"
UNTESTED = "not testable at this size"
SHARE = 1 / 3  # of an effect: what is left of it when two that differ by less count as equal
SEEDS = ("ViT", "Three things", "article")  # what this workbench rebuilds; others count apart
Estimator = Callable[[Contrast, Values], "Estimate"]


@dataclass(frozen=True)
class Claim:
    """A sentence of a paper about two groups of arms.

    Attributes:
        text: the sentence, in our words
        comparison: the arms, `a b > c`; empty if runs of this size cannot test the sentence
        source: the paper, and where in it
        paper: the paper's own difference, first side less second, in the units of the figure
        effect: `all > none`: the effect a third of which is the margin of `=` and `>=`; empty for
            the paper's own difference
        by: the figure; empty for the study's first column

    Raises:
        OptionError: the comparison cannot be read, or an equality has neither effect nor
            difference.
    """

    text: str
    comparison: str = ""
    source: str = ""
    paper: float | None = None
    effect: str = ""
    by: str = ""

    def __post_init__(self) -> None:
        """Check that the claim can be lost."""
        if self.comparison and self.sign != ">" and not (self.effect or self.paper):
            raise OptionError(f"{self.text!r} needs an effect, or the paper's difference")
        for each in (self.comparison, self.effect):
            contrast_of(each)

    @property
    def sign(self) -> str:
        """What the first side is, beside the second: `>`, `>=` or `=`."""
        return _sign(self.comparison)

    @property
    def arms(self) -> set[str]:
        """The names of all arms that it needs."""
        return {*contrast_of(self.comparison), *contrast_of(self.effect)}

    @property
    def of_seeds(self) -> bool:
        """Whether it is from one of the papers that this workbench rebuilds."""
        return self.source.startswith(SEEDS)


@dataclass(frozen=True)
class Verdict:
    """What the runs say of a claim.

    Attributes:
        claim: that is judged
        word: confirmed, not seen, contradicted, no effect to compare, not run, or not testable
        difference: of the groups' means, first less second; None if it was not measured
        reach: half of its 95% confidence interval (Welch)
        paired: the same of the differences within each seed; None if seeds share no weights
        margin: what counted as equal; None for a claim that one is better
        p: of the verdict, corrected by Holm for all claims of the study; None without a test
    """

    claim: Claim
    word: str
    difference: float | None = None
    reach: float | None = None
    paired: float | None = None
    margin: float | None = None
    p: float | None = None

    def corrected(self, p: float) -> Self:
        """Return the verdict with another p-value, and not seen if that is not small enough."""
        return replace(self, p=p, word=self.word if p < LEVEL else UNSEEN)

    def as_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {
            "claim": self.claim.text,
            "source": self.claim.source,
            "verdict": self.word,
            "difference": self.difference,
            "interval": self.reach,
            "paired_interval": self.paired,
            "margin": self.margin,
            "p": self.p,
            "paper_difference": self.claim.paper,
        }


def contrast_of(comparison: str) -> dict[str, float]:
    """Return the coefficients of `a b > c`: a and b have 1/2, c has -1; none of an empty text.

    Raises:
        OptionError: a side is empty, or there are not two.
    """
    sides = comparison.split(f" {_sign(comparison)} ") if comparison else []
    found: dict[str, float] = {}
    for share, side in zip((1.0, -1.0), sides, strict=False):
        for name in side.split():
            found[name] = found.get(name, 0.0) + share / len(side.split())
    if comparison and (len(sides) != 2 or not all(map(str.strip, sides))):
        raise OptionError(f"a comparison looks like 'a b > c', not {comparison!r}")
    return found


def _sign(comparison: str) -> str:
    signs = [word for word in comparison.split() if word in (">", ">=", "=")]
    return signs[0] if len(signs) == 1 else ">"


def judged(
    claims: Sequence[Claim],
    figures: Mapping[str, Values],
    starts: Mapping[str, str] | None = None,
) -> list[Verdict]:
    """Judge the claims of a study.

    A verdict needs a p-value, two-sided and corrected by Holm for all claims, below 0.05. Arms that
    start from the models of one arm share weights and images within a seed: there the test is
    paired. The margin of an equality is a third of the effect, whose noise is part of the test.

    Args:
        claims: of one study
        figures: by the name of the figure, empty for the first: the runs' values by arm
        starts: by the names of arms whose seeds are all there, the arm whose models they start from
    """
    found = [_judge(claim, figures.get(claim.by, {}), starts or {}) for claim in claims]
    corrected = iter(holm([each.p for each in found if each.p is not None]))
    return [each if each.p is None else each.corrected(next(corrected)) for each in found]


def _judge(claim: Claim, values: Values, starts: Mapping[str, str]) -> Verdict:
    """Return the verdict of a claim by itself, its p-value not corrected yet."""
    main = contrast_of(claim.comparison)
    if not main:
        return Verdict(claim, UNTESTED)
    if not all(values.get(arm) for arm in main):
        return Verdict(claim, NOT_RUN)
    known = [arm for arm in claim.arms if values.get(arm)]
    shared = {(starts.get(arm, ""), len(values[arm])) for arm in known}
    estimate = paired if len(shared) == 1 and all(map(starts.get, known)) else welch
    found, equality = estimate(main, values), claim.sign != ">"
    margin = _margin(claim, values, estimate) if equality else 0.0
    verdict = Verdict(
        claim, NO_EFFECT if margin is None else UNSEEN, found.mean, welch(main, values).reach,
        found.reach if estimate is paired else None, margin if equality else None,
    )  # fmt: skip
    if margin is None or not found.freedom:
        return verdict
    low, high = found.plus(margin), found.plus(-margin)
    if claim.effect and equality:  # whose noise counts, too
        effect = contrast_of(claim.effect)
        low, high = (estimate(_sum(main, effect, x), values) for x in (SHARE, -SHARE))
    holds, fails = low.p_above, low.p_below
    if claim.sign == "=":
        holds, fails = max(holds, high.p_below), min(fails, high.p_above)
    word = CONFIRMED if holds < fails else CONTRADICTED
    return replace(verdict, word=word, p=min(1.0, 2 * min(holds, fails)))


def _margin(claim: Claim, values: Values, estimate: Estimator) -> float | None:
    """Return what counts as equal; None where the effect that it is a share of is not seen."""
    effect = contrast_of(claim.effect)
    if not effect:
        return abs(claim.paper or 0.0)
    if not all(values.get(arm) for arm in effect):
        return None
    found = estimate(effect, values)
    return SHARE * found.mean if 2 * found.p_above < LEVEL else None


def _sum(first: Contrast, second: Contrast, share: float) -> dict[str, float]:
    return {
        name: first.get(name, 0.0) + share * second.get(name, 0.0) for name in {**first, **second}
    }


@dataclass(frozen=True)
class Estimate:
    """A contrast as the seeds show it.

    Attributes:
        mean: the estimate itself
        error: its standard error
        freedom: degrees of freedom of the error; 0 if one seed leaves it unknown
    """

    mean: float
    error: float
    freedom: float

    @property
    def reach(self) -> float | None:
        """Half of the 95% confidence interval (Student's t); None with one seed."""
        return t_quantile(self.freedom, 1 - LEVEL) * self.error if self.freedom else None

    def plus(self, number: float) -> Self:
        """Return the estimate of the contrast and a known number together."""
        return replace(self, mean=self.mean + number)

    @property
    def p_above(self) -> float:
        """The one-sided p-value of the contrast's being above 0."""
        return self._p(self.mean)

    @property
    def p_below(self) -> float:
        """The one-sided p-value of its being below 0."""
        return self._p(-self.mean)

    def _p(self, distance: float) -> float:
        from scipy.special import stdtr  # slow to import

        if not self.freedom or not self.error:
            return 0.0 if self.freedom and distance > 0 else 1.0
        return float(stdtr(self.freedom, -distance / self.error))


def welch(contrast: Contrast, values: Values) -> Estimate:
    """Estimate a contrast of arms whose runs are independent, each with a variance of its own.

    For two arms this is Welch's t-test (`scipy.stats.ttest_ind(equal_var=False)`), for several the
    same approximation of the degrees of freedom (Satterthwaite, 1946).
    """
    mean = sum(share * fmean(values[arm]) for arm, share in contrast.items())
    if any(len(values[arm]) < 2 for arm in contrast):
        return Estimate(mean, math.inf, 0)
    freedoms = [len(values[arm]) - 1 for arm in contrast]
    parts = [share**2 * variance(values[arm]) / len(values[arm]) for arm, share in contrast.items()]
    if not sum(parts):
        return Estimate(mean, 0.0, sum(freedoms))
    below = sum(part**2 / freedom for part, freedom in zip(parts, freedoms, strict=True))
    return Estimate(mean, math.sqrt(sum(parts)), sum(parts) ** 2 / below)


def paired(contrast: Contrast, values: Values) -> Estimate:
    """Estimate a contrast within each seed, for arms that share their seeds' weights and images.

    For two arms this is the paired t-test (`scipy.stats.ttest_rel`).

    Args:
        contrast: of the arms
        values: of each, as many seeds in the same order
    """
    runs = zip(*(values[arm] for arm in contrast), strict=True)
    each = [sum(share * x for share, x in zip(contrast.values(), run, strict=True)) for run in runs]
    if len(each) < 2:
        return Estimate(fmean(each), math.inf, 0)
    return Estimate(fmean(each), stdev(each) / math.sqrt(len(each)), len(each) - 1)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected for their number, by Holm's step-down procedure (Holm, 1979).

    Of all that are below 0.05 afterward, any is a false one with a probability of at most 5%.
    """
    found, largest = [0.0] * len(p_values), 0.0
    order = sorted(range(len(p_values)), key=lambda place: p_values[place])
    for rank, place in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        found[place] = largest
    return found


def power(difference: float, deviation: float, seeds: int, tests: int = 1) -> float:
    """Return the chance of seeing a difference of two arms, with its sign (noncentral t).

    Args:
        difference: of their means
        deviation: of the runs of either arm
        seeds: of each arm, 2 or more
        tests: that the 5% are shared among, as Holm's first step does
    """
    from scipy.special import nctdtr, stdtrit  # slow to import

    freedom = 2 * (seeds - 1)
    least = stdtrit(freedom, 1 - LEVEL / 2 / tests)
    center = abs(difference) / (deviation * math.sqrt(2 / seeds))
    return float(1 - nctdtr(freedom, center, least))


def detectable(deviation: float, seeds: int, tests: int = 1) -> float:
    """Return the difference that so many seeds see with a chance of 80%; infinite for one seed.

    Args:
        deviation: of the runs of either arm
        seeds: of each arm
        tests: as for `power`
    """
    if seeds < 2:
        return math.inf
    from scipy.optimize import brentq  # slow to import

    most = 2.0  # deviations
    while power(most, 1.0, seeds, tests) < POWER:
        most *= 2
    return deviation * brentq(lambda each: power(each, 1.0, seeds, tests) - POWER, 0.0, most)


def seeds_to_see(difference: float, deviation: float, tests: int = 1) -> int:
    """Return the fewest seeds that see a difference with a chance of 80%, at most 200.

    Args:
        difference: of the means of two arms
        deviation: of the runs of either arm
        tests: as for `power`
    """
    counts = range(2, MOST_SEEDS)
    enough = (n for n in counts if detectable(deviation, n, tests) <= difference)
    return next(enough, MOST_SEEDS)
