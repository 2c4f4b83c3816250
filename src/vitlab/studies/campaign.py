"""`vitlab study`: plan the runs of a study, do those that are not done, write what they show.

plan.json       how long the runs are, so that all have the same length whenever they are trained
ARM-seed-N/     the runs of the table (runs/run_folder.py), with figures.json when they are done
ARM-lr-X/       those that tried a learning rate
"""

import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from shutil import rmtree
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch

from vitlab.device import choose
from vitlab.distributed.launch import joined
from vitlab.errors import RunError
from vitlab.experiments.campaign_folder import CampaignFolder
from vitlab.files import CAMPAIGN_FILE
from vitlab.machine.cores import cores
from vitlab.models.cost import cost
from vitlab.optim.table import OPTIMIZERS
from vitlab.packages import check_installed
from vitlab.progress import say
from vitlab.recipes.recipe import Host
from vitlab.studies.base import Base
from vitlab.studies.costs import costs_of, counted_costs
from vitlab.studies.design import ACCURACY, Arm, Study
from vitlab.studies.jobs import FAILED, FURTHER, Figures, Job, chosen_arms, jobs_of
from vitlab.studies.one_run import Work, kept_figures
from vitlab.studies.plan import Plan, planned, unit_of, with_lengths
from vitlab.studies.pool import Workers
from vitlab.studies.results import rows_of, written
from vitlab.studies.statistics import detectable, seeds_to_see
from vitlab.units import counted, duration, epochs, percent, si

SMALL = 1e9  # multiply-adds of a forward pass: of smaller models several are trained at once
TIMING = "vitlab-study-"  # prefix of the folder of runs that are timed; it vanishes with them
DEVIATION = 0.006  # of accuracy between seeds: the median of the rows of docs/results


@dataclass(frozen=True)
class Asked:
    """What the user asks of a study.

    Attributes:
        name: of the study
        budget: seconds on this device; 0 with `epochs`, or with the paper's own recipes
        epochs: passes per relative epoch of an arm, in place of a budget
        seeds: runs of each arm
        see: the difference of accuracies, in points, that the seeds are to see: it chooses their
            number; 0 for `seeds`
        only: names of the rows; none for all
        rates: factors of each row's learning rate to choose from; none for the study's own
        at_once: runs at the same time; 0 to choose
    """

    name: str
    budget: float = 600.0
    epochs: float = 0.0
    seeds: int = 3
    see: float = 0.0
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
        seeds: of each arm
        deviation: of the accuracy between the seeds of an arm
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
    seeds: range = field(init=False)
    at_once: int = field(init=False)
    deviation: float = field(init=False)

    def __post_init__(self) -> None:
        """Work out the runs.

        Raises:
            OptionError: an unknown row.
            PackageError: a package that an optimizer is from is not installed.
        """
        every = self.study.arms(self.base)
        arms = chosen_arms(every, self.asked.only)
        check_packages(arms, every)
        self.deviation = self._seen_deviation()
        tests, start = len(self.study.claims) or 1, self.base.recipe.seed
        enough = self.asked.seeds
        if self.asked.see:
            enough = seeds_to_see(self.asked.see / 100, self.deviation, tests)
        self.seeds = range(start, start + enough)
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
        with self._scratch(None) as place, Workers(self.at_once, self._threads) as workers:
            plan = self._planned(workers, place, None)
        if not self.first:
            return {}
        rows = [_length(arm, plan) for arm in self.arms]
        runs = {"runs": len(self.jobs), "at_once": self.at_once, "rows": rows}
        return self._facts(plan) | runs

    @property
    def sees(self) -> float | None:
        """The difference of accuracies that the seeds see with a chance of 80%, of any claim."""
        if len(self.seeds) < 2:
            return None
        return detectable(self.deviation, len(self.seeds), len(self.study.claims) or 1)

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
        with self._scratch(within) as place, Workers(self.at_once, self._threads) as workers:
            if plan is None or not all(arm.name in plan.costs for arm in self.arms):
                plan = self._planned(workers, place, plan)
                self._keep(plan)
                rmtree(place, ignore_errors=True)
            self._set_arms(with_lengths(self.arms, plan.costs, plan.unit))
            left = plan.seconds(self.jobs, self.at_once, done)
            self._say(f"{len(self.jobs)} runs, {len(done)} of them done; about {duration(left)}")
            started, length = time.monotonic(), plan

            def work_of(job: Job) -> Work:
                return self._work(job, length, done)

            for job, figures in workers.all(self.jobs, done, work_of):
                self._tell(job, figures, len(done), left - (time.monotonic() - started))
        if not self.first:
            return {}
        elapsed = sum(figures.get("elapsed", 0.0) for figures in done.values())
        facts = self._facts(plan) | {
            "data": self.base.recipe.data.data,
            "predicted_seconds": plan.timing + plan.seconds(self.jobs, self.at_once),
            "seconds": plan.timing + elapsed / self.at_once,
        }
        rows = rows_of(self.study, self.jobs, done)
        return written(self.study, rows, self.folder, self._lead(plan, facts), facts)

    def _facts(self, plan: Plan) -> dict[str, Any]:
        """Return what a plan says of all runs."""
        return {
            "study": self.asked.name,
            "seeds": len(self.seeds),
            "sees": self.sees,
            "epochs": plan.epochs,
            "macs": plan.macs(self.jobs),
            "seconds": plan.timing + plan.seconds(self.jobs, self.at_once),
        }

    def _lead(self, plan: Plan, facts: Mapping[str, Any]) -> str:
        """Return how the runs were made, in a sentence or two."""
        recipes = [arm.recipe for arm in self.arms]
        models = {recipe.model.model for recipe in recipes} - {""}
        said = ["the paper's recipes"] if self.base.paper else []
        if not self.base.paper:
            said += models if len(models) == 1 else []
            ends = [recipe.epochs * plan.epochs for recipe in recipes if not recipe.steps]
            if ends:
                low, high = epochs(min(ends)), epochs(max(ends))
                said.append(low if low == high else f"{low.split()[0]} to {high}")
        return (
            f"{self.study.source}. Data {facts['data']}: {', '.join([*said, self._power()])}, "
            f"{si(facts['macs'])} multiply-adds of training, "
            f"{duration(facts['predicted_seconds'])} predicted with {self.at_once} at once and "
            f"{duration(facts['seconds'])} taken. PyTorch "
            f"{torch.__version__} on {platform.machine()}, {datetime.now(UTC):%Y-%m-%d}."
        )

    def _power(self) -> str:
        """Return the number of seeds, and what they see."""
        power = "" if self.sees is None else f" (which see {100 * self.sees:.2g} points)"
        return f"{counted(len(self.seeds), 'seed')}{power}"

    def _begun(self) -> tuple[Plan | None, dict[str, Figures]]:
        """Start or continue the study in its folder; return its plan and the figures it has."""
        asked = self.asked
        settings = {
            "study": asked.name,
            "budget": asked.budget,
            "epochs": asked.epochs,
            "lr_grid": asked.rates,
            "further_rates": self._further,  # which studies of before had none of
            "downstream": self.base.downstream,
        }
        known, done = self._agreed(lambda: self._kept(settings))
        return known and Plan.of(known), done

    def _agreed(self, make: Callable[[], Any]) -> Any:
        """Do something in the first process, and return its JSON value in all of them.

        Raises:
            UserError: as in the first process.
        """
        with joined(self.host.device, self.host.timeout) as (world, _):
            with world.agreed():
                made = make() if world.first else None
            return world.broadcast(made)

    def _kept(self, settings: dict[str, Any]) -> tuple[dict[str, Any] | None, dict[str, Figures]]:
        """Start or continue the study; return the fields of its plan and the figures it has."""
        self._begin(settings)
        plan = Plan.read(self._file) if self._file.is_file() else None
        found = {job.name: kept_figures(self.folder.path / job.name) for job in self.jobs}
        return asdict(plan) if plan else None, {name: each for name, each in found.items() if each}

    def _begin(self, settings: dict[str, Any]) -> None:
        """Start the study or continue it; one of which nothing was run gives way to any other.

        Raises:
            RunError: the folder contains something else, or a study that was begun otherwise.
            DiskError: it cannot be written to.
        """
        folder = self.folder
        if folder.started and folder.record["campaign"] == "study":
            self.withdraw()
            if folder.started and not self._file.is_file():
                raise RunError(f"{self._file} is missing: choose another --out")
        folder.begin("study", settings, self.base.recipe, resume=True, command=self.command)

    def withdraw(self) -> None:
        """Leave no trace of a study that has no plan yet, and of runs that were timed."""
        for each in self.folder.path.glob(f"{TIMING}*"):
            rmtree(each, ignore_errors=True)
        if [each.name for each in self.folder.path.glob("*")] == [CAMPAIGN_FILE]:
            self.folder.withdraw()

    @property
    def _file(self) -> Path:
        return self.folder.path / "plan.json"

    @property
    def _further(self) -> int:
        """The rates that a grid may grow by; a paper's own does not."""
        return 0 if self.base.paper else FURTHER

    @property
    def _threads(self) -> int:
        return max(1, cores() // self.at_once)

    def _seen_deviation(self) -> float:
        """Return the deviation between seeds in this folder's result; without one, the usual."""
        result = self.folder.record.get("result") if self.folder.started else None
        key = ACCURACY.key
        seen = [
            row["std"][key] for row in (result or {}).get("rows", ()) if key in row.get("std", ())
        ]
        return median(seen or [DEVIATION]) or DEVIATION

    @contextmanager
    def _scratch(self, within: Path | None) -> Iterator[Path]:
        """Have a folder that vanishes; with it goes a study of which nothing was run."""
        with ExitStack() as stack:
            if self.first and within is not None:
                stack.callback(self.withdraw)
            make = TemporaryDirectory(prefix=TIMING, dir=within)
            yield Path(self._agreed(lambda: stack.enter_context(make)))

    def _keep(self, plan: Plan) -> None:
        if self.first:
            plan.write(self._file)
        self._say(
            f"planned: {len(self.jobs)} runs of {epochs(plan.epochs)}, {self._power()}, "
            f"{si(plan.macs(self.jobs))} multiply-adds, about "
            f"{duration(plan.seconds(self.jobs, self.at_once))} with {self.at_once} at once"
        )

    def _planned(self, workers: Workers, place: Path, old: Plan | None) -> Plan:
        """Return a plan; an old one keeps its length, and gets the costs that it lacks."""
        missing = [arm.name for arm in self.arms if old is None or arm.name not in old.costs]
        arms, began = chosen_arms(self.arms, missing, steps=True), time.monotonic()
        if self.base.paper:
            costs = counted_costs(arms, self.host)
        else:
            self._say(f"timing a few steps of {counted(len(arms), 'setting')}")
            work = Work(
                self.base.recipe, place, None, self.host, "", place / "log.txt",
                downstream=self.base.downstream,
            )  # fmt: skip
            costs = costs_of(arms, self.study.measure, workers, work)
        took = time.monotonic() - began
        new = Plan.of(self._agreed(lambda: asdict(Plan(0.0, costs, took))))
        if old is not None:
            return replace(old, costs={**new.costs, **old.costs})
        unit = unit_of(self.arms, new.costs)
        self._set_arms(with_lengths(self.arms, new.costs, unit))
        length = 1.0 if self.base.paper else self.asked.epochs
        plan = self._agreed(
            lambda: asdict(
                planned(
                    self.jobs, new.costs, self.at_once, seconds=self.asked.budget, epochs=length,
                    timing=new.timing, unit=unit,
                )
            )
        )  # fmt: skip
        return Plan.of(plan)

    def _set_arms(self, arms: tuple[Arm, ...]) -> None:
        """Take arms, and work out their runs."""
        self.arms, self.jobs = arms, jobs_of(arms, self.seeds, self.asked.rates, self._further)

    def _work(self, job: Job, plan: Plan, done: dict[str, Figures]) -> Work:
        place = self.folder.path
        return Work(
            job.recipe(done, plan.epochs, place),
            place / job.name,
            self.study.measure if job.arm.row and not job.searches else None,
            self.host,
            self.command,
            place / "logs" / f"{job.name}.txt" if self.at_once > 1 else None,
            downstream=self.base.downstream,
            rate=job.factor(done) if job.searches else 0.0,
        )

    def _tell(self, job: Job, figures: Figures, number: int, left: float) -> None:
        if not figures:  # a further learning rate that nothing asked for
            return
        accuracy = figures.get("accuracy")
        said = "done" if accuracy is None else percent(accuracy)
        said = f"diverged: {figures[FAILED]}" if FAILED in figures else said
        rest = f", about {duration(left)} left" if left > 1 and number < len(self.jobs) else ""
        self._say(f"{number} of {len(self.jobs)}: {job.name}: {said}{rest}")

    def _say(self, text: str) -> None:
        if self.first:
            say(text)


def check_packages(arms: Sequence[Arm], every: Sequence[Arm]) -> None:
    """Refuse arms whose optimizers are of packages that are not installed.

    Args:
        arms: that are to be trained
        every: all arms of the study, from which other rows are advised

    Raises:
        PackageError: it says how to install one, and which rows need none.
    """
    free = " ".join(arm.name for arm in every if arm.row and not _package(arm))
    for arm in arms:
        if package := _package(arm):
            instead = f"name other rows: --only {free}" if free else ""
            check_installed(package, f"the row {arm.name}", instead)


def _package(arm: Arm) -> str:
    return OPTIMIZERS[arm.recipe.optimizer.optimizer].package


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
