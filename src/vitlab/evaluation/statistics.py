"""Statistics of few runs: Student's t, Welch's and paired tests, power.

An arm has one figure per seed. What is estimated is a contrast, a sum of the arms' means, each with
a coefficient: `{"a": 1.0, "b": -1.0}` is the mean of a less that of b.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from scipy.special import nctdtr, stdtr, stdtrit

LEVEL = 0.05  # of a two-sided test; intervals hold the other 95%
POWER = 0.8  # the usual chance of seeing a difference that is there
MOST_SEEDS = 200

Contrast = Mapping[str, float]
Values = Mapping[str, Sequence[float]]
"""The figures of each arm's runs, one per seed."""


def t_quantile(freedom: float) -> float:
    """Return how far from 0 the middle 95% of Student's t distribution reach."""
    return float(stdtrit(freedom, 1 - LEVEL / 2))


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
        return t_quantile(self.freedom) * self.error if self.freedom else None

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

    @property
    def p(self) -> float:
        """The two-sided p-value of the contrast's being other than 0."""
        return min(1.0, 2 * min(self.p_above, self.p_below))

    def _p(self, distance: float) -> float:
        if not self.freedom or not self.error:
            return 0.0 if self.freedom and distance > 0 else 1.0
        return float(stdtr(self.freedom, -distance / self.error))


def welch(contrast: Contrast, values: Values) -> Estimate:
    """Estimate a contrast of arms whose runs are independent, each with a variance of its own.

    For two arms this is Welch's t-test (`scipy.stats.ttest_ind(equal_var=False)`), for several the
    same approximation of the degrees of freedom (Satterthwaite, 1946).
    """
    runs = [np.array(values[arm]) for arm in contrast]
    shares = np.fromiter(contrast.values(), float)
    counts = np.array([*map(len, runs)])
    mean = float(shares @ [each.mean() for each in runs])
    if counts.min() < 2:
        return Estimate(mean, math.inf, 0)
    # Counted from the first run, so that equal figures vary by exactly 0.
    parts = shares**2 * [(each - each[0]).var(ddof=1) for each in runs] / counts
    if not (variance := float(parts.sum())):
        return Estimate(mean, 0.0, float((counts - 1).sum()))
    return Estimate(mean, math.sqrt(variance), variance**2 / (parts**2 / (counts - 1)).sum())


def paired(contrast: Contrast, values: Values) -> Estimate:
    """Estimate a contrast within each seed, for arms that share their seeds' weights and images.

    For two arms this is the paired t-test (`scipy.stats.ttest_rel`).

    Args:
        contrast: of the arms
        values: of each, as many seeds in the same order
    """
    each = np.fromiter(contrast.values(), float) @ np.array([values[arm] for arm in contrast])
    if len(each) < 2:
        return Estimate(float(each.mean()), math.inf, 0)
    error = (each - each[0]).std(ddof=1) / math.sqrt(len(each))
    return Estimate(float(each.mean()), float(error), len(each) - 1)


def power(difference: float, deviation: float, seeds: int, tests: int = 1) -> float:
    """Return the chance of seeing a difference of two arms, with its sign (noncentral t).

    Args:
        difference: of their means
        deviation: of the runs of either arm
        seeds: of each arm, 2 or more
        tests: that the 5% are shared among, as Holm's first step does
    """
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


def seeds_to_see(difference: float, deviation: float, tests: int = 1, chance: float = POWER) -> int:
    """Return the fewest seeds that see a difference with a chance, at most 200.

    Args:
        difference: of the means of two arms
        deviation: of the runs of either arm
        tests: as for `power`
        chance: of seeing it
    """
    counts = range(2, MOST_SEEDS)
    enough = (n for n in counts if power(difference, deviation, n, tests) >= chance)
    return next(enough, MOST_SEEDS)
