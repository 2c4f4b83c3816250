"""Claims of papers about the arms of a study, and the verdicts of its runs on them.

A claim compares two groups of arms in one line: `a b > c` says that the mean of a and b is above
c, `a = c` that they are equal, `a >= c` that a is as good as c. What counts as equal is a third of
an effect that the runs themselves must show, or else the paper's own difference.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any, Self

from vitlab.errors import OptionError
from vitlab.evaluation.multiple_tests import holm
from vitlab.evaluation.statistics import (
    LEVEL,
    POWER,
    Contrast,
    Estimate,
    Values,
    paired,
    seeds_to_see,
    welch,
)

CONFIRMED, UNSEEN, CONTRADICTED = "confirmed", "not seen", "contradicted"
SMALLER = "smaller"  # than in the paper, and perhaps not there at all
NO_EFFECT, NOT_RUN = "no effect to compare", "not run"
UNTESTED = "not testable at this size"
SHARE = 1 / 3  # of an effect: what is left of it when two that differ by less count as equal
SEEDS = ("ViT", "Three things", "article")  # what this workbench rebuilds; others count apart
COMPARISON = re.compile(r"([^<>=]*\w[^<>=]*) (>=|=|>) ([^<>=]*\w[^<>=]*)")
Estimator = Callable[[Contrast, Values], Estimate]


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
        for each in (self.comparison, self.effect):
            contrast_of(each)
        if self.sign != ">" and not (self.effect or self.paper):
            raise OptionError(f"{self.text!r} needs an effect, or the paper's difference")

    @property
    def sign(self) -> str:
        """What the first side is, beside the second: `>`, `>=` or `=`."""
        sides = COMPARISON.fullmatch(self.comparison)
        return sides[2] if sides else ">"

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
        word: confirmed, contradicted, smaller, not seen, no effect to compare, not run, or not
            testable
        difference: of the groups' means, first less second; None if it was not measured
        reach: half of its 95% confidence interval (Welch)
        paired: the same of the differences within each seed; None if seeds share no weights
        margin: what counted as equal; None for a claim that one is better
        p: of the verdict, corrected by Holm for all claims of the study; None without a test
        deviation: of the runs of an arm, as if there were two; 0 if it is not known
        tests: number of claims that are tested
    """

    claim: Claim
    word: str
    difference: float | None = None
    reach: float | None = None
    paired: float | None = None
    margin: float | None = None
    p: float | None = None
    deviation: float = 0.0
    tests: int = 1

    def corrected(self, p: float, tests: int) -> Self:
        """Return the verdict with the p-value among others, which may be too large for its word."""
        unknown = self.claim.sign != ">" and self.margin is None
        lost = NO_EFFECT if unknown else UNSEEN
        return replace(self, p=p, tests=tests, word=self.word if p < LEVEL else lost)

    @property
    def seeds(self) -> int | None:
        """Seeds of an arm with which what was not seen is seen with a chance of 80%, at most 200.

        That is the paper's difference or, of an equality, that the true one of 0 is within the
        margin. None of other verdicts, and if neither is known.
        """
        size = self.margin or abs(self.claim.paper or 0.0)
        if self.word != UNSEEN or not size or not self.deviation:
            return None
        chance = (1 + POWER) / 2 if self.claim.sign == "=" else POWER  # it is within both ends
        return seeds_to_see(size, self.deviation, self.tests, chance)

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
            "seeds_to_see": self.seeds,
        }


def contrast_of(comparison: str) -> dict[str, float]:
    """Return the coefficients of `a b > c`: a and b have 1/2, c has -1; none of an empty text.

    Raises:
        OptionError: a side is empty, or there are not two.
    """
    found: dict[str, float] = {}
    if not comparison:
        return found
    if not (sides := COMPARISON.fullmatch(comparison)):
        raise OptionError(f"a comparison looks like 'a b > c', not {comparison!r}")
    for share, side in ((1.0, sides[1].split()), (-1.0, sides[3].split())):
        for name in side:
            found[name] = found.get(name, 0.0) + share / len(side)
    return found


def judged(
    claims: Sequence[Claim], figures: Mapping[str, Values], starts: Mapping[str, str] | None = None
) -> list[Verdict]:
    """Judge the claims of a study.

    A verdict needs a p-value, two-sided and corrected by Holm for all claims, below 0.05. Where a
    difference is not seen by itself, the test is whether it is smaller than the paper's; of the two
    hypotheses, at most 0 and at least the paper's, one at most is true. Arms that start from the
    models of one arm share weights and images within a seed: there the test is paired. The margin
    of an equality is a third of the effect, whose noise is part of the test. Where the effect is
    not seen, what is better still counts as good.

    Args:
        claims: of one study
        figures: by the name of the figure, empty for the first: the runs' values by arm
        starts: by the names of arms whose seeds are all there, the arm whose models they start from
    """
    found = [_judge(claim, figures.get(claim.by, {}), starts or {}) for claim in claims]
    tested = holm([each.p for each in found if each.p is not None])
    among = iter(tested)
    return [each if each.p is None else each.corrected(next(among), len(tested)) for each in found]


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
    if not found.freedom or (margin is None and claim.sign == "="):
        return verdict
    if margin is None:  # what is better is as good, whatever the effect
        return replace(verdict, word=CONFIRMED, p=min(1.0, 2 * found.p_above))
    low, high = found.plus(margin), found.plus(-margin)
    if claim.effect and equality:  # whose noise counts, too
        effect = contrast_of(claim.effect)
        low, high = (estimate(_sum(main, effect, x), values) for x in (SHARE, -SHARE))
    holds, fails = low.p_above, low.p_below
    if claim.sign == "=":
        holds, fails = max(holds, high.p_below), min(fails, high.p_above)
    word, p = CONFIRMED if holds < fails else CONTRADICTED, 2 * min(holds, fails)
    size = claim.paper or 0.0
    if p >= LEVEL and claim.sign == ">" and size > 0:
        word, p = min((word, p), (SMALLER, 2 * found.plus(-size).p_below), key=itemgetter(1))
    deviation = low.error * math.sqrt(min(len(values[arm]) for arm in main) / 2)
    return replace(verdict, word=word, p=min(1.0, p), deviation=deviation)


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
