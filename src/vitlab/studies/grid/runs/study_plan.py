"""What a study costs on this device, and how long its runs may be within a budget."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Self

from vitlab.errors import OptionError, RunError
from vitlab.files import write_text
from vitlab.studies.grid.design import Arm
from vitlab.studies.grid.jobs import Job, round_down
from vitlab.units import duration

MOST = 300.0  # epochs per relative one: more is not planned however large the budget
LEAST = 20  # steps of a run, below which it teaches nothing


@dataclass(frozen=True)
class Cost:
    """What a run of an arm costs on this device.

    Attributes:
        fixed: seconds that do not depend on its length: opening data, testing, measuring
        epoch: seconds of an epoch
        steps: of an epoch
        macs: multiply-adds of an epoch, those of the backward pass included
    """

    fixed: float
    epoch: float
    steps: float
    macs: float


@dataclass(frozen=True)
class Plan:
    """How long the runs are, and what all of them cost.

    Attributes:
        epochs: passes over the training images per relative epoch of an arm
        runs: their number
        seconds: of the whole study on this device, as predicted
        macs: multiply-adds of all training
        at_once: runs at the same time
        relative: relative epochs of the arms whose length is given in multiply-adds
    """

    epochs: float
    runs: int
    seconds: float
    macs: float
    at_once: int
    relative: Mapping[str, float] = field(default_factory=dict)

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
            return cls(**json.loads(file.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise RunError(f"{file} is damaged ({error}): choose another --out") from error


def planned(
    jobs: Sequence[Job],
    costs: Mapping[str, Cost],
    at_once: int,
    *,
    seconds: float = 0.0,
    epochs: float = 0.0,
    relative: Mapping[str, float] | None = None,
) -> Plan:
    """Return the longest plan within a budget, or that of a given length.

    Args:
        jobs: all runs
        costs: of a run of each arm
        at_once: runs at the same time
        seconds: the budget
        epochs: passes per relative epoch, in place of a budget
        relative: of the arms whose length is given in multiply-adds; the jobs have them already

    Raises:
        OptionError: the budget is too small for runs of at least 20 steps.
    """
    if not epochs:
        epochs = _longest(jobs, costs, at_once, seconds)
        fitted = [job for job in jobs if not job.arm.recipe.steps]
        lengths = [costs[job.arm.name].steps * job.arm.recipe.epochs for job in fitted]
        short = min(lengths, default=math.inf)
        if epochs * short < LEAST:
            need = makespan(jobs, costs, at_once, LEAST / short)
            raise OptionError(
                f"{len(jobs)} runs need a budget of about {duration(1.1 * need)}: set a larger "
                "--budget, or fewer --seeds or rows (--only)"
            )
    total = makespan(jobs, costs, at_once, epochs)
    work = sum(costs[job.arm.name].macs * epochs_of(job, costs, epochs) for job in jobs)
    return Plan(epochs, len(jobs), total, work, at_once, relative or {})


def relative_epochs(arms: Sequence[Arm], costs: Mapping[str, Cost]) -> dict[str, float]:
    """Return the relative epochs of the arms whose length is given in multiply-adds, by name."""
    given = [arm for arm in arms if arm.macs and costs[arm.name].macs]
    epoch = next((costs[arm.name].macs for arm in given), 0.0)
    return {arm.name: arm.macs * epoch / costs[arm.name].macs for arm in given}


def with_lengths(arms: Sequence[Arm], relative: Mapping[str, float]) -> tuple[Arm, ...]:
    """Return the arms with these relative epochs, the others as they are."""
    return tuple(
        replace(arm, recipe=arm.recipe.lasting(relative[arm.name])) if arm.name in relative else arm
        for arm in arms
    )


def epochs_of(job: Job, costs: Mapping[str, Cost], epochs: float) -> float:
    """Return the passes of a job over its training images, which a number of steps may fix."""
    recipe = job.arm.recipe
    return recipe.steps / costs[job.arm.name].steps if recipe.steps else recipe.epochs * epochs


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
    return round_down(low) if low > 1e-6 else 0.0


def makespan(jobs: Sequence[Job], costs: Mapping[str, Cost], at_once: int, epochs: float) -> float:
    """Return the seconds until all jobs are done, started as `Workers.all` starts them."""
    free, ends = [0.0] * at_once, dict[str, float]()
    waiting = list(jobs)
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
        cost = costs[job.arm.name]
        end = now + cost.fixed + cost.epoch * epochs_of(job, costs, epochs)
        free[free.index(now)] = ends[job.name] = end
    return max(ends.values(), default=0.0)
