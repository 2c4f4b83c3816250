"""A schedule that fits into a time."""

import time
from dataclasses import dataclass, replace

from vitlab.units import duration

SHARE = 0.02  # of the budget that measuring may take
LONGEST = 30.0  # seconds that measuring may take
FEWEST, WARMUP = 3, 2  # steps measured at least, and steps before them
RESERVE = 0.02  # of the remaining time, left unplanned
TOLERANCE = 0.02  # of the budget, before a plan that has become too long is cut
CHECKS = 20  # of the plan, over a whole run


@dataclass(frozen=True)
class Pace:
    """How long things take, in seconds.

    Attributes:
        step: one batch, loading included
        evaluation: one evaluation on the held-out images
        every: steps between two evaluations
        last: everything after the last step
    """

    step: float
    evaluation: float
    every: float
    last: float

    def takes(self, steps: float) -> float:
        """Return the seconds for some steps, their evaluations, and everything after the last."""
        return steps * self.step + steps / self.every * self.evaluation + self.last

    def fits(self, left: float) -> int:
        """Return the most steps, at least one, that take no longer than `left` seconds."""
        each = self.step + self.evaluation / self.every
        return max(1, int((left * (1 - RESERVE) - self.last) / each))

    def with_saves(self, seconds: float, every: float) -> "Pace":
        """Return the pace with checkpoints that take `seconds` each, one every `every` seconds."""
        per_step = min(1.0, self.step / max(every, 1e-9))
        return replace(self, step=self.step + seconds * per_step, last=self.last + seconds)


def cut(pace: Pace, total: int, done: int, left: float, budget: float) -> int:
    """Return a smaller total if the plan would overrun, else the same.

    Args:
        pace: the current one
        total: steps planned
        done: steps taken
        left: seconds left
        budget: seconds in all
    """
    if pace.takes(total - done) <= left + TOLERANCE * budget:
        return total
    return min(total, done + pace.fits(left))


def announcement(total: int, epochs: float, budget: float) -> str:
    """Return one line that says what was decided."""
    return f"{total:,} steps ({epochs:.3g} epochs) fit into {duration(budget)}"


class Pacer:
    """The clock of a run with a budget; it runs over all sessions, up to their last checkpoints.

    Args:
        budget: seconds in all (0: no limit)
        spent: seconds of earlier sessions
    """

    def __init__(self, budget: float, spent: float) -> None:
        self.budget, self.start = budget, time.monotonic() - spent
        self.evaluation = self.aside = self.step = 0.0
        self.mark: tuple[int, float] | None = None

    @property
    def spent(self) -> float:
        """Seconds so far, of all sessions."""
        return time.monotonic() - self.start

    @property
    def left(self) -> float:
        """Seconds left of the budget."""
        return self.budget - self.spent

    def evaluated(self, seconds: float) -> None:
        """Note how long an evaluation took; the final test takes as long again."""
        self.evaluation = seconds
        self.aside += seconds

    def check(self, total: int, done: int, every: float) -> int:
        """Return the total number of steps: as planned, or fewer if this goes too slowly.

        Args:
            total: as planned
            done: taken so far
            every: steps between two evaluations
        """
        if not self.budget:
            return total
        now = time.monotonic()
        if self.mark is None:
            self.mark, self.aside = (done, now), 0.0
        steps, since = done - self.mark[0], now - self.mark[1] - self.aside
        if steps < max(1, total // CHECKS):
            return total
        self.mark, self.aside = (done, now), 0.0
        recent = since / steps
        self.step = (self.step + recent) / 2 if self.step else recent  # one delay is not a trend
        pace = Pace(self.step, self.evaluation, every, self.evaluation)
        return cut(pace, total, done, self.left, self.budget)
