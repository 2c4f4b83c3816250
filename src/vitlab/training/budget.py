"""A schedule that fits into a time."""

import time
from dataclasses import dataclass

from vitlab.units import duration

SHARE = 0.02  # of the budget spent on measuring
LONGEST = 30.0  # seconds of measuring, at the most
FEWEST, FIRST = 3, 2  # steps measured at the least, and those before, which warm up
RESERVE = 0.02  # of the time that is left, not planned with
TOLERANCE = 0.02  # of the budget, before a plan that has become too long is cut
CHECKS = 20  # of the plan, over a whole run


@dataclass(frozen=True)
class Pace:
    """What things take, in seconds.

    Attributes:
        step: one batch, loading included
        look: one look at the held-out images
        looks: steps between two of them
        last: what comes after the last step
    """

    step: float
    look: float
    looks: float
    last: float

    def takes(self, steps: float) -> float:
        """Seconds for so many steps, with their looks and what comes after them."""
        return steps * self.step + steps / self.looks * self.look + self.last

    def fits(self, left: float) -> int:
        """The most steps that take no longer than `left` seconds; at least one."""
        each = self.step + self.look / self.looks
        return max(1, int((left * (1 - RESERVE) - self.last) / each))


def cut(pace: Pace, total: int, done: int, left: float, budget: float) -> int:
    """A smaller total where the plan would overrun, else the same.

    Args:
        pace: as it is now
        total: steps planned
        done: steps taken
        left: seconds
        budget: seconds in all
    """
    if pace.takes(total - done) <= left + TOLERANCE * budget:
        return total
    return min(total, done + pace.fits(left))


def announcement(total: int, epochs: float, budget: float) -> str:
    """What was decided, in a line."""
    return f"{total:,} steps ({epochs:.3g} epochs) fit into {duration(budget)}"


class Pacer:
    """Keeps a run within its time: its clock runs over all sessions, up to their last checkpoint.

    Args:
        budget: seconds in all (0: no limit)
        spent: seconds of earlier sessions
    """

    def __init__(self, budget: float, spent: float) -> None:
        self.budget, self.start = budget, time.monotonic() - spent
        self.look = self.last = self.aside = self.step = 0.0
        self.marked: tuple[int, float] | None = None

    @property
    def spent(self) -> float:
        """Seconds so far."""
        return time.monotonic() - self.start

    def looked(self, seconds: float) -> None:
        """A look took so long; the last test takes as long again."""
        self.look = self.last = seconds
        self.aside += seconds

    def check(self, total: int, done: int, looks: float) -> int:
        """The steps to take in all: as planned, or fewer where this goes too slowly.

        Args:
            total: as planned
            done: taken so far
            looks: steps between two looks
        """
        if not self.budget:
            return total
        now = time.monotonic()
        if self.marked is None:
            self.marked, self.aside = (done, now), 0.0
        steps, since = done - self.marked[0], now - self.marked[1] - self.aside
        if steps < max(1, total // CHECKS):
            return total
        self.marked, self.aside = (done, now), 0.0
        recent = since / steps
        self.step = (self.step + recent) / 2 if self.step else recent  # a hiccup is no trend
        pace = Pace(self.step, self.look, looks, self.last)
        return cut(pace, total, done, self.budget - self.spent, self.budget)
