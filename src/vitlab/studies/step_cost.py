"""Figures of a study's run beside its own: training loss, operations, counted steps, costs."""

import time
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from vitlab.data.opened_data import OpenedData
from vitlab.data.settings import Data
from vitlab.device import choose
from vitlab.distributed.shares import counted
from vitlab.distributed.world import ALONE
from vitlab.experiments.cells import Cell, CellTrainer, Row, kept_row
from vitlab.files import vanishing_folder
from vitlab.models.cost import cost
from vitlab.recipes.recipe import Host, Recipe
from vitlab.runs.run_folder import RunFolder
from vitlab.studies.design import Measure, Trained
from vitlab.training.budget import Pacer
from vitlab.training.first_state import first_state
from vitlab.training.forecast import reckon
from vitlab.training.outcome import Run
from vitlab.training.plan import batches_of
from vitlab.training.resolve import Task, prepare
from vitlab.training.step import Trainer
from vitlab.weights.save import save

KEPT = (
    "accuracy", "top5", "nll", "ece", "loss", "params", "macs", "seconds", "images_per_second",
    "peak_memory", "images",
)  # fmt: skip
IMAGES, FEWEST = 8, 2  # of the step that is counted: every product is in proportion; of large ones
LARGE = 1e9  # multiply-adds of an image's forward pass


@dataclass(frozen=True)
class Examination:
    """Makes the row of a finished run of a study.

    Attributes:
        measure: what is measured of the models of rows, beside their own figures
        rows: the arms that are rows
        downstream: data that pre-trained models are transferred to
    """

    measure: Measure | None
    rows: frozenset[str]
    downstream: str = ""

    def __call__(self, cell: Cell, run: Run, trainer: CellTrainer) -> Row:
        """Return the figures of a finished run, and what is measured of its model."""
        if run.rank:
            return {**run.metrics}
        found: Row = {key: run.metrics[key] for key in KEPT if key in run.metrics}
        lines = [line for line in RunFolder(run.folder).journal.read() if line["kind"] == "train"]
        if lines:
            found |= {"train_loss": final_loss(lines), "steps": lines[-1]["step"]}
        if {"macs", "steps"} <= found.keys():
            # as the ViT paper counts (Table 6): a multiply-add is two operations and the backward
            # pass twice the forward one; those of the run that this one starts from are added
            before = cell.recipe.start.weights and kept_row(Path(cell.recipe.start.weights))
            own = 6.0 * found["macs"] * found["steps"] * cell.recipe.batch
            found["flops"] = own + (before or {}).get("flops", 0.0)
        if self.measure and cell.kind in self.rows and not cell.searches:
            began = time.monotonic()
            found |= self.measure(self._trained(cell, run, trainer))
            found["measure_seconds"] = time.monotonic() - began
        return found

    def _trained(self, cell: Cell, run: Run, trainer: CellTrainer) -> Trained:
        opened = trainer.opened
        channels = run.model.config.channels
        splits = opened.splits(cell.recipe.data)
        train, test = (opened.cached(each, channels) for each in (splits.train, splits.test))
        there = Data(data=self.downstream)
        return Trained(
            run.model,
            cell.recipe,
            replace(splits, train=train, test=test),
            run.folder,
            choose(trainer.setup.host.device),
            opened.splits(there) if self.downstream else None,
        )


def final_loss(lines: list[dict[str, Any]]) -> float:
    """Return the mean training loss over the last tenth of a run; one batch says little.

    Args:
        lines: of the journal, of the kind `train`; each has the mean since the one before
    """
    last = lines[-1]["step"]
    steps = [0, *(line["step"] for line in lines)]
    spans = [end - start if end > 0.9 * last else 0 for start, end in pairwise(steps)]
    return sum(n * line["loss"] for n, line in zip(spans, lines, strict=True)) / sum(spans)


@dataclass(frozen=True)
class StepWork:
    """Work of a run by its recipe, which nothing is timed for.

    Attributes:
        macs: multiply-adds of a training step, forward and backward pass
        steps: of an epoch
        tested: multiply-adds of the test
    """

    macs: float
    steps: float
    tested: float


def step_macs(recipe: Recipe, host: Host | None = None, opened: OpenedData | None = None) -> float:
    """Return the multiply-adds of a training step, per image of the batch, as `step_work` does."""
    return step_work(recipe, host, opened).macs / recipe.batch


def step_work(
    recipe: Recipe,
    host: Host | None = None,
    opened: OpenedData | None = None,
    keep: Path | None = None,
) -> StepWork:
    """Return what a run computes.

    Those of matrix products, convolutions and attention, forward and backward, of everything that
    the step computes: decoder, momentum teacher, tokenizer and further crops too, and nothing for
    gradients of frozen weights. They are counted as a step of a few images is taken.

    Args:
        recipe: names its data, and the weights that it starts from
        host: where to take the step
        opened: where the data may have been opened before
        keep: gets the model, untrained, for recipes that start from it

    Raises:
        UserError: as `vitlab.train`.
    """
    host = host or Host()
    whole = recipe.batch
    recipe = recipe.changed(steps=1, batch=min(whole, IMAGES), micro_batch=0)
    task = _task_of(recipe, host, opened)
    price = float(cost(task.config).macs)
    few = recipe.batch if price < LARGE else min(whole, FEWEST)
    recipe = replace(recipe, batch=few)
    state = first_state(task, choose(host.device), ALONE)
    trainer = Trainer(state.model, recipe, objective=state.task or task.objective)
    batch = batches_of(recipe, task.splits.train, task.config, ALONE, task.order)[0]
    # attention as plain products: a fused kernel may count what it computes anew, or be unknown
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        trainer.accumulate(counted(batch, ALONE), seed=0)
    gradients = 2 if recipe.optimizer.rho else 1  # SAM computes two
    if keep is not None:
        save(state.evaluated, RunFolder(keep).model)
    macs = gradients * counter.get_total_flops() / 2 / few * whole
    return StepWork(macs, len(task.splits.train) / whole, price * len(task.splits.test))


def _task_of(recipe: Recipe, host: Host, opened: OpenedData | None) -> Task:
    """Return a run as it is prepared, which is never begun."""
    with vanishing_folder("vitlab-cost-") as place:
        folder = RunFolder(place / "run", silent=True)
        return prepare(recipe, host, folder, resume=False, world=ALONE, opened=opened)


def reckon_seconds(recipe: Recipe, host: Host, opened: OpenedData) -> tuple[float, float]:
    """Return the seconds of a training step and of a test, from a few steps of few images.

    Args:
        recipe: names its data, and the weights that it starts from
        host: where to take the steps
        opened: where the data may have been opened before

    Raises:
        UserError: as `vitlab.train`.
    """
    task = _task_of(recipe, host, opened)
    pacer = Pacer(0.0, 0.0)
    reckon(task, pacer, ALONE, choose(host.device))
    return pacer.step, pacer.evaluation * pacer.tested
