"""What a paper claims of its arms, and whether the runs agree."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Literal

from vitlab.transfer.spread import LEVEL, t_quantile

CONFIRMED, UNSEEN, CONTRADICTED = "confirmed", "not seen", "contradicted"
UNTESTED, NOT_RUN = "not testable at this size", "not run"


@dataclass(frozen=True)
class Claim:
    """A sentence of a paper about two groups of arms.

    Attributes:
        text: the sentence, in our words
        high: the first group of arms; none if the claim cannot be tested by runs of this size
        low: the second group
        kind: what the figure of the first group is, compared with that of the second
        by: the figure; empty for the study's first column
        least: a smaller difference of the means counts as none in `equal` and `no higher`
    """

    text: str
    high: tuple[str, ...] = ()
    low: tuple[str, ...] = ()
    kind: Literal["higher", "equal", "no higher"] = "higher"
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
    arms, the runs of an arm differing in their seed) leaves out 0. Equality is confirmed if the
    interval lies within `claim.least` on both sides of 0, contradicted if it lies outside; that
    one group is no higher, if it lies below `claim.least`, or above.

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
    return Verdict(claim, _word(claim, difference, reach), difference, reach)


def _word(claim: Claim, difference: float, reach: float) -> str:
    """Return the verdict on a difference whose interval reaches so far to both sides."""
    if claim.kind == "higher":
        holds, fails = difference > reach, -difference > reach
    else:
        apart = abs(difference) if claim.kind == "equal" else difference
        holds, fails = apart + reach <= claim.least, apart - reach > claim.least
    return CONFIRMED if holds else CONTRADICTED if fails else UNSEEN
