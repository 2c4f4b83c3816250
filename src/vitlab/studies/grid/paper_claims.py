"""What a paper claims of its arms, and whether the runs agree."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from vitlab.transfer.spread import LEVEL, t_quantile

CONFIRMED, UNSEEN, CONTRADICTED = "confirmed", "not seen", "contradicted"
UNTESTED, NOT_RUN = "not testable at this size", "not run"


@dataclass(frozen=True)
class Claim:
    """A sentence of a paper about two groups of arms.

    Attributes:
        text: the sentence, in our words
        high: arms whose figure is higher by the claim, or the first group of equals; none if the
            claim cannot be tested by runs of this size
        low: arms whose figure is lower, or the second group
        equal: whether the claim is that the groups do not differ
        by: the figure; empty for the study's first column
        least: a smaller difference of the means counts as none for a claim of equality
    """

    text: str
    high: tuple[str, ...] = ()
    low: tuple[str, ...] = ()
    equal: bool = False
    by: str = ""
    least: float = 0.02


@dataclass(frozen=True)
class Verdict:
    """What the runs say about a claim.

    Attributes:
        claim: that is judged
        word: confirmed, not seen, contradicted, not run, or not testable at this size
        difference: of the groups' means, high minus low; None if it was not measured
        reach: half of the 95% confidence interval of the difference
    """

    claim: Claim
    word: str
    difference: float | None = None
    reach: float | None = None


def judged(claim: Claim, values: Mapping[str, Sequence[float]]) -> Verdict:
    """Judge a claim by the figures of each arm's runs.

    A difference is seen if the 95% confidence interval of it (Student's t, one variance for all
    arms, the runs of an arm differing in their seed) leaves out 0; equality is confirmed if the
    interval lies within `claim.least` on both sides of 0, contradicted if it lies outside.

    Args:
        claim: the claim
        values: the figure of every run by the name of its arm
    """
    if not claim.high:
        return Verdict(claim, UNTESTED)
    groups = [[values.get(name, ()) for name in names] for names in (claim.high, claim.low)]
    if not all(groups) or not all(all(map(bool, group)) for group in groups):
        return Verdict(claim, NOT_RUN)
    means = [fmean(fmean(arm) for arm in group) for group in groups]
    difference = means[0] - means[1]
    arms = [arm for group in groups for arm in group]
    freedom = sum(len(arm) - 1 for arm in arms)
    if not freedom:
        return Verdict(claim, UNSEEN, difference)
    squares = sum((len(arm) - 1) * stdev(arm) ** 2 for arm in arms if len(arm) > 1)
    of_means = sum(sum(1 / len(arm) for arm in group) / len(group) ** 2 for group in groups)
    reach = t_quantile(freedom, LEVEL) * math.sqrt(squares / freedom * of_means)
    if claim.equal:
        within = abs(difference) + reach <= claim.least
        apart = abs(difference) - reach > claim.least
        word = CONFIRMED if within else CONTRADICTED if apart else UNSEEN
    else:
        word = CONFIRMED if difference > reach else CONTRADICTED if -difference > reach else UNSEEN
    return Verdict(claim, word, difference, reach)
