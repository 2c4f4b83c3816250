"""Figures of a study's run beside its own: training loss, operations, counted steps, costs."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from vitlab.data.learning import OpenedData, splits_of
from vitlab.data.settings import Data
from vitlab.device import choose
from vitlab.distributed.shares import counted
from vitlab.distributed.world import ALONE
from vitlab.experiments.cells import Cell, CellTrainer, Row, kept_row
from vitlab.experiments.timing import Cost
from vitlab.measure.rates import device_rates
from vitlab.models.cost import cost
from vitlab.recipes.recipe import Host, Recipe
from vitlab.runs.run_folder import RunFolder
from vitlab.studies.design import Arm, Measure, Trained
from vitlab.training.ending import Run
from vitlab.training.first_state import first_state
from vitlab.training.plan import batches_of
from vitlab.training.resolve import prepare
from vitlab.training.step import Trainer

KEPT = (
    "accuracy", "top5", "nll", "ece", "loss", "params", "macs", "seconds", "images_per_second",
    "peak_memory", "images",
)  # fmt: skip
IMAGES = 8  # of the step that is counted: every product is in proportion
REACHED = 1 / 3  # of the rate of matrix products, by the papers' own recipes


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
        opened, channels = trainer.opened, run.model.config.channels
        splits = opened.splits(cell.recipe.data, unlabeled=False)
        train, test = (opened.cached(each, channels) for each in (splits.train, splits.test))
        there = Data(data=self.downstream)
        return Trained(
            run.model,
            cell.recipe,
            replace(splits, train=train, test=test),
            run.folder,
            choose(trainer.setup.host.device),
            opened.splits(there, unlabeled=False) if self.downstream else None,
        )


def final_loss(lines: list[dict[str, Any]]) -> float:
    """Return the mean training loss over the last tenth of a run; one batch says little.

    Args:
        lines: of the journal, of the kind `train`; each has the mean since the one before
    """
    last, steps = lines[-1]["step"], [0, *(line["step"] for line in lines)]
    spans = [end - start if end > 0.9 * last else 0 for start, end in pairwise(steps)]
    return sum(n * line["loss"] for n, line in zip(spans, lines, strict=True)) / sum(spans)


def step_macs(recipe: Recipe, host: Host | None = None, opened: OpenedData | None = None) -> float:
    """Return the multiply-adds of a training step, per image of the batch.

    Those of matrix products, convolutions and attention, forward and backward, of everything that
    the step computes: decoder, momentum teacher, tokenizer and further crops too, and nothing for
    gradients of frozen weights. They are counted as a step of a few images is taken.

    Args:
        recipe: names its data, and the weights that it starts from
        host: where to take the step
        opened: where the data may have been opened before

    Raises:
        UserError: as `vitlab.train`.
    """
    host = host or Host()
    few = min(recipe.batch, IMAGES)
    recipe = recipe.changed(steps=1, batch=few, micro_batch=0)
    with TemporaryDirectory(prefix="vitlab-cost-") as place:
        folder = RunFolder(Path(place) / "run", silent=True)  # which is never begun
        task = prepare(recipe, host, folder, resume=False, world=ALONE, opened=opened)
    state = first_state(task, choose(host.device), ALONE)
    trainer = Trainer(state.model, recipe, objective=state.task or task.objective)
    batch = batches_of(recipe, task.splits.train, task.config, ALONE)[0]
    # attention as plain products: a fused kernel may count what it computes anew, or be unknown
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        trainer.accumulate(counted(batch, ALONE), seed=0)
    gradients = 2 if recipe.optimizer.rho else 1  # SAM computes two
    return gradients * counter.get_total_flops() / 2 / few


def counted_costs(arms: Sequence[Arm], host: Host) -> dict[str, Cost]:
    """Return the cost of a run of each arm: its multiply-adds at the rate of this device.

    A step of the papers' own recipes may take an hour. The backward pass counts twice. Testing is
    left out, and so is what a recipe saves by hiding patches. The rate is that of large matrix
    products, a third of which training reaches.

    Args:
        arms: of the study, each after the arm it starts from
        host: where to train

    Raises:
        UserError: data that cannot be opened, or a model that cannot be built.
    """
    precision = "fp32" if choose(host.device).type == "cpu" else "bf16"
    pace = REACHED * device_rates(host.device).of(precision) / 2
    macs, found = dict[str, float](), dict[str, Cost]()
    for arm in arms:  # without a model of its own it has that of the arm before
        some = {} if arm.recipe.pretext.unlabeled else {"classes": 10}
        own = arm.recipe.model.model and cost(arm.recipe.model.config(**some)).macs
        macs[arm.name] = own or macs[arm.after or arm.guide]
        step = 3 * macs[arm.name] * arm.recipe.batch
        steps = len(splits_of(arm.recipe.data).train) / arm.recipe.batch
        found[arm.name] = Cost(0.0, step / pace, steps, step)
    return found
