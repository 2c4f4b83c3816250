"""`vitlab.study`: a table or a figure of a paper, on the user's data, within a budget.

plan.json          how long the runs are, so that all have the same length whenever they are trained
ARM-seed-N/, …     the runs (grid.py, runs/run_folder.py), with figures.json when they are done
campaign.json, results.md, report.html, picture.svg    what they show (results.py)
"""

import json
import os
import platform
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from shutil import rmtree
from statistics import median
from typing import Any, Unpack

import torch

from vitlab.data.opened_data import OpenedData
from vitlab.device import choose
from vitlab.distributed.launch import read_environment
from vitlab.errors import RunError, UserError
from vitlab.evaluation.statistics import detectable, seeds_to_see
from vitlab.experiments.campaign_folder import CampaignFolder
from vitlab.experiments.cells import (
    ROW_FILE,
    Cell,
    CellTrainer,
    Experiment,
    Setup,
    agreed,
    begin,
    run_cells,
    with_room,
)
from vitlab.experiments.timing import (
    SCRATCH,
    STEPS,
    WARM,
    Plan,
    RunCost,
    learned_share,
    length_of,
    length_told,
    scratch_folder,
    timed,
)
from vitlab.files import vanishing_folder, write_text
from vitlab.keywords import StudyKeywords
from vitlab.machine.cores import cores
from vitlab.models.cost import cost
from vitlab.optim.table import OPTIMIZERS
from vitlab.packages import check_installed
from vitlab.places import On
from vitlab.progress import named_if_slow
from vitlab.public_calls import public
from vitlab.recipes.recipe import Host, Recipe
from vitlab.runs.naming import folder_name
from vitlab.studies.base import Base, small
from vitlab.studies.design import ACCURACY, Arm, Study
from vitlab.studies.grid import cells_of, chosen_arms, needs
from vitlab.studies.papers import budget_seconds, check_free, study_named
from vitlab.studies.results import rows_of, written
from vitlab.studies.step_cost import Examination, StepWork, reckon_seconds, step_work
from vitlab.training.budget import REPORT
from vitlab.training.forecast import SPAN
from vitlab.units import counted, duration, si
from vitlab.units import epochs as in_epochs

SMALL = 1e9  # multiply-adds of a forward pass: of smaller models several are trained at once
DEVIATION = 0.006  # of accuracy between seeds: the median of the rows of docs/results
AGAIN = "the same command continues"


@public(what=(str, Study))
def study(
    what: str | Study,
    data: str = "digits",
    out: str | Path | None = None,
    *,
    budget: str = "",
    epochs: float = 0.0,
    seeds: int = 3,
    see: float = 0.0,
    only: Sequence[str] = (),
    lr_grid: Sequence[float] = (),
    downstream: str = "",
    at_once: int = 0,
    on: On = "",
    dry_run: bool = False,
    recipe: Recipe | None = None,
    host: Host | None = None,
    command: str = "",
    quiet: bool = False,
    **choices: Unpack[StudyKeywords],
) -> dict[str, Any]:
    """Run a study, or go on with it; finished runs are not repeated.

    Args:
        what: the name of a study, as `vitlab study --help` lists them, or a `Study` of your own
        data: what to learn from
        out: its folder; None for `runs/study-NAME-DATA`
        budget: time for all runs, such as `10m` or `2h`, into which their length is fitted (empty:
            10 minutes)
        epochs: length of the runs, in place of a budget
        seeds: runs of each row
        see: a difference of accuracies, in percentage points, that the runs are to see with a
            chance of 80%; it chooses their number, by the deviations of this folder's result or of
            the studies in docs/results
        only: names of the rows (empty: all)
        lr_grid: factors of each row's learning rate to choose from on held-out training images
            (empty: the study's own, if it has any)
        downstream: data that pre-trained models are transferred to (empty: the same data)
        at_once: runs at the same time, each in a process of its own (0: one per core for small
            models on a CPU, else one); a script that asks for several needs
            `if __name__ == "__main__":`
        on: `ray` for runs on a cluster: as many as there is room for, or `at_once`
        dry_run: only estimate the cost, and leave nothing behind
        recipe: what the arms start from, in place of the small recipe for the data; its length is
            that of the study
        host: where to train
        command: what the user typed
        quiet: print nothing but warnings
        choices: options of the recipe that the arms start from: `image_size=32`, `batch=64`

    Returns:
        The JSON of `vitlab study NAME`: `rows` with `values`, `mean` and `std` of each arm,
        `claims` with their verdicts, `table`; with `dry_run`, `runs`, `seeds`, `sees`, `epochs`,
        `macs` and `seconds`. Empty in every process but the first of torchrun's.

    Raises:
        OptionError: an unknown study or row, an option that is unknown or the study's own, or a
            budget that is too small.
        RunError: the folder is in the way, or its study was begun otherwise.
        UserError: as `vitlab.train`, except that a run diverged.
        KeyboardInterrupt: a stop was asked for; the same call goes on.
    """
    seconds = budget_seconds(budget, epochs)
    own = study_named(what) if isinstance(what, str) else what
    name = what if isinstance(what, str) else re.sub(r"[^a-z0-9]+", "-", own.title.lower())
    base = Base(_start(what, recipe, data, choices).lasting(1.0), downstream)
    folder = CampaignFolder(out or folder_name(f"study-{name}", base.recipe.data.data))
    arms = chosen_arms(tuple(own.arms(base)), only)
    check_packages(arms)
    tests = len(own.claims) or 1
    deviation = seen_deviation(folder)
    if see:
        seeds = seeds_to_see(see / 100, deviation, tests)
    how = replace(host or Host(), report="no", check_duplicates="no")
    together = read_environment(os.environ).size > 1
    jobs = 1 if together or (on and not at_once) else at_once or at_once_of(arms, how)
    settings = {
        "study": name,
        "budget": seconds,
        "epochs": epochs,
        "lr_grid": [*lr_grid],
        "downstream": downstream,
    }
    first = base.recipe.seed
    sees = detectable(deviation, seeds, tests) if seeds > 1 else None
    with with_room(Setup(how, command, jobs=jobs, on=on)) as setup:
        grid = StudyGrid(own, base, arms, range(first, first + seeds), settings, setup, sees)
        return grid.cost() if dry_run else grid.run(folder)


@dataclass(frozen=True)
class StudyGrid:
    """The rows of a study that were asked for, and how they are run.

    Attributes:
        study: what is compared
        base: what its arms are made from
        arms: the rows, and those that they need
        seeds: of each arm
        settings: what may not change when the study goes on
        setup: how its cells are run
        sees: the difference of accuracies that the seeds see with a chance of 80%, of any claim
    """

    study: Study
    base: Base
    arms: tuple[Arm, ...]
    seeds: range
    settings: dict[str, Any]
    setup: Setup
    sees: float | None

    def cost(self) -> dict[str, Any]:
        """Return what the study would cost, by runs of a few steps; leave nothing behind."""
        with scratch_folder(self.setup) as place:
            plan = self._planned(place, None)
        if not read_environment(os.environ).first:
            return {}
        cells = self._cells(plan)
        runs = {"runs": len(cells), "at_once": self.setup.jobs}
        rows = [
            {"name": arm.name, "cells": [*arm.cells], **length_of(arm.recipe, plan.epochs)}
            for arm in with_lengths(self.arms, plan)
        ]
        return self._facts(plan, cells) | runs | {"rows": rows}

    def run(self, folder: CampaignFolder) -> dict[str, Any]:
        """Plan and run the study; what is finished in its folder is not repeated."""
        place = folder.path
        file = folder.path / "plan.json"
        host = self.setup.host
        agreed(host, lambda: _give_way(folder, file))
        experiment = begin(
            "study", self.settings, self.base.recipe, place, place, self.setup, again=AGAIN
        )
        plan = self._kept_or_new(experiment, file)
        relative = self._cells(plan)
        facts = self._facts(plan, relative)
        takes = facts["seconds"] and f"about {duration(facts['seconds'] - plan.timing)} "
        experiment.say(
            f"planned: {len(relative)} runs of {in_epochs(plan.epochs)}, {self._power}, "
            f"{si(facts['macs'])} multiply-adds, {takes or ''}with {self.setup.jobs} at once"
        )
        cells = self._cells(plan, place, plan.epochs)
        experiment = replace(experiment, trainer=self._trainer)
        left = partial(plan.seconds, relative, self.setup.jobs) if takes else None
        try:
            with nullcontext() if takes else length_told(cells, experiment):
                done = run_cells(cells, experiment, left)
        except UserError:
            if experiment.first and not folder.started:  # since nothing was begun
                file.unlink()
                experiment.campaign.withdraw()
            raise
        if not experiment.first:
            return {}
        took = sum(row.get("elapsed", 0.0) for row in done.values()) / self.setup.jobs
        facts |= {"data": self.base.recipe.data.data, "predicted_seconds": facts["seconds"]}
        facts["seconds"] = plan.timing + took
        rows = rows_of(self.study, self.arms, cells, done)
        return written(self.study, rows, folder, self._lead(plan, facts), facts)

    def _cells(self, plan: Plan, place: Path = Path(), epochs: float = 1.0) -> list[Cell]:
        arms = with_lengths(self.arms, plan)
        rates = self.settings["lr_grid"]
        return cells_of(arms, self.seeds, place, rates=rates, epochs=epochs)

    @property
    def _trainer(self) -> CellTrainer:
        rows = frozenset(arm.name for arm in self.arms if arm.row)
        examine = Examination(self.study.measure, rows, self.base.downstream)
        return CellTrainer(self.setup, examine=examine)

    def _facts(self, plan: Plan, cells: Sequence[Cell]) -> dict[str, Any]:
        """Return what a plan says of all runs, whose epochs are relative; no time if untimed."""
        planned = plan.seconds(cells, self.setup.jobs) or None
        return {
            "study": self.settings["study"],
            "seeds": len(self.seeds),
            "sees": self.sees,
            "epochs": plan.epochs,
            "macs": plan.macs(cells),
            "seconds": planned and plan.timing + planned,
        }

    @property
    def _power(self) -> str:
        """The number of seeds, and what they see."""
        power = "" if self.sees is None else f" (which see {100 * self.sees:.2g} points)"
        return f"{counted(len(self.seeds), 'seed')}{power}"

    def _lead(self, plan: Plan, facts: Mapping[str, Any]) -> str:
        """Return how the runs were made, in a sentence or two."""
        recipe = self.base.recipe
        first = recipe.model.model or recipe.start.weights
        took = f"{duration(facts['seconds'])} taken"
        if facts["predicted_seconds"]:
            took = f"{duration(facts['predicted_seconds'])} predicted, {took}"
        how = f"{first}, {in_epochs(plan.epochs)} or a row's multiple"
        return (
            f"{self.study.source}. Data {recipe.data.data}: {how}, {self._power}, "
            f"{si(facts['macs'])} multiply-adds of training with {self.setup.jobs} at once, "
            f"{took}. PyTorch {torch.__version__} on {platform.machine()}, "
            f"{datetime.now(UTC):%Y-%m-%d}."
        )

    def _kept_or_new(self, experiment: Experiment, file: Path) -> Plan:
        """Return the plan in the folder, if it has the costs of all arms, or a new one."""
        found = agreed(self.setup.host, lambda: (kept := Plan.kept(file)) and asdict(kept))
        plan = Plan.of(found) if found else None
        if plan and {arm.name for arm in self.arms} <= plan.costs.keys():
            return plan
        try:
            with scratch_folder(self.setup, file.parent) as scratch:
                plan = self._planned(scratch, plan, untimed=bool(self.settings["epochs"]))
            if experiment.first:
                write_text(file, json.dumps(asdict(plan), indent=1) + "\n")
        except BaseException:
            if experiment.first:
                _give_way(experiment.campaign, file)
            raise
        return plan

    def _planned(self, place: Path, old: Plan | None, *, untimed: bool = False) -> Plan:
        """Return a plan; an old one keeps its length, and gets the costs that it lacks.

        The steps of a single row are timed; the others are reckoned by their multiply-adds.

        Args:
            place: an empty folder
            old: the plan of fewer rows
            untimed: time nothing, where the length is given

        Raises:
            OptionError: the budget is too small.
            UserError: as `vitlab.train`.
        """
        missing = [arm.name for arm in self.arms if old is None or arm.name not in old.costs]
        arms = chosen_arms(self.arms, missing, steps=True)
        began = time.monotonic()
        plain = [replace(arm, rates=(), rate_of="") for arm in arms]
        trainer = self._trainer
        works = self._works(plain, trainer.opened)
        known = next((cost for cost in old.costs.values() if cost.step), None) if old else None
        first = next((arm for arm in plain if arm.row and not needs(arm)), plain[0])
        own = works[first.name]
        if known is None and untimed:
            known = RunCost(0.0, 0.0, own.steps, own.macs)
        elif known is None:
            known = self._time_row(first, own, place, trainer)
        costs = {
            name: known.of_work(work.macs, work.steps, work.tested / own.tested)
            for name, work in works.items()
        }

        def made() -> Plan:
            if old is not None:
                return replace(old, costs={**costs, **old.costs})
            length = self.settings["epochs"]
            unit = unit_of(self.arms, costs)
            plan = Plan(length, costs, time.monotonic() - began, unit)
            if length:
                return plan
            return plan.within(self.settings["budget"], self._cells(plan, place), self.setup.jobs)

        return Plan.of(agreed(self.setup.host, lambda: asdict(made())))

    def _works(self, arms: Sequence[Arm], opened: OpenedData) -> dict[str, StepWork]:
        """Return the work of each arm, by its name."""
        host = self.setup.host
        works = dict[str, StepWork]()
        needed = {name for arm in arms for name in needs(arm)}
        slow = named_if_slow(f"counting the operations of {counted(len(arms), 'row')}")
        with slow, vanishing_folder("vitlab-cost-") as there:
            for cell in cells_of(arms, self.seeds[:1], there):
                keep = there / cell.name if cell.kind in needed else None
                work = step_work(cell.recipe, host, opened, keep)
                whole = work.steps / learned_share(cell.recipe)
                works[cell.kind] = replace(work, steps=whole)
        return works

    def _time_row(self, arm: Arm, work: StepWork, place: Path, trainer: CellTrainer) -> RunCost:
        """Return the cost of a row: of a short run, or of few images where that would be long."""
        step, test = reckon_seconds(arm.recipe, self.setup.host, trainer.opened)
        if (STEPS + WARM) * step + test < SPAN:
            (cell,) = cells_of([arm], self.seeds[:1], place)
            copies = [replace(cell, name=f"{cell.name}-{n}") for n in range(self.setup.jobs)]
            found = timed(copies, trainer, place, lambda *_: work.macs / arm.recipe.batch)[arm.name]
            if found.step:  # else it diverged
                return found
        return RunCost(test + REPORT, step, work.steps, work.macs, test, test)


def _start(
    what: str | Study, recipe: Recipe | None, data: str, choices: Mapping[str, Any]
) -> Recipe:
    """Return the recipe that the arms start from, with the options that the caller chose."""
    check_free(what if isinstance(what, str) else "", choices)
    given = dict(choices)
    start = small(data, given.pop("model", "")) if recipe is None else recipe
    return start.changed(**given)


def _give_way(folder: CampaignFolder, file: Path) -> None:
    """Leave no trace of a study that has no plan yet, and of runs that were timed.

    Raises:
        RunError: it has runs, and no plan.
    """
    if file.is_file() or not folder.started or folder.record["campaign"] != "study":
        return
    if any(folder.path.glob(f"*/{ROW_FILE}")):
        raise RunError(f"{file} is missing: choose another --out")
    for each in folder.path.glob(f"{SCRATCH}*"):
        rmtree(each, ignore_errors=True)
    folder.withdraw()


def unit_of(arms: Sequence[Arm], costs: Mapping[str, RunCost]) -> float:
    """Return the multiply-adds of an epoch of the first arm whose length is given in them."""
    return next((costs[arm.name].epoch_macs for arm in arms if arm.macs), 0.0)


def with_lengths(arms: Sequence[Arm], plan: Plan) -> tuple[Arm, ...]:
    """Return the arms with the epochs that their multiply-adds give, the others as they are."""
    epochs = {
        arm.name: arm.macs * plan.unit / own
        for arm in arms
        if arm.macs and (own := plan.costs[arm.name].epoch_macs)
    }
    return tuple(
        replace(arm, recipe=arm.recipe.lasting(epochs[arm.name])) if arm.name in epochs else arm
        for arm in arms
    )


def seen_deviation(folder: CampaignFolder) -> float:
    """Return the deviation between seeds in a folder's result; without one, the usual."""
    result = (folder.record.get("result") if folder.started else None) or {}
    stds = [row.get("std", {}).get(ACCURACY.key) for row in result.get("rows", ())]
    return median([each for each in stds if each is not None] or [DEVIATION]) or DEVIATION


def check_packages(arms: Sequence[Arm]) -> None:
    """Refuse arms whose optimizers are of packages that are not installed.

    Raises:
        PackageError: it says how to install the first missing one.
    """
    for arm in arms:
        if package := OPTIMIZERS[arm.recipe.optimizer.optimizer].package:
            check_installed(package, f"the row {arm.name}", "name other rows with --only")


def at_once_of(arms: Sequence[Arm], host: Host) -> int:
    """Return how many runs there are at the same time: a core each for small models on a CPU."""
    if choose(host.device).type != "cpu":
        return 1
    models = [arm.recipe.model for arm in arms if arm.recipe.model.model]
    large = any(cost(model.config()).macs >= SMALL for model in models)
    return 1 if large else cores()
