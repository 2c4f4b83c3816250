"""Cells: training runs with one purpose in one folder, resumed after a kill: `run_cells`.

An experiment (`sweep.py`, `repeats.py`, `vtab.py`, a study) says which cells there are and what
their rows come to. What is here runs them: in the order that they follow each other, one at a time
or side by side, by one process, by torchrun's, by an array of jobs or on a Ray cluster.
"""

import json
import os
import pickle
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from shutil import rmtree
from typing import Any, Self

import torch

from vitlab.data.opened_data import OpenedData
from vitlab.distributed.launch import joined, read_environment
from vitlab.documents import read_json
from vitlab.errors import DivergedError, OptionError, RunError, UserError
from vitlab.evaluation.metrics import main_of
from vitlab.evaluation.on_ray import check_on, cluster, room
from vitlab.evaluation.shards import ShardNumber
from vitlab.experiments.campaign_folder import CampaignFolder
from vitlab.experiments.side_by_side import RayTasks, SideBySide
from vitlab.files import SWEEP_FOLDER, write_text
from vitlab.models.model import Model
from vitlab.objectives.classify import Loss
from vitlab.places import On
from vitlab.progress import Meter, named_if_slow, say
from vitlab.recipes.recipe import Host, Recipe
from vitlab.report.page import TablePage, write_tables
from vitlab.run_reports.train import train
from vitlab.runs.run_folder import RunFolder
from vitlab.training.outcome import Run
from vitlab.training.resume import placed
from vitlab.training.stop import Interrupted
from vitlab.training.tracking import OnLine
from vitlab.training.transform import Transform
from vitlab.units import counted, duration

POLL = 0.2  # seconds
OVER = ("done", "diverged")  # states of a run that is not repeated
AGAIN = "pass --resume to continue"
FAILED = "diverged"  # in the row of a cell that has no figures: why
ROW_FILE = "figures.json"  # in the folder of a run that is examined
# Of a row in a result, beside figures.
OF_RUN = ("images", "test_images", "learned_from", "seconds", "run")
TESTS = ("validation", "held-out", "test")  # kinds of lines of the journal

Row = dict[str, Any]
"""A cell in JSON: its labels, its figures, or `diverged` and a message, and `run`, its folder."""


@dataclass(frozen=True)
class Cell:
    """One training run of an experiment.

    Attributes:
        name: of its folder, in that of the experiment
        recipe: what it learns; it can be repeated by hand
        labels: what tells it from the others, such as `{"seed": 4}`, with which its row begins
        after: names of the cells that it follows
        models: those of them whose models it needs: if one diverged, so has this one
        settle: from the cell and the rows of those that it follows to the cell as these decide it,
            such as with the best rate; None where it is not needed, whose row is empty
        may_diverge: whether the others go on if it diverges
        kind: cells of one kind cost about the same
        searches: whether it only decides about others
    """

    name: str
    recipe: Recipe
    labels: Mapping[str, Any]
    after: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    settle: Callable[["Cell", list[Row]], "Cell | None"] | None = None
    may_diverge: bool = False
    kind: str = ""
    searches: bool = False

    @property
    def title(self) -> str:
        """Its labels in words, `lr 0.003, layer decay 0.75`; without labels its name."""
        return title_of(self.labels) or self.name

    def changed(self, **options: Any) -> Self:
        """Return it with options of its recipe replaced, which are among its labels too."""
        return replace(
            self, recipe=self.recipe.changed(**options), labels={**self.labels, **options}
        )


def tested(row: Mapping[str, Any]) -> int:
    """Return on how many images the model of a row was tested."""
    return int(row.get("test_images", row["images"]))


def title_of(labels: Mapping[str, Any]) -> str:
    """Return labels in words."""
    texts = {k: f"{v:g}" if isinstance(v, float) else v for k, v in labels.items()}
    return ", ".join(f"{key.replace('_', ' ')} {text}" for key, text in texts.items())


@dataclass(frozen=True)
class Setup:
    """How the cells of an experiment are run; nothing here changes what they learn.

    Attributes:
        host: where to train
        command: what the user typed
        resume: continue the experiment in its folder
        start: a model to start from, in place of the recipe's weights
        transform: a function of the user's on the training images
        loss: a function of the user's in place of the recipe's loss
        jobs: cells at the same time, each in a process of its own with its part of the cores
        cells: `0/8` for the first of eight independent processes; empty: all
        on: `ray` for tasks of a cluster: as many as there is room for, or `jobs` if more than 1
    """

    host: Host = field(default_factory=Host)
    command: str = ""
    resume: bool = False
    start: Model | None = None
    transform: Transform | None = None
    loss: Loss | None = None
    jobs: int = 1
    cells: str = ""
    on: On = ""


class CellsLeftError(RunError):
    """A part of the cells is done, by one process of several; the command line exits with 0."""

    status = 0


@dataclass(frozen=True)
class CellTrainer:
    """Trains cells by their recipes; the data that they have in common is opened once.

    Attributes:
        setup: how they are run
        quiet: whether they print nothing but warnings
        examine: makes the row of a finished run, in place of its own figures: a function that can
            be pickled. The row is kept beside the run, which keeps its model and no checkpoints:
            they take several times as much of the disk
        opened: the data
    """

    setup: Setup
    quiet: bool = False
    examine: Callable[["Cell", Run, "CellTrainer"], Row] | None = None
    opened: OpenedData = field(default_factory=OpenedData)

    def __call__(self, cell: Cell, folder: Path) -> Row:
        """Train, or go on, or do nothing if it is done; return its row.

        Beside figures, or `diverged`, that has `elapsed` and, if it was trained now,
        `step_seconds`, `epoch_steps` and `test_seconds`.
        """
        if self.examine and (kept := kept_row(folder)):
            return kept
        run = RunFolder(folder)
        if run.state == "running":  # perhaps by a process that a killed one left, which saves
            say(f"another process is training in {folder}: waiting for it")
        while run.state == "running":
            time.sleep(POLL)
        try:
            diverged = run.state == FAILED
            found = {FAILED: run.decisions.diverged} if diverged else self._timed(cell, folder)
        except DivergedError as error:
            found = {FAILED: str(error)}
        if self.examine and read_environment(os.environ).first:
            folder.mkdir(parents=True, exist_ok=True)
            write_text(folder / ROW_FILE, json.dumps(found, indent=1) + "\n")
            rmtree(run.checkpoints, ignore_errors=True)
        return found

    def _timed(self, cell: Cell, folder: Path) -> Row:
        began, lines = time.monotonic(), list[tuple[float, dict[str, Any]]]()
        run = self.run(cell.recipe, folder, lambda line: lines.append((time.monotonic(), line)))
        found = self.examine(cell, run, self) if self.examine else run.metrics
        return {**found, "elapsed": time.monotonic() - began, **_pace(lines)}

    def run(self, recipe: Recipe, folder: Path, on_line: OnLine | None = None) -> Run:
        """Train, or go on, or do nothing if it is done; return the run.

        Raises:
            DivergedError: the run diverged.
        """
        return train(
            recipe,
            folder,
            start=self.setup.start,
            resume=RunFolder(folder).started,
            host=self.setup.host,
            on_line=on_line,
            transform=self.setup.transform,
            loss=self.setup.loss,
            opened=self.opened,
            command=self.setup.command,
            quiet=self.quiet,
        )


def kept_row(folder: Path) -> Row | None:
    """Return the row of a run that is finished and examined; None for any other."""
    try:
        return read_json(folder / ROW_FILE, RunError)
    except RunError:
        return None


def _pace(lines: Sequence[tuple[float, dict[str, Any]]]) -> dict[str, float]:
    """Return the seconds of a step, without the first ones, and of the last test."""
    steps = [each for each in lines if each[1]["kind"] == "train"]
    if len(steps) < 3 or not steps[-1][1]["epoch"]:
        return {}
    (start, first), (end, last) = steps[1], steps[-1]
    tested = [moment for moment, line in lines if moment > end and line["kind"] in TESTS]
    return {
        "step_seconds": (end - start) / (last["step"] - first["step"]),
        "epoch_steps": last["step"] / last["epoch"],
        "test_seconds": min(tested, default=end) - end,
    }


@dataclass(frozen=True)
class Experiment:
    """Cells with one purpose, in one folder.

    Attributes:
        campaign: its ledger
        out: the folder that the names of cells begin in
        trainer: trains them
        first: whether this process writes and reports, of those that torchrun started
        again: what the user does to continue it
    """

    campaign: CampaignFolder
    out: Path
    trainer: CellTrainer
    first: bool
    again: str = AGAIN

    @property
    def setup(self) -> Setup:
        """How the cells are run."""
        return self.trainer.setup

    def run(self, cell: Cell) -> RunFolder:
        """Return the folder of a cell."""
        return RunFolder(self.out / cell.name)

    @property
    def places(self) -> dict[str, str]:
        """Where its runs and its page are, as the command's JSON names them."""
        return {"run": str(self.out), "report": str(self.campaign.report)}

    def say(self, text: str) -> None:
        """Print a message for the user, once for all processes."""
        if self.first and not self.trainer.quiet:
            say(text)

    def finish(self, result: dict[str, Any], page: TablePage) -> dict[str, Any]:
        """Write down what it has come to, as JSON values and as a page; return the former."""
        say(*result.get("notes", ()))
        with named_if_slow("drawing the page"):
            write_tables(self.campaign.report, replace(page, command=self.setup.command))
        self.campaign.finish(result)
        return result


def agreed(host: Host, make: Callable[[], Any]) -> Any:
    """Do something in the first of torchrun's processes, and return its JSON value in all of them.

    Raises:
        UserError: as in the first process.
    """
    with joined(host.device, host.timeout) as (world, _):
        return world.from_first(make)


def begin(
    kind: str,
    settings: dict[str, Any],
    recipe: Recipe,
    out: str | Path | None,
    name: Path,
    setup: Setup,
    *,
    of_run: bool = False,
    again: str = AGAIN,
) -> Experiment:
    """Start or continue an experiment.

    Args:
        kind: what it is, in one word
        settings: what may not change when it is continued, as JSON values
        recipe: that it varies, which may not change either
        out: its folder; None for a new one
        name: of a new one, in `runs/`
        setup: how its cells are run
        of_run: whether the folder is that of a run that it decides, and its own is inside
        again: what the user does to continue it; anything but `resume` if the same call does

    Raises:
        RunError: the folder is in the way, or its experiment was started otherwise.
        OptionError: several jobs at the same time under torchrun, or a cluster beside others.
        PackageError: Ray is not installed.
        DiskError: it cannot be written to.
    """
    check_on(setup.on, ShardNumber.of(setup.cells, "cells"), "cells")
    with joined(setup.host.device, setup.host.timeout) as (world, _):
        if setup.jobs > 1 and world.size > 1:
            raise OptionError("jobs applies only without torchrun: leave it out")
        out = placed(out, name, resume=setup.resume, world=world)
        campaign = CampaignFolder(out / SWEEP_FOLDER if of_run else out)
        resume = setup.resume or world.restarted or bool(setup.cells) or again != AGAIN
        with world.agreed():
            if of_run and RunFolder(out).may_be_used(resume=True) and not campaign.started:
                raise RunError(
                    f"{out} already contains a run without a sweep: choose another --out"
                )
            if world.first:
                if resume and not campaign.started and again == AGAIN:
                    say(f"no {kind} in {campaign.path} yet: starting it")
                campaign.begin(kind, settings, recipe, resume, setup.command)
        return Experiment(campaign, out, CellTrainer(setup), world.first, again)


def run_cells(
    cells: Sequence[Cell],
    experiment: Experiment,
    left: Callable[[Collection[str]], float] | None = None,
) -> dict[str, Row]:
    """Train every cell, each as soon as those that it follows are done.

    What is finished or has diverged is not repeated, and what was begun goes on: the files of each
    cell say how far it is, so that any process may be killed at any moment.

    Args:
        cells: in the order in which they are preferred
        experiment: its folder, and how the cells are run
        left: from the names of the cells that are done to the seconds that the others take; None
            to go by how long those took

    Returns:
        A row for each cell by its name, in their order.

    Raises:
        DivergedError: a cell diverged that may not.
        CellsLeftError: the part of the cells that was asked for is done.
        RunError: a process died.
        UserError: as `vitlab.train`.
        KeyboardInterrupt: a stop was asked for; the states are saved.
    """
    try:
        rows = _rows(_part(cells, experiment), experiment, left)
    except UserError:
        if experiment.first and not any(experiment.run(each).started for each in cells):
            experiment.campaign.withdraw()
        raise
    except KeyboardInterrupt as stop:
        if str(stop) and experiment.again == AGAIN:
            raise
        said = Interrupted(f"interrupted: {experiment.again}")
        said.quiet = getattr(stop, "quiet", False)
        raise said from stop
    if experiment.setup.cells:
        raise CellsLeftError(
            f"part {experiment.setup.cells} is done, {counted(len(rows), 'run')}: once all parts "
            "are, repeat the command without --cells, with --resume"
        )
    return {cell.name: rows[cell.name] for cell in cells}


def _rows(
    cells: Sequence[Cell], experiment: Experiment, left: Callable[[Collection[str]], float] | None
) -> dict[str, Row]:
    """Train cells; return their rows by their names."""
    waiting, running, rows = list(cells), dict[str, Cell](), dict[str, Row]()
    before = sum(experiment.run(each).state in OVER for each in cells)
    setup, began = experiment.setup, time.monotonic()
    jobs = len(cells) if setup.on and setup.jobs == 1 else min(setup.jobs, len(cells))

    def pace(_: Collection[str]) -> float:
        new = len(rows) - before
        return (time.monotonic() - began) / new * (len(cells) - len(rows)) if new > 0 else 0.0

    def done(cell: Cell, found: Row) -> None:
        rows[cell.name] = {**cell.labels, **found, "run": str(experiment.run(cell).path)}
        meter.show(len(rows), "runs")
        _tell(cell, found, experiment)
        if (rest := (left or pace)(rows)) and len(rows) < len(cells):
            experiment.say(f"{len(rows)} of {len(cells)} runs done, about {duration(rest)} left")

    title = "timing" if experiment.trainer.quiet else "done"
    with (
        _processes(experiment, jobs) as processes,
        Meter(len(cells), title=title, shown=experiment.first, is_even=False) as meter,
    ):
        meter.show(0, "runs")
        while waiting or running:
            ready = (each for each in waiting if rows.keys() >= set(each.after))
            cell = next(ready, None) if len(running) < jobs else None
            if cell is None:
                assert processes is not None  # of one process, each is done at once
                name, found = processes.finished()
                done(running.pop(name), found)
                continue
            waiting.remove(cell)
            if failed := [name for name in cell.models if FAILED in rows[name]]:
                rows[cell.name] = {FAILED: f"{failed[0]} did"}
                _tell(cell, rows[cell.name], experiment)
                continue
            settled = (
                cell.settle(cell, [rows[each] for each in cell.after]) if cell.settle else cell
            )
            if settled is None:
                rows[cell.name] = {}
                continue
            cell = replace(settled, settle=None)  # which cannot be sent
            experiment.say(f"run {len(cells) - len(waiting)} of {len(cells)}: {cell.title}")
            if processes is None:
                done(cell, experiment.trainer(cell, experiment.run(cell).path))
            else:
                running[cell.name] = cell
                processes.begin(cell.name, cell, experiment.run(cell).path)
    return rows


def _tell(cell: Cell, found: Row, experiment: Experiment) -> None:
    """Say how a cell ended.

    Raises:
        DivergedError: it diverged, and may not: a mean over the others would be too good.
    """
    if message := found.get(FAILED):
        if not cell.may_diverge:
            cause = message.split(":")[0]
            raise DivergedError(
                f"{cell.title} diverged: {cause}: try a lower --lr and another --out"
            )
        experiment.say(f"{cell.title} diverged: {message}")
    elif (metric := main_of(found)) and found[metric.name] is not None:
        experiment.say(f"{cell.title}: {metric.word} {metric.text(found[metric.name])}")


def _part(cells: Sequence[Cell], experiment: Experiment) -> list[Cell]:
    """Return the cells of the part that is asked for, but for those that wait for other parts.

    The cells that they follow come with them, as rows that are done.

    Raises:
        OptionError: it is no part.
    """
    if not experiment.setup.cells:
        return list(cells)
    part = ShardNumber.of(experiment.setup.cells, "cells")
    over = {cell.name for cell in cells if experiment.run(cell).state in OVER}
    own = [cell for cell in cells[part.number :: part.count] if over.issuperset(cell.after)]
    names = {name for cell in own for name in (cell.name, *cell.after)}
    return [cell for cell in cells if cell.name in names]


@contextmanager
def with_room(setup: Setup) -> Iterator[Setup]:
    """Have the cluster that cells are to run on, if any, whose room decides how many jobs.

    Raises:
        RunError: there is none.
    """
    if not check_on(setup.on):
        yield setup
        return
    with cluster() as ray:
        yield replace(setup, jobs=setup.jobs if setup.jobs > 1 else room(ray, setup.host.device)[0])


def _processes(
    experiment: Experiment, jobs: int
) -> AbstractContextManager[SideBySide[Row] | RayTasks[Row] | None]:
    """Return the processes that train several cells at the same time; None for this one alone.

    Raises:
        OptionError: functions or a model of the user's cannot be sent to another process.
    """
    quiet = replace(experiment.trainer, quiet=True, opened=OpenedData())
    if experiment.setup.on:
        return RayTasks(quiet, experiment.setup.host.device, experiment.out, experiment.again)
    if jobs < 2:
        return nullcontext()
    try:
        pickle.dumps(quiet)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise OptionError(
            f"jobs={jobs} needs functions that other processes can import ({error}): define them "
            "in a module, or set jobs to 1"
        ) from None
    threads = max(1, torch.get_num_threads() // jobs)
    return SideBySide(quiet, jobs, threads, experiment.again)
