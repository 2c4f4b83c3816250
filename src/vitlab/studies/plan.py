"""What a study costs on this device, and how long its runs may be within a budget."""

import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

from vitlab.errors import OptionError, RunError
from vitlab.files import write_text
from vitlab.studies.design import Arm
from vitlab.studies.jobs import HELD_OUT, Job

MOST = 300.0  # epochs per relative one: more is not planned however large the budget
LEAST = 20  # steps of a run, below which it teaches nothing
MARGIN = 1.25  # of the budget that a refusal names: the next timing may be slower


@dataclass(frozen=True)
class Cost:
    """What a run of an arm costs on this device.

    Attributes:
        fixed: seconds that do not depend on its length: opening data, testing
        step: seconds of a training step
        steps: of an epoch
        macs: multiply-adds of a step, those of the backward pass included
        measure: seconds of what the study measures, which runs that choose a rate do without
    """

    fixed: float
    step: float
    steps: float
    macs: float
    measure: float = 0.0

    def seconds(self, job: Job, epochs: float) -> float:
        """Return the seconds of a run."""
        measure = 0.0 if job.searches else self.measure
        return self.fixed + measure + self.step * steps_of(job, self, epochs)


@dataclass(frozen=True)
class Plan:
    """How long the runs are, and what each costs.

    Attributes:
        epochs: passes over the training images per relative epoch of an arm
        costs: of a run, by the name of its arm
        timing: seconds that it took to find the costs
        unit: multiply-adds of 1 where the length of an arm is given in them
    """

    epochs: float
    costs: Mapping[str, Cost]
    timing: float = 0.0
    unit: float = 0.0

    def seconds(self, jobs: Sequence[Job], at_once: int, done: Collection[str] = ()) -> float:
        """Return the seconds that the jobs take on this device, without those that are done."""
        return makespan(jobs, self.costs, at_once, self.epochs, done)

    def macs(self, jobs: Sequence[Job]) -> float:
        """Return the multiply-adds of all training."""
        costs = [(job, self.costs[job.arm.name]) for job in jobs]
        return sum(cost.macs * steps_of(job, cost, self.epochs) for job, cost in costs)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Return the plan whose fields are these JSON values."""
        costs = {name: Cost(**cost) for name, cost in values["costs"].items()}
        return cls(values["epochs"], costs, values["timing"], values["unit"])

    def write(self, file: Path) -> None:
        """Write the plan down, so that a study that goes on keeps it."""
        write_text(file, json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def read(cls, file: Path) -> Self:
        """Return the plan in a file.

        Raises:
            RunError: there is none, or it is damaged.
        """
        try:
            return cls.of(json.loads(file.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise RunError(f"{file} is damaged ({error}): choose another --out") from error


def planned(
    jobs: Sequence[Job],
    costs: Mapping[str, Cost],
    at_once: int,
    *,
    seconds: float = 0.0,
    epochs: float = 0.0,
    timing: float = 0.0,
    unit: float = 0.0,
) -> Plan:
    """Return the longest plan within a budget, or that of a given length.

    Args:
        jobs: all runs
        costs: of a run of each arm
        at_once: runs at the same time
        seconds: the budget
        epochs: passes per relative epoch, in place of a budget
        timing: seconds of the budget that finding the costs has taken
        unit: multiply-adds of 1 where the length of an arm is given in them; the jobs have it

    Raises:
        OptionError: the budget is too small for runs of at least 20 steps.
    """
    if not epochs:
        epochs = _longest(jobs, costs, at_once, seconds - timing)
        least = max(_least(job, costs[job.arm.name]) for job in jobs)
        if epochs < least:
            need = MARGIN * (makespan(jobs, costs, at_once, least) + timing)
            raise OptionError(
                f"{len(jobs)} runs of at least {LEAST} steps need --budget {_time(need)}: set it, "
                "or fewer --seeds or rows (--only)"
            )
    return Plan(epochs, costs, timing, unit)


def unit_of(arms: Sequence[Arm], costs: Mapping[str, Cost]) -> float:
    """Return the multiply-adds of an epoch of the first arm whose length is given in them."""
    own = (costs[arm.name] for arm in arms if arm.macs)
    return next((cost.macs * cost.steps for cost in own if cost.macs), 0.0)


def with_lengths(arms: Sequence[Arm], costs: Mapping[str, Cost], unit: float) -> tuple[Arm, ...]:
    """Return the arms with the epochs that their multiply-adds give, the others as they are.

    Args:
        arms: of the study
        costs: of a run of each
        unit: multiply-adds of 1
    """
    found = []
    for arm in arms:
        epoch = costs[arm.name].macs * costs[arm.name].steps if arm.macs else 0.0
        recipe = arm.recipe.lasting(arm.macs * unit / epoch) if epoch else arm.recipe
        found.append(replace(arm, recipe=recipe))
    return tuple(found)


def _least(job: Job, cost: Cost) -> float:
    """Return the epochs, with two significant digits, that give a job enough steps."""
    one = steps_of(job, cost, 1.0)
    if job.arm.recipe.steps or not one:
        return 0.0
    return rounded(LEAST / one, math.ceil)


def rounded(epochs: float, how: Callable[[float], int]) -> float:
    """Return a number above 0 with two significant digits, so that noise does not change it.

    Args:
        epochs: the number
        how: `math.floor` or `math.ceil`
    """
    digit = 10.0 ** (math.floor(math.log10(epochs)) - 1)
    return float(f"{how(round(epochs / digit, 6)) * digit:.2g}")


def _time(seconds: float) -> str:
    """Return a time as --budget takes it, rounded up."""
    return f"{math.ceil(seconds)}s" if seconds < 120 else f"{math.ceil(seconds / 60)}m"


def steps_of(job: Job, cost: Cost, epochs: float) -> float:
    """Return the training steps of a job; a search of learning rates holds images out."""
    recipe = job.arm.recipe
    if recipe.steps:
        return recipe.steps
    return recipe.epochs * epochs * cost.steps * (1 - HELD_OUT if job.searches else 1)


def _longest(jobs: Sequence[Job], costs: Mapping[str, Cost], at_once: int, seconds: float) -> float:
    """Return the most epochs within a time, with two significant digits; 0 if there is none."""
    low, high = 0.0, MOST
    if makespan(jobs, costs, at_once, high) <= seconds:
        return high
    for _ in range(40):
        middle = (low + high) / 2
        if makespan(jobs, costs, at_once, middle) <= seconds:
            low = middle
        else:
            high = middle
    return rounded(low, math.floor) if low > 1e-6 else 0.0


def makespan(
    jobs: Sequence[Job],
    costs: Mapping[str, Cost],
    at_once: int,
    epochs: float,
    done: Collection[str] = (),
) -> float:
    """Return the seconds until all jobs are done, started as `Workers.all` starts them.

    Args:
        jobs: in the order in which they are preferred
        costs: of a run of each arm
        at_once: runs at the same time
        epochs: passes per relative epoch
        done: names of the jobs that are finished already
    """
    free, ends = [0.0] * at_once, dict.fromkeys(done, 0.0)
    waiting = [job for job in jobs if job.name not in ends]
    while waiting:
        now = min(free)
        ready = [job for job in waiting if all(name in ends for name in job.needs)]
        ready = [job for job in ready if all(ends[name] <= now for name in job.needs)]
        if not ready:  # the process idles until the next run of another one ends
            later = [time for time in (*free, *ends.values()) if time > now]
            free[free.index(now)] = min(later)
            continue
        job = ready[0]
        waiting.remove(job)
        free[free.index(now)] = ends[job.name] = now + costs[job.arm.name].seconds(job, epochs)
    return max(ends.values(), default=0.0)
