"""Time that the runs of an experiment take, found beforehand by timing a few steps.

A timed run is one of a few steps in a folder that vanishes. How the cells share the machine is
simulated, so that a plan says when the last of them ends. Where nothing is timed, the first steps
of the first run say how long all of them take.
"""

import math
import os
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

from vitlab.distributed.launch import read_environment
from vitlab.documents import read_json
from vitlab.errors import OptionError, RunError
from vitlab.experiments.campaign_folder import CampaignFolder
from vitlab.experiments.cells import (
    FAILED,
    Cell,
    CellTrainer,
    Experiment,
    Row,
    Setup,
    agreed,
    run_cells,
    with_room,
)
from vitlab.files import vanishing_folder
from vitlab.recipes.recipe import Recipe
from vitlab.training.budget import SOON
from vitlab.training.session import SHORT
from vitlab.units import duration, seconds

STEPS, WARM = 9, 3  # of a timed run, the first two of which do not count; of one that makes ready
SCRATCH = "vitlab-timing-"  # prefix of the folder of runs that are timed; it vanishes with them
MOST = 300.0  # epochs per relative one: more is not planned however large the budget
LOOK = 0.5  # seconds between two looks at the first run
LEAST = 20  # steps of a run, below which it teaches nothing
MARGIN = 1.25  # of the budget that a refusal names: the next timing may be slower


@dataclass(frozen=True)
class RunCost:
    """What the runs of one kind cost on this device.

    Attributes:
        fixed: seconds that do not depend on the length: opening data, the last test
        step: seconds of a training step
        steps: of an epoch of all training images
        macs: multiply-adds of a step, those of the backward pass included
        measure: seconds of what is measured of each model, except of those that only search
        test: seconds of a test on held-out images
    """

    fixed: float
    step: float
    steps: float
    macs: float
    measure: float = 0.0
    test: float = 0.0

    @property
    def epoch_macs(self) -> float:
        """Multiply-adds of an epoch of all training images."""
        return self.macs * self.steps

    def steps_of(self, cell: Cell, epochs: float = 1.0) -> float:
        """Return the steps of a cell whose epochs are relative to a number of them."""
        recipe = cell.recipe
        if recipe.budget:
            left = seconds(recipe.budget) - self.fixed
            return max(0.0, left / self.step) if self.step else 0.0
        return recipe.steps or recipe.epochs * epochs * self.steps * learned_share(recipe)

    def of_work(self, macs: float, steps: float, tests: float) -> Self:
        """Return the cost of other runs on this device, in proportion to their work.

        Args:
            macs: of their steps
            steps: of an epoch of all training images
            tests: work of their tests, that of these being 1
        """
        longer = self.test * (tests - 1)
        fixed = max(0.0, self.fixed + longer)
        step = self.step * macs / self.macs
        test = self.test + longer
        return replace(self, fixed=fixed, step=step, steps=steps, macs=macs, test=test)

    def seconds(self, cell: Cell, epochs: float = 1.0) -> float:
        """Return the seconds of a cell."""
        steps = self.steps_of(cell, epochs)
        measure = 0.0 if cell.searches else self.measure
        passes = steps / (self.steps * learned_share(cell.recipe)) if self.steps else 0.0
        tests = max(0, math.ceil(passes / cell.recipe.test_every) - 1)
        tests *= not cell.recipe.budget  # which they are part of
        return self.fixed + measure + self.step * steps + self.test * tests


def learned_share(recipe: Recipe) -> float:
    """Return the share of the training images that a run learns from; others are held out."""
    _, _, folds = recipe.data.fold.partition("/")
    return (1 - recipe.data.dev_share) * (1 - 1 / int(folds) if folds else 1)


@dataclass(frozen=True)
class Plan:
    """How long the runs are, and what each costs.

    Attributes:
        epochs: passes over the training images per relative epoch of a cell
        costs: by the kind of the cell
        timing: seconds that it took to find the costs
        unit: multiply-adds of 1 where the length of a cell is given in them
    """

    epochs: float
    costs: Mapping[str, RunCost]
    timing: float = 0.0
    unit: float = 0.0

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Return the plan whose fields are these JSON values."""
        costs = {name: RunCost(**cost) for name, cost in values["costs"].items()}
        return cls(values["epochs"], costs, values["timing"], values["unit"])

    @classmethod
    def kept(cls, file: Path) -> Self | None:
        """Return the plan in a file; None if there is none.

        Raises:
            RunError: it is damaged.
        """
        if not file.is_file():
            return None
        try:
            return cls.of(read_json(file, RunError))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise RunError(f"{file} is damaged ({error}): choose another --out") from error

    def seconds(self, cells: Sequence[Cell], jobs: int, done: Collection[str] = ()) -> float:
        """Return the seconds until all cells are done, started as `run_cells` starts them.

        Args:
            cells: in the order in which they are preferred
            jobs: cells at the same time
            done: names of those that are finished already
        """
        free = [0.0] * jobs
        ends = dict.fromkeys(done, 0.0)
        waiting = [cell for cell in cells if cell.name not in ends]
        while waiting:
            now = min(free)
            ready = (c for c in waiting if all(ends.get(name, math.inf) <= now for name in c.after))
            if (cell := next(ready, None)) is None:  # idle until another process's next run ends
                free[free.index(now)] = min(each for each in (*free, *ends.values()) if each > now)
                continue
            waiting.remove(cell)
            own = self.costs[cell.kind].seconds(cell, self.epochs)
            free[free.index(now)] = ends[cell.name] = now + own
        return max(ends.values(), default=0.0)

    def macs(self, cells: Sequence[Cell]) -> float:
        """Return the multiply-adds of all training."""
        costs = [(cell, self.costs[cell.kind]) for cell in cells]
        return sum(cost.macs * cost.steps_of(cell, self.epochs) for cell, cost in costs)

    def within(self, budget: float, cells: Sequence[Cell], jobs: int) -> Self:
        """Return the longest plan within a budget, to which the timing counts.

        Args:
            budget: seconds
            cells: all runs, whose epochs are relative
            jobs: runs at the same time

        Raises:
            OptionError: the budget is too small for runs of at least 20 steps.
        """

        def takes(epochs: float) -> float:
            return replace(self, epochs=epochs).seconds(cells, jobs) + self.timing

        low = 0.0
        high = MOST
        if takes(MOST) <= budget:
            low = MOST
        while high - low > 1e-6:
            middle = (low + high) / 2
            low, high = (middle, high) if takes(middle) <= budget else (low, middle)
        epochs = rounded(low, math.floor) if low else 0.0
        ones = [0 if c.recipe.steps else self.costs[c.kind].steps_of(c) for c in cells]
        least = max(rounded(LEAST / one, math.ceil) if one else 0.0 for one in ones)
        if epochs < least:
            need = MARGIN * takes(least)
            text = f"{math.ceil(need)}s" if need < 120 else f"{math.ceil(need / 60)}m"
            raise OptionError(
                f"{len(cells)} runs of at least {LEAST} steps need --budget {text}: set it, "
                "or fewer --seeds or rows (--only)"
            )
        return replace(self, epochs=epochs)


def rounded(epochs: float, how: Callable[[float], int]) -> float:
    """Return a number above 0 with two significant digits, so that noise does not change it.

    Args:
        epochs: the number
        how: `math.floor` or `math.ceil`
    """
    digit = 10.0 ** (math.floor(math.log10(epochs)) - 1)
    return float(f"{how(round(epochs / digit, 6)) * digit:.2g}")


def of_forward(cell: Cell, row: Row) -> float:
    """Return the multiply-adds of a training step per image; the backward pass counts twice."""
    return 3.0 * float(row.get("macs", 0.0))


def timed(
    cells: Sequence[Cell],
    trainer: CellTrainer,
    place: Path,
    macs: Callable[[Cell, Row], float] = of_forward,
) -> dict[str, RunCost]:
    """Return the cost of each kind of cells, found by a run of a few steps.

    The first run in a process takes longer, and does not count.

    Args:
        cells: one of each kind, after those whose models it needs
        trainer: trains them, as many at the same time as later
        place: an empty folder, which gets the runs
        macs: multiply-adds of a training step per image, from a cell and its row

    Raises:
        UserError: as `vitlab.train`: what would be refused later is refused here.
    """
    quiet = replace(trainer, quiet=True)
    scratch = Experiment(CampaignFolder(place), place, quiet, True, again="repeat the command")

    def brief(cell: Cell, steps: int, **fields: Any) -> Cell:
        recipe = cell.recipe.changed(steps=steps, budget="")
        return replace(cell, recipe=recipe, settle=None, may_diverge=True, **fields)

    first = brief(cells[0], WARM, searches=True)
    warm = [replace(first, name=f"warm-{n}") for n in range(trainer.setup.jobs)]
    few = [brief(cell, STEPS) for cell in cells]
    rows = run_cells([*warm, *few], scratch)
    return {cell.kind: _cost(cell, rows[cell.name], macs) for cell in few}


def _cost(cell: Cell, row: Row, macs: Callable[[Cell, Row], float]) -> RunCost:
    if FAILED in row:  # within a few steps: it will cost next to nothing
        return RunCost(0.0, 0.0, 1.0, 0.0)
    step = row.get("step_seconds", 0.0)
    measure = row.get("measure_seconds", 0.0)
    return RunCost(
        fixed=max(row.get("elapsed", 0.0) - STEPS * step - measure, 0.0),
        step=step,
        steps=row.get("epoch_steps", 1.0) / learned_share(cell.recipe),
        macs=macs(cell, row) * cell.recipe.batch,
        measure=measure,
        test=row.get("test_seconds", 0.0),
    )


@contextmanager
def scratch_folder(setup: Setup, within: Path | None = None) -> Iterator[Path]:
    """Have a folder that vanishes, the same for all processes of torchrun or nodes of a cluster."""
    place = within or (Path.cwd() if setup.on else None)
    with ExitStack() as stack:
        made = agreed(
            setup.host, lambda: str(stack.enter_context(vanishing_folder(SCRATCH, place)))
        )
        yield Path(made)


def dry_run(cells: Sequence[Cell], setup: Setup) -> dict[str, Any]:
    """Return what cells would cost, by runs of a few steps; leave nothing behind.

    Returns:
        `runs`, `at_once`, `macs`, `seconds` in all, and `rows`: of each cell its `name`, `epochs`
        or `steps`, and `seconds` by itself. Empty in every process but the first of torchrun's.

    Raises:
        UserError: as `vitlab.train`.
    """
    kinds = {cell.kind: cell for cell in reversed(cells)}
    first = [replace(cell, after=()) for cell in kinds.values()]
    with with_room(replace(setup, cells="")) as setup, scratch_folder(setup) as place:
        costs = timed(first, CellTrainer(setup), place)
    if not read_environment(os.environ).first:
        return {}
    plan = Plan(1.0, costs)
    rows = [
        {"name": cell.name, **length_of(cell.recipe), "seconds": costs[cell.kind].seconds(cell)}
        for cell in cells
    ]
    return {
        "runs": len(cells),
        "at_once": setup.jobs,
        "macs": plan.macs(cells),
        "seconds": plan.seconds(cells, setup.jobs),
        "rows": rows,
    }


def length_of(recipe: Recipe, epochs: float = 1.0) -> dict[str, float | str]:
    """Return `budget`, `steps` or `epochs` of a recipe, these relative to a number of them."""
    if recipe.budget:
        return {"budget": recipe.budget}
    return {"steps": recipe.steps} if recipe.steps else {"epochs": recipe.epochs * epochs}


# Where nothing is timed before


@contextmanager
def length_told(cells: Sequence[Cell], experiment: Experiment) -> Iterator[None]:
    """Say how long all runs take: by their budgets, or once the first of them has taken some steps.

    Args:
        cells: about equally long for an epoch, but for their kinds
        experiment: its folder, and how the cells are run
    """
    jobs = experiment.setup.jobs
    waiting = [each for each in cells if not experiment.run(each).started]
    if not experiment.first or experiment.setup.cells or len(waiting) < 2:
        yield
        return
    budgets = [seconds(cell.recipe.budget) for cell in waiting]
    if all(budgets):
        experiment.say(f"{len(waiting)} runs: at most about {duration(sum(budgets) / jobs)}")
        yield
        return
    end = threading.Event()
    say_when_known = partial(copy_context().run, _tell_length, waiting, experiment, end)
    thread = threading.Thread(target=say_when_known, daemon=True)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


def _tell_length(cells: Sequence[Cell], experiment: Experiment, end: threading.Event) -> None:
    """Wait for some steps of the first run, and say how long all of them take."""
    while not end.wait(LOOK):
        begun = next((cell for cell in cells if experiment.run(cell).started), None)
        if begun is None:
            continue
        try:
            lines = experiment.run(begun).journal.read()
        except RunError:
            continue
        steps = [line for line in lines if line.get("kind") == "train" and line.get("epoch")]
        if len(steps) < 3 or (since := steps[-1]["seconds"] - steps[0]["seconds"]) < SOON:
            continue
        pace = since / (steps[-1]["step"] - steps[0]["step"])
        whole = steps[-1]["step"] / steps[-1]["epoch"] / learned_share(begun.recipe)
        costs = dict.fromkeys((each.kind for each in cells), RunCost(0.0, pace, whole, 0.0))
        left = Plan(1.0, costs).seconds(cells, experiment.setup.jobs, _outside(cells))
        if left >= SHORT:
            experiment.say(f"about {duration(left)} for all {len(cells)} runs")
        return


def _outside(cells: Sequence[Cell]) -> set[str]:
    """Return the names of cells that these follow and that are not among them."""
    return {name for cell in cells for name in cell.after} - {cell.name for cell in cells}
