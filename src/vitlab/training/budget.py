"""`--budget`: a schedule that fits into a time, foreseen from a few steps, cut if it slips."""

import math
import time
from collections.abc import Callable, Iterator

from vitlab.data.loading.batch import Batch
from vitlab.device import synchronize
from vitlab.errors import OptionError
from vitlab.recipes.recipe import Recipe
from vitlab.training.state import RunState
from vitlab.training.step import Trainer
from vitlab.training.stop import Stop
from vitlab.units import counted as number_of
from vitlab.units import duration

FIRST, GROWTH = 2, 4  # images of the first step that is timed, and how much larger the next one is
USEFUL = 10  # steps, without which a run is not worth its time
MARGIN = 1.3  # of what is recommended: the machine may be busier next time
REPORT = 3.0  # seconds for the report and the saved model
RESERVE = 0.02  # of the remaining time, left unplanned
TOLERANCE = 0.02  # of the budget, before a plan that has become too long is cut
CHECKS = 20  # of the plan, over a whole run
SOON, LONG = 2.0, 10.0  # seconds of steps that say how fast they are; of one that does alone


class Pacer:
    """The clock of a run with a budget; it runs over all sessions, up to their last checkpoints.

    Attributes:
        step: seconds of a batch, loading included
        evaluation: seconds of an evaluation on the held-out images
        ahead: seconds of what is still to be done before the first step: fitting the head
        head_alone: whether there is time for the head that is fitted first, and for no training

    Args:
        budget: seconds in all (0: no limit)
        spent: seconds of earlier sessions
        began: when this session was started, by `time.monotonic()`; None for now
        tested: images that the run is tested on, for each image of an evaluation
    """

    def __init__(
        self, budget: float, spent: float, began: float | None = None, tested: float = 1.0
    ) -> None:
        self.budget = budget
        self.tested = tested
        self.start = (time.monotonic() if began is None else began) - spent
        self.evaluation = self.aside = self.step = self.ahead = 0.0
        self.head_alone = False
        self.mark: tuple[int, float] | None = None

    @property
    def spent(self) -> float:
        """Seconds so far, of all sessions."""
        return time.monotonic() - self.start

    @property
    def left(self) -> float:
        """Seconds left of the budget for steps, tests and the report."""
        return self.budget - self.spent - self.ahead

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
            self.mark = (done, now)
            self.aside = 0.0
        steps = done - self.mark[0]
        since = now - self.mark[1] - self.aside
        if steps < max(1, total // CHECKS):
            return total
        self.mark = (done, now)
        self.aside = 0.0
        recent = since / steps
        self.step = (self.step + recent) / 2 if self.step else recent  # one delay is not a trend
        if self.takes(total - done, every) <= self.left + TOLERANCE * self.budget:
            return total
        return done + self.fits(every)


def seconds_per_image(
    trainer: Trainer, state: RunState, batch_of: Callable[[int], Batch], span: float
) -> tuple[float, float, int]:
    """Return how long it takes to load an image and to learn from it, and how many were timed last.

    Steps of few images are timed, and larger ones as long as the next one fits into `span` seconds:
    a whole batch on a quick machine, else a batch is reckoned from the last two. Both are 0 where
    every image is damaged.

    Args:
        trainer: takes the steps
        state: its weights stay as they are, its moments do not
        batch_of: loads a batch of so many images
        span: seconds to measure for
    """
    size = FIRST
    whole = trainer.recipe.batch
    before = seconds_of_step(trainer, state, batch_of(min(size, whole)))  # warms up
    begin = time.monotonic()
    while True:
        start = time.monotonic()
        batch = batch_of(min(size, whole))
        count = len(batch)
        load = time.monotonic() - start
        if not count:
            return 0.0, 0.0, 0
        taken = seconds_of_step(trainer, state, batch)
        each = taken / count
        if size > FIRST:  # what a step takes whatever its images is not taken again for each
            each = max(each / 2, (taken - before) / (count - count / GROWTH))
        if size >= whole or (load + taken) * GROWTH > span - (time.monotonic() - begin):
            return load / count, (taken + each * max(0, whole - count)) / whole, count
        before = taken
        size *= GROWTH


def seconds_per_step(
    trainer: Trainer,
    state: RunState,
    batches: Iterator[Batch],
    batch: Batch,
    span: float,
    stop: Stop,
) -> float:
    """Return how long a whole step takes, loading included, from as many as fit into a time.

    Args:
        trainer: takes the steps
        state: its weights stay as they are, its moments do not
        batches: as many as are asked for
        batch: the first of them, which warms up
        span: seconds to measure for
        stop: asks for an end

    Raises:
        Interrupted: a stop was asked for.
    """
    seconds_of_step(trainer, state, batch)
    start = time.monotonic()
    count = 0
    while not count or time.monotonic() - start < span:
        stop.check()
        seconds_of_step(trainer, state, next(batches, batch))
        count += 1
    return (time.monotonic() - start) / count


def seconds_of_step(trainer: Trainer, state: RunState, batch: Batch) -> float:
    """Return how long one step takes that moves no weight."""
    start = time.monotonic()
    trainer.try_step(state, batch)
    synchronize(trainer.device)
    return time.monotonic() - start


def long_enough(pacer: Pacer, rest: float) -> str:
    """Return a budget that holds the start and some further seconds, and is longer.

    It is rounded up to half a minute, from two minutes on to a minute.
    """
    need = max(pacer.spent + MARGIN * (pacer.ahead + rest), pacer.budget + 1)
    return f"{math.ceil(need / 30) * 30}s" if need <= 90 else f"{math.ceil(need / 60)}m"


def refusal(pacer: Pacer, every: float, recipe: Recipe, head: float = 0.0) -> OptionError:
    """Return why a budget holds no useful run, with the shortest ones that do.

    Args:
        pacer: knows what a step and an evaluation take
        every: steps between two evaluations
        recipe: of the run
        head: seconds that a run of a head alone takes once it is fitted, if that is a way
    """
    start = pacer.spent + pacer.ahead + pacer.last
    longer = long_enough(pacer, pacer.takes(USEFUL, every))
    way = f"--budget {longer}"
    if head and (alone := long_enough(pacer, head)) != longer:
        way = f"--budget {alone} for the fitted head alone, {way} to train it"
    return OptionError(
        f"--budget {recipe.budget} has room for {number_of(pacer.fits(every), 'step')}, fewer than "
        f"{USEFUL}: a step of {number_of(recipe.batch, 'image')} takes about "
        f"{duration(pacer.step)}, and {duration(start)} go into the start, the tests and the "
        f"report; try {way}, or a smaller --batch"
    )


class Outlook:
    """How fast the first steps of a session are, which says how long the others take."""

    def __init__(self, step: int) -> None:
        """Begin before the next step.

        Args:
            step: number of steps taken before
        """
        self.first = step
        self.begin = time.monotonic()
        self.warm = self.told = False

    def seconds_per_step(self, step: int) -> float:
        """Return the seconds of a step, once they are known, and once alone; else 0.

        The first step, which warms up, counts only where it is a long one.

        Args:
            step: number of steps taken
        """
        now = time.monotonic()
        if not self.warm:
            self.warm = True
            if now - self.begin < LONG:
                self.first = step
                self.begin = now
        if self.told or step == self.first or now - self.begin < SOON:
            return 0.0
        self.told = True
        return (now - self.begin) / (step - self.first)
