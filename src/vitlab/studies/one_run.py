"""One run of a study in one process: train, test, measure, count, and keep the figures."""

import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from vitlab.data.learning import OpenedData
from vitlab.data.settings import Data
from vitlab.device import choose
from vitlab.distributed.launch import read_environment
from vitlab.distributed.shares import counted
from vitlab.distributed.world import ALONE
from vitlab.errors import DivergedError
from vitlab.files import write_text
from vitlab.recipes.recipe import Host, Recipe
from vitlab.runs.run_folder import RunFolder
from vitlab.studies.design import Measure, Trained
from vitlab.studies.jobs import FAILED, RATE, Figures
from vitlab.training.ending import Run
from vitlab.training.first_state import first_state
from vitlab.training.plan import batches_of
from vitlab.training.resolve import prepare
from vitlab.training.run import train
from vitlab.training.step import Trainer

FIGURES = "figures.json"
IMAGES = 8  # of the step that is counted: every product is in proportion
KEPT = (
    "accuracy", "top5", "nll", "ece", "loss", "params", "macs", "seconds", "images_per_second",
    "peak_memory", "images",
)  # fmt: skip


@dataclass(frozen=True)
class Work:
    """What a process is told to do.

    Attributes:
        recipe: what to learn
        folder: of the run
        measure: what is measured of the trained model
        host: where to train
        command: what the user typed
        log: file for what the run prints; None to print it
        counted: whether to count the multiply-adds of a step
        downstream: data that pre-trained models are transferred to
        rate: the factor of the learning rate that is tried; 0 in a run of the table
    """

    recipe: Recipe
    folder: Path
    measure: Measure | None
    host: Host
    command: str = ""
    log: Path | None = None
    counted: bool = False
    downstream: str = ""
    rate: float = 0.0


def kept_figures(folder: Path) -> Figures | None:
    """Return the figures of a run that is finished and measured; None for any other."""
    try:
        found = json.loads((folder / FIGURES).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def perform(work: Work, opened: OpenedData) -> Figures:
    """Train, or go on, or do nothing if it is done; return the figures.

    A finished run keeps its model and no checkpoints, which take several times as much of the disk.
    A run that diverged has the figure `diverged`, the message, and is not repeated. Of several
    processes that torchrun started, the first one writes and measures.

    Args:
        work: what to do
        opened: data that earlier runs of this process have opened

    Raises:
        UserError: as `vitlab.train`.
        KeyboardInterrupt: a stop was asked for; the state is saved.
    """
    if kept := kept_figures(work.folder):
        return kept
    rate: Figures = {RATE: work.rate} if work.rate else {}
    with _printing_to(work.log):
        began = time.monotonic()
        times: list[tuple[float, int, float]] = []  # time, step, epoch of each training line
        host = replace(work.host, report="no", check_duplicates="no")

        def note(line: dict[str, Any]) -> None:
            if line["kind"] == "train":
                times.append((time.monotonic(), line["step"], line["epoch"]))

        try:
            run = train(
                work.recipe, work.folder, resume=True, host=host, command=work.command,
                on_line=note, opened=opened,
            )  # fmt: skip
        except DivergedError as error:
            figures = rate | {FAILED: str(error)}
            if not read_environment(os.environ).first:
                return figures
        else:
            if run.rank:
                return run.metrics | rate
            figures = rate | {key: run.metrics[key] for key in KEPT if key in run.metrics}
            figures |= _of_journal(run.folder)
            figures |= _spent(work.recipe, figures)
            if work.measure is not None:
                trained = time.monotonic()
                figures |= work.measure(_trained(work, run, opened))
                figures["measure_seconds"] = time.monotonic() - trained
        figures |= {"elapsed": time.monotonic() - began} | _pace(times)
        if work.counted:
            figures["step_macs"] = step_macs(work.recipe, work.host, opened)
        work.folder.mkdir(parents=True, exist_ok=True)
        write_text(work.folder / FIGURES, json.dumps(figures, indent=1) + "\n")
        shutil.rmtree(RunFolder(work.folder).checkpoints, ignore_errors=True)  # it never goes on
        return figures


def _trained(work: Work, run: Run, opened: OpenedData) -> Trained:
    splits, channels = opened.splits(work.recipe.data, unlabeled=False), run.model.config.channels
    train, test = (opened.cached(each, channels) for each in (splits.train, splits.test))
    splits = replace(splits, train=train, test=test)
    there = Data(data=work.downstream)
    other = opened.splits(there, unlabeled=False) if work.downstream else None
    return Trained(run.model, work.recipe, splits, run.folder, choose(work.host.device), other)


def _pace(times: list[tuple[float, int, float]]) -> dict[str, float]:
    """Return the seconds of a step, without the first ones, and the steps of an epoch."""
    if len(times) < 3 or not times[-1][2]:
        return {}
    (start, first, _), (end, last, epoch) = times[1], times[-1]
    return {"step_seconds": (end - start) / (last - first), "epoch_steps": last / epoch}


def _spent(recipe: Recipe, figures: dict[str, Any]) -> dict[str, float]:
    """Return the operations of all training so far, as the ViT paper counts them (Table 6).

    A multiply-add is two operations and the backward pass is twice the forward one; those of the
    run of the study that this one starts from are added.
    """
    if not {"macs", "steps"} <= set(figures):
        return {}
    before = kept_figures(Path(recipe.start.weights)) if recipe.start.weights else None
    own = 6.0 * figures["macs"] * figures["steps"] * recipe.batch
    return {"flops": own + (before or {}).get("flops", 0.0)}


def _of_journal(folder: Path) -> dict[str, float]:
    """Return the loss at the end of training and the number of its steps."""
    lines = [line for line in RunFolder(folder).journal.read() if line["kind"] == "train"]
    return {"train_loss": final_loss(lines), "steps": lines[-1]["step"]} if lines else {}


def final_loss(lines: list[dict[str, Any]]) -> float:
    """Return the mean training loss over the last tenth of a run; one batch says little.

    Args:
        lines: of the journal, of the kind `train`; each has the mean since the one before
    """
    last = lines[-1]["step"]
    ends = [0, *(line["step"] for line in lines)]
    spans = [end - start for start, end in pairwise(ends)]
    chosen = [
        (span, line["loss"])
        for span, line in zip(spans, lines, strict=True)
        if line["step"] > 0.9 * last
    ]
    return sum(span * loss for span, loss in chosen) / sum(span for span, _ in chosen)


@contextmanager
def _printing_to(log: Path | None) -> Iterator[None]:
    """Let the block print into a file, so that several processes do not mix their lines."""
    if log is None:
        yield
        return
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8") as file, redirect_stdout(file), redirect_stderr(file):
        yield


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
    with FlopCounterMode(display=False, custom_mapping=FURTHER) as counter:
        trainer.accumulate(counted(batch, ALONE), seed=0)
    gradients = 2 if recipe.optimizer.rho else 1  # SAM computes two
    return gradients * counter.get_total_flops() / 2 / few


def _attention(queries: torch.Size, keys: torch.Size, *_: Any, **__: Any) -> int:
    """Return the operations of attention: logits, then the mixture of values."""
    return 4 * queries.numel() * keys[-2]


def _attention_backward(_: torch.Size, *shapes: Any, **__: Any) -> int:
    """Return those of its gradient, two products for each; logits computed anew do not count."""
    return 2 * _attention(*shapes[:2])


# What the counter does not know, or counts by how a kernel works rather than by what it computes.
FURTHER = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
    torch.ops.aten._scaled_dot_product_flash_attention_backward: _attention_backward,
    torch.ops.aten._scaled_dot_product_efficient_attention_backward: _attention_backward,
    torch.ops.aten._scaled_dot_product_cudnn_attention_backward: _attention_backward,
}
