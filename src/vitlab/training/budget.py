"""A schedule that fits into a time."""

import math
import time
from dataclasses import dataclass, replace

from vitlab.errors import OptionError
from vitlab.units import SECONDS, counted, duration
from vitlab.units import epochs as in_epochs

SHARE = 0.04  # of the budget that measuring may take
LONGEST = 30.0  # seconds that measuring may take
USEFUL = 10  # steps, without which a run is not worth its time
MARGIN = 1.3  # of what is recommended: the machine may be busier next time
REPORT = 3.0  # seconds of a machine with nothing else to do, for the report and the saved model
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
        """Return the most steps that take no longer than `left` seconds, perhaps none."""
        each = self.step + self.evaluation / self.every
        return max(0, int((left * (1 - RESERVE) - self.last) / each))

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
    return f"{counted(total, 'step')} ({in_epochs(epochs)}) fit into {duration(budget)}"


def enough(seconds: float) -> str:
    """Return a budget of at least that many seconds, in few digits: `90s`, `6m`, `3h`."""
    for unit, most, step in (("s", 120, 10), ("m", 120 * 60, 1), ("h", math.inf, 1)):
        amount = math.ceil(seconds / SECONDS[unit] / step) * step
        if amount * SECONDS[unit] <= most:
            return f"{amount}{unit}"
    raise AssertionError("hours have no limit")


def too_short(pace: Pace, pacer: "Pacer", budget: str, batch: int, model: str) -> OptionError:
    """Return the error of a budget that holds no useful run, with what would work.

    Args:
        pace: as measured
        pacer: the clock
        budget: as the user wrote it
        batch: images per step
        model: a smaller one for which there is time; empty if none is known
    """
    steps = pace.fits(pacer.left)
    need = pacer.spent + MARGIN * pace.takes(USEFUL)
    advice = [f"--budget {enough(max(need, pacer.budget + 1))}"]
    share = (pacer.left - MARGIN * pace.last) / (MARGIN * USEFUL * pace.step)
    smaller = 2 ** int(math.log2(max(1.0, share * batch)))
    if smaller >= 8:
        advice.append(f"--batch {smaller}")
    if model:
        advice.append(f"--model {model}")
    many = ", or ".join([", ".join(advice[:-1]), advice[-1]]) if advice[1:] else advice[0]
    return OptionError(
        f"--budget {budget} has room for {counted(steps, 'step')}, fewer than "
        f"{USEFUL}: a step of {counted(batch, 'image')} takes about {duration(pace.step)}, and "
        f"{duration(pacer.spent + pace.last)} go into the start, the tests and the report; try "
        f"{many}"
    )


class Pacer:
    """The clock of a run with a budget; it runs over all sessions, up to their last checkpoints.

    Args:
        budget: seconds in all (0: no limit)
        spent: seconds of earlier sessions
        began: when this session was started, by `time.monotonic()`; None for now
        tested: images that the run is tested on, for each image of an evaluation

    Attributes:
        busy: how much longer things take than on a machine with nothing else to do
    """

    def __init__(
        self, budget: float, spent: float, began: float | None = None, tested: float = 1.0
    ) -> None:
        self.budget, self.tested, self.busy = budget, tested, 1.0
        self.start = (time.monotonic() if began is None else began) - spent
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

    @property
    def last(self) -> float:
        """Seconds that are needed after the last step, for the test and the report."""
        return self.evaluation * self.tested + REPORT * self.busy

    @property
    def late(self) -> bool:
        """Whether there is hardly time left for the end of the run."""
        return self.budget > 0 and self.left + TOLERANCE * self.budget < self.last

    def evaluated(self, seconds: float) -> None:
        """Note how long an evaluation took; the last test takes as long per image."""
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
        if self.late:
            return done
        now = time.monotonic()
        if self.mark is None:
            self.mark, self.aside = (done, now), 0.0
        steps, since = done - self.mark[0], now - self.mark[1] - self.aside
        if steps < max(1, total // CHECKS):
            return total
        self.mark, self.aside = (done, now), 0.0
        recent = since / steps
        self.step = (self.step + recent) / 2 if self.step else recent  # one delay is not a trend
        pace = Pace(self.step, self.evaluation, every, self.last)
        return cut(pace, total, done, self.left, self.budget)
