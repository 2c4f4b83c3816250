"""`--budget`: a schedule that fits into a time, measured before the first step, cut if it slips."""

import math
import time
from collections.abc import Iterator

import numpy as np

from vitlab.data.loading.batches import Batch
from vitlab.data.sources.source import Subset
from vitlab.device import synchronize
from vitlab.distributed.shares import counted
from vitlab.errors import OptionError
from vitlab.recipes.recipe import Recipe
from vitlab.training.observer import Observer
from vitlab.training.plan import EVALUATED
from vitlab.training.state import RunState
from vitlab.training.step import Trainer
from vitlab.training.stop import Stop
from vitlab.units import counted as number_of
from vitlab.units import duration

FIRST, GROWTH = 2, 4  # images of the first piece that is timed, and how much larger the next one is
USEFUL = 10  # steps, without which a run is not worth its time
MARGIN = 1.3  # of what is recommended: the machine may be busier next time
REPORT = 3.0  # seconds for the report and the saved model
RESERVE = 0.02  # of the remaining time, left unplanned
TOLERANCE = 0.02  # of the budget, before a plan that has become too long is cut
CHECKS = 20  # of the plan, over a whole run


class Pacer:
    """The clock of a run with a budget; it runs over all sessions, up to their last checkpoints.

    Attributes:
        step: seconds of a batch, loading included
        evaluation: seconds of an evaluation on the held-out images

    Args:
        budget: seconds in all (0: no limit)
        spent: seconds of earlier sessions
        began: when this session was started, by `time.monotonic()`; None for now
        tested: images that the run is tested on, for each image of an evaluation
    """

    def __init__(
        self, budget: float, spent: float, began: float | None = None, tested: float = 1.0
    ) -> None:
        self.budget, self.tested = budget, tested
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
        return self.evaluation * self.tested + REPORT

    @property
    def late(self) -> bool:
        """Whether there is hardly time left for the end of the run."""
        return self.budget > 0 and self.left + TOLERANCE * self.budget < self.last

    def takes(self, steps: float, every: float) -> float:
        """Return the seconds for some steps, an evaluation after `every` of them, and the end."""
        return steps * self.step + steps / every * self.evaluation + self.last

    def fits(self, every: float) -> int:
        """Return the most steps, with evaluations, that there is time left for, perhaps none."""
        each = self.step + self.evaluation / every
        return max(0, int((self.left * (1 - RESERVE) - self.last) / each))

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
        self.mark, self.aside, recent = (done, now), 0.0, since / steps
        self.step = (self.step + recent) / 2 if self.step else recent  # one delay is not a trend
        if self.takes(total - done, every) <= self.left + TOLERANCE * self.budget:
            return total
        return done + self.fits(every)


def seconds_per_step(
    trainer: Trainer,
    state: RunState,
    batches: Iterator[Batch],
    batch: Batch,
    span: float,
    stop: Stop,
) -> float:
    """Return how long one step takes, loading included.

    On a slow machine a piece of a batch is timed in place of the whole: pieces of the first batch
    grow as long as the next one fits into `span` seconds; whole steps follow if the whole fits.

    Raises:
        Interrupted: a stop was asked for.
    """

    def timed(images: Batch) -> float:
        start = time.monotonic()
        trainer.try_step(state, images)
        synchronize(trainer.device)
        return time.monotonic() - start

    begin, size = time.monotonic(), FIRST
    timed(counted(next(batch.pieces(size)), trainer.world))  # warms up
    while True:
        piece = counted(next(batch.pieces(size)), trainer.world)
        taken = timed(piece)
        if len(piece) == len(batch) or taken * GROWTH > span - (time.monotonic() - begin):
            break
        size *= GROWTH
    start, count = time.monotonic(), 0
    following = next(batches, batch)
    stop.check()
    if len(piece) < len(batch):
        return taken * len(batch) / max(1, len(piece)) + time.monotonic() - start
    start = time.monotonic()
    while not count or time.monotonic() - begin + taken <= span:
        timed(following)
        following, count = next(batches, batch), count + 1
        stop.check()
    return (time.monotonic() - start) / count


def seconds_per_evaluation(observer: Observer, span: float, step: float) -> float:
    """Return how long an evaluation takes, from a part of the images if there are many.

    Args:
        observer: has the held-out images
        span: seconds to measure for
        step: seconds of a training step
    """
    images = len(observer.held_out)
    likely = EVALUATED * step / observer.task.recipe.batch * images
    start = time.monotonic()
    if likely <= span:
        observer.measure()
        return time.monotonic() - start
    some = np.linspace(0, images - 1, num=max(FIRST, int(images * span / likely)), dtype=np.int64)
    whole = observer.held_out, observer.chosen
    observer.held_out, observer.chosen = (Subset(each, some) for each in whole)
    observer.figures()
    observer.held_out, observer.chosen = whole
    return (time.monotonic() - start) * images / len(some)


def check_useful(pacer: Pacer, every: float, recipe: Recipe) -> None:
    """Refuse a budget that holds no useful run.

    Args:
        pacer: that has measured a step and an evaluation
        every: steps between two evaluations
        recipe: of the run

    Raises:
        OptionError: it does not, with what would work.
    """
    fit, batch = pacer.fits(every), recipe.batch
    if fit >= USEFUL:
        return
    need = pacer.spent + MARGIN * pacer.takes(USEFUL, every)
    minutes = math.ceil(max(need, pacer.budget + 1) / 60)
    raise OptionError(
        f"--budget {recipe.budget} has room for {number_of(fit, 'step')}, fewer than {USEFUL}: a "
        f"step of {number_of(batch, 'image')} takes about {duration(pacer.step)}, and "
        f"{duration(pacer.spent + pacer.last)} go into the start, the tests and the report; "
        f"try --budget {minutes}m, or a smaller --batch"
    )
