"""`vitlab study`: plan the runs of a study, do those that are not done, write what they show."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from vitlab.device import choose
from vitlab.distributed.launch import joined
from vitlab.machine.cores import cores
from vitlab.models.cost import cost
from vitlab.progress import say
from vitlab.recipes.recipe import Host
from vitlab.studies.grid.base import Base
from vitlab.studies.grid.design import Arm, Study
from vitlab.studies.grid.jobs import Figures, Job, chosen_arms, jobs_of
from vitlab.studies.grid.outcome import rows_of
from vitlab.studies.grid.runs.cost_probe import costs_of
from vitlab.studies.grid.runs.one_run import Work, kept_figures
from vitlab.studies.grid.runs.run_pool import FAILED, Workers, working
from vitlab.studies.grid.runs.study_plan import Plan, planned, relative_epochs, with_lengths
from vitlab.studies.grid.shown.study_files import Setting, written
from vitlab.transfer.campaign_folder import CampaignFolder
from vitlab.units import duration, epochs, percent, si

SMALL = 1e9  # multiply-adds of a forward pass: of smaller models several are trained at once
PLAN = "plan.json"


@dataclass(frozen=True)
class Asked:
    """What the user asks of a study.

    Attributes:
        name: of the study
        budget: seconds on this device; 0 with `epochs`, or with the paper's own recipes
        epochs: passes per relative epoch of an arm, in place of a budget
        seeds: runs of each arm
        only: names of the rows; none for all
        rates: factors of each row's learning rate to choose from; none for the study's own
        at_once: runs at the same time; 0 to choose
    """

    name: str
    budget: float = 600.0
    epochs: float = 0.0
    seeds: int = 3
    only: tuple[str, ...] = ()
    rates: tuple[float, ...] = ()
    at_once: int = 0


@dataclass
class Campaign:
    """A study that is being run.

    Attributes:
        study: what is compared
        base: what its arms are made from
        asked: budget, seeds, rows
        folder: gets a run folder per run
        host: where to train
        command: what the user typed
        first: whether this process writes and reports, of those that torchrun started
    """

    study: Study
    base: Base
    asked: Asked
    folder: CampaignFolder
    host: Host
    command: str = ""
    first: bool = True
    arms: tuple[Arm, ...] = field(init=False)
    jobs: tuple[Job, ...] = field(init=False)
    at_once: int = field(init=False)

    def __post_init__(self) -> None:
        """Work out the runs."""
        self._set_arms(chosen_arms(self.study.arms(self.base), self.asked.only))
        with joined(self.host.device, self.host.timeout) as (world, _):
            together, self.first = world.size > 1, world.first
        self.at_once = 1 if together else self.asked.at_once or at_once_of(self.arms, self.host)

    def plan(self) -> dict[str, Any]:
        """Return what the study would cost, by runs of a few steps; leave nothing behind.

        Raises:
            OptionError: the budget is too small.
            UserError: as `vitlab.train`.
        """
        with working(self.at_once, self._threads) as workers:
            plan = self._planned(workers)
        lines = [_length(arm, plan) for arm in self.arms]
        return {
            "study": self.asked.name,
            "runs": plan.runs,
            "at_once": plan.at_once,
            "epochs": plan.epochs,
            "macs": plan.macs,
            "seconds": plan.seconds,
            "rows": lines,
        }

    def run(self) -> dict[str, Any]:
        """Plan and run the study; what is finished in its folder is not repeated.

        Returns:
            The JSON of `vitlab study NAME`; empty in every process but the first of torchrun's.

        Raises:
            OptionError: the budget is too small.
            RunError: the folder is in the way, or its study was begun otherwise.
            UserError: as `vitlab.train`, except that a run diverged.
            KeyboardInterrupt: a stop was asked for; the same command goes on.
        """
        began, asked = time.monotonic(), self.asked
        settings = {"study": asked.name, "budget": asked.budget, "epochs": asked.epochs}
        if self.first:
            recipe = self.base.recipe
            self.folder.begin("study", settings, recipe, resume=True, command=self.command)
        with working(self.at_once, self._threads) as workers:
            plan = self._kept_plan(workers)
            done = self._done()
            left = plan.seconds * (1 - len(done) / len(self.jobs))
            self._say(f"{plan.runs} runs, {len(done)} of them done; about {duration(left)}")
            started = time.monotonic()

            def work_of(job: Job) -> Work:
                return self._work(job, plan, done)

            for job, figures in workers.all(self.jobs, done, work_of):
                self._tell(job, figures, len(done), left - (time.monotonic() - started))
        if not self.first:
            return {}
        rows = rows_of(self.study, self.jobs, done)
        seconds = time.monotonic() - began
        setting = Setting(self.study, asked.name, self.base, plan, asked.seeds, seconds)
        return written(setting, rows, self.folder)

    @property
    def _threads(self) -> int:
        return max(1, cores() // self.at_once)

    def _kept_plan(self, workers: Workers) -> Plan:
        """Return the plan that the study was begun with, or make one and write it down."""
        file = self.folder.path / PLAN
        if file.is_file():
            plan = Plan.read(file)
            self._set_arms(with_lengths(self.arms, plan.relative))
            return plan
        plan = self._planned(workers)
        if self.first:
            plan.write(file)
        self._say(
            f"planned: {plan.runs} runs of {epochs(plan.epochs)}, {si(plan.macs)} multiply-adds, "
            f"about {duration(plan.seconds)} with {plan.at_once} at once"
        )
        return plan

    def _planned(self, workers: Workers) -> Plan:
        self._say(f"timing a few steps of {len(self.arms)} settings")
        costs = costs_of(self.arms, self.study.measure, workers, self.host, self.base.downstream)
        relative = relative_epochs(self.arms, costs)
        self._set_arms(with_lengths(self.arms, relative))
        length = 1.0 if self.base.paper else self.asked.epochs
        return planned(
            self.jobs, costs, self.at_once, seconds=self.asked.budget, epochs=length,
            relative=relative,
        )  # fmt: skip

    def _set_arms(self, arms: tuple[Arm, ...]) -> None:
        """Take arms, and work out their runs."""
        seeds = range(self.base.recipe.seed, self.base.recipe.seed + self.asked.seeds)
        self.arms, self.jobs = arms, jobs_of(arms, seeds, self.asked.rates)

    def _done(self) -> dict[str, Figures]:
        """Return the figures of the runs that are finished."""
        found = {job.name: kept_figures(self.folder.path / job.name) for job in self.jobs}
        return {name: figures for name, figures in found.items() if figures is not None}

    def _work(self, job: Job, plan: Plan, done: dict[str, Figures]) -> Work:
        place = self.folder.path
        recipe = job.recipe(done, plan.epochs, place)
        measure = self.study.measure if job.arm.row and not job.rate else None
        log = place / "logs" / f"{job.name}.txt" if self.at_once > 1 else None
        return Work(
            recipe, place / job.name, measure, self.host, self.command, log,
            downstream=self.base.downstream,
        )  # fmt: skip

    def _tell(self, job: Job, figures: Figures, number: int, left: float) -> None:
        accuracy = figures.get("accuracy")
        said = "done" if accuracy is None else percent(accuracy)
        said = f"diverged: {figures[FAILED]}" if FAILED in figures else said
        rest = f", about {duration(left)} left" if left > 1 and number < len(self.jobs) else ""
        self._say(f"{number} of {len(self.jobs)}: {job.name}: {said}{rest}")

    def _say(self, text: str) -> None:
        if self.first:
            say(text)


def at_once_of(arms: Sequence[Arm], host: Host) -> int:
    """Return how many runs there are at the same time: a core each for small models on a CPU."""
    if choose(host.device).type != "cpu":
        return 1
    named = [arm.recipe.model for arm in arms if arm.recipe.model.model]
    macs = [cost(model.config()).macs for model in named]
    return cores() if max(macs, default=0) < SMALL else 1


def _length(arm: Arm, plan: Plan) -> dict[str, Any]:
    """Return what a plan says of an arm."""
    length = arm.recipe.steps or arm.recipe.epochs * plan.epochs
    unit = "steps" if arm.recipe.steps else "epochs"
    return {"name": arm.name, "cells": list(arm.cells), unit: length}
