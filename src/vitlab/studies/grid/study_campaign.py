"""`vitlab study`: plan the runs of a study, do those that are not done, write what they show."""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory
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
from vitlab.studies.grid.kept_study import TIMING, KeptStudy
from vitlab.studies.grid.optimizer_packages import check_packages
from vitlab.studies.grid.outcome import rows_of
from vitlab.studies.grid.runs.cost_probe import costs_of
from vitlab.studies.grid.runs.one_run import Work
from vitlab.studies.grid.runs.paper_cost import counted_costs
from vitlab.studies.grid.runs.run_pool import FAILED, Workers, working
from vitlab.studies.grid.runs.study_plan import Plan, planned, unit_of, with_lengths
from vitlab.studies.grid.shown.study_files import Setting, written
from vitlab.transfer.campaign_folder import CampaignFolder
from vitlab.units import counted, duration, epochs, percent, si

SMALL = 1e9  # multiply-adds of a forward pass: of smaller models several are trained at once


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
    first: bool = field(init=False)
    arms: tuple[Arm, ...] = field(init=False)
    jobs: tuple[Job, ...] = field(init=False)
    at_once: int = field(init=False)

    def __post_init__(self) -> None:
        """Work out the runs.

        Raises:
            OptionError: an unknown row.
            PackageError: a package that an optimizer is from is not installed.
        """
        every = self.study.arms(self.base)
        arms = chosen_arms(every, self.asked.only)
        check_packages(arms, every)
        self._set_arms(arms)
        with joined(self.host.device, self.host.timeout) as (world, _):
            together, self.first = world.size > 1, world.first
        self.at_once = 1 if together else self.asked.at_once or at_once_of(self.arms, self.host)

    def plan(self) -> dict[str, Any]:
        """Return what the study would cost, by runs of a few steps; leave nothing behind.

        Returns:
            The JSON of `vitlab study NAME --dry-run`; empty in every process but the first of
            torchrun's.

        Raises:
            OptionError: the budget is too small.
            UserError: as `vitlab.train`.
        """
        with self._scratch(None) as place, working(self.at_once, self._threads) as workers:
            plan = self._planned(workers, place, None)
        if not self.first:
            return {}
        return {
            "study": self.asked.name,
            "runs": len(self.jobs),
            "at_once": self.at_once,
            "epochs": plan.epochs,
            "macs": plan.macs(self.jobs),
            "seconds": plan.timing + plan.seconds(self.jobs, self.at_once),
            "rows": [_length(arm, plan) for arm in self.arms],
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
        plan, done = self._begun()
        within = self.folder.path
        with self._scratch(within) as place, working(self.at_once, self._threads) as workers:
            if plan is None or not all(arm.name in plan.costs for arm in self.arms):
                plan = self._planned(workers, place, plan)
                self._keep(plan)
                rmtree(place, ignore_errors=True)
            self._set_arms(with_lengths(self.arms, plan.costs, plan.unit))
            left = plan.seconds(self.jobs, self.at_once, done)
            self._say(f"{len(self.jobs)} runs, {len(done)} of them done; about {duration(left)}")
            started = time.monotonic()
            length = plan

            def work_of(job: Job) -> Work:
                return self._work(job, length, done)

            for job, figures in workers.all(self.jobs, done, work_of):
                self._tell(job, figures, len(done), left - (time.monotonic() - started))
        if not self.first:
            return {}
        rows = rows_of(self.study, self.jobs, done)
        elapsed = sum(figures.get("elapsed", 0.0) for figures in done.values())
        seconds = plan.timing + elapsed / self.at_once
        setting = Setting(
            self.study, self.asked.name, self.base, plan, self.jobs, self.at_once, seconds
        )
        return written(setting, rows, self.folder)

    def _begun(self) -> tuple[Plan | None, dict[str, Figures]]:
        """Start or continue the study in its folder; return its plan and the figures it has."""
        asked = self.asked
        found: tuple[dict[str, Any] | None, dict[str, Figures]] = None, {}
        settings = {
            "study": asked.name,
            "budget": asked.budget,
            "epochs": asked.epochs,
            "lr_grid": asked.rates,
            "downstream": self.base.downstream,
        }
        with joined(self.host.device, self.host.timeout) as (world, _):
            with world.agreed():
                if world.first:
                    self._kept.begin(settings, self.base.recipe, self.command)
                    plan = self._kept.plan()
                    found = plan.as_json() if plan else None, self._kept.done(self.jobs)
            known, done = world.broadcast(found)
        return known and Plan.of(known), done

    @property
    def _kept(self) -> KeptStudy:
        return KeptStudy(self.folder)

    @property
    def _threads(self) -> int:
        return max(1, cores() // self.at_once)

    @contextmanager
    def _scratch(self, within: Path | None) -> Iterator[Path]:
        """Have a folder that vanishes; with it goes a study of which nothing was run."""
        with ExitStack() as stack:
            place = None
            if self.first:
                if within is not None:
                    stack.callback(self._kept.withdraw)
                place = stack.enter_context(TemporaryDirectory(prefix=TIMING, dir=within))
            with joined(self.host.device, self.host.timeout) as (world, _):
                place = world.broadcast(place)
            yield Path(place)

    def _keep(self, plan: Plan) -> None:
        if self.first:
            plan.write(self._kept.file)
        self._say(
            f"planned: {len(self.jobs)} runs of {epochs(plan.epochs)}, "
            f"{si(plan.macs(self.jobs))} multiply-adds, about "
            f"{duration(plan.seconds(self.jobs, self.at_once))} with {self.at_once} at once"
        )

    def _planned(self, workers: Workers, place: Path, old: Plan | None) -> Plan:
        """Return a plan; an old one keeps its length, and gets the costs that it lacks."""
        arms = [arm for arm in self.arms if old is None or arm.name not in old.costs]
        arms = list(chosen_arms(self.arms, [arm.name for arm in arms], steps=True))
        began = time.monotonic()
        if self.base.paper:
            costs = counted_costs(arms, self.host)
        else:
            self._say(f"timing a few steps of {counted(len(arms), 'setting')}")
            measure, other = self.study.measure, self.base.downstream
            costs = costs_of(arms, measure, workers, self.host, place, other)
        with joined(self.host.device, self.host.timeout) as (world, _), world.agreed():
            found = world.broadcast(Plan(0.0, costs, time.monotonic() - began).as_json())
            new = Plan.of(found)
            if old is not None:
                return replace(old, costs={**new.costs, **old.costs})
            unit = unit_of(self.arms, new.costs)
            self._set_arms(with_lengths(self.arms, new.costs, unit))
            length = 1.0 if self.base.paper else self.asked.epochs
            return planned(
                self.jobs, new.costs, self.at_once, seconds=self.asked.budget, epochs=length,
                timing=new.timing, unit=unit,
            )  # fmt: skip

    def _set_arms(self, arms: tuple[Arm, ...]) -> None:
        """Take arms, and work out their runs."""
        seeds = range(self.base.recipe.seed, self.base.recipe.seed + self.asked.seeds)
        self.arms, self.jobs = arms, jobs_of(arms, seeds, self.asked.rates)

    def _work(self, job: Job, plan: Plan, done: dict[str, Figures]) -> Work:
        place = self.folder.path
        recipe = job.recipe(done, plan.epochs, place)
        measure = self.study.measure if job.arm.row and not job.rate else None
        log = place / "logs" / f"{job.name}.txt" if self.at_once > 1 else None
        return Work(
            recipe, self._kept.place(job), measure, self.host, self.command, log,
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
