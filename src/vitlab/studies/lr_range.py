"""A learning-rate range test: how the loss answers to a rate that rises from step to step.

Source: Smith, Cyclical learning rates for training neural networks, 2017, section 3.3; exponential
steps, smoothing and the tenth of the minimum as fastai made them known.
"""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitlab.data.loading.batches import Batch
from vitlab.data.loading.loader import choose_workers, training_loader
from vitlab.data.loading.workers import deaths_explained, deaths_reported_late
from vitlab.distributed.launch import joined
from vitlab.distributed.shares import counted
from vitlab.distributed.world import World
from vitlab.errors import DataError, DivergedError, OptionError, RunError
from vitlab.files import is_empty, write_text
from vitlab.progress import Meter
from vitlab.recipes.choices import Average, Schedule
from vitlab.recipes.recipe import Host, Recipe
from vitlab.report.table_page import TablePage, write_tables
from vitlab.runs.naming import folder_name
from vitlab.runs.run_folder import RunFolder
from vitlab.training.plan import batches_of, step_seed
from vitlab.training.setup.preparation import Task, first_state, prepare
from vitlab.training.setup.whereabouts import placed
from vitlab.training.step.trainer import Trainer
from vitlab.training.stop import Stop

SMOOTHING = 0.9  # decay of the moving average of the loss
BLOWN_UP = 4.0  # times the lowest smoothed loss so far: the test ends
FEWEST = 10  # steps before it may end, so that a first unlucky batch does not end it
FILES = ("result.json", "rates.svg", "report.html")


@dataclass(frozen=True)
class Reading:
    """What was measured.

    Attributes:
        rates: the learning rate of each step
        losses: the mean loss of each step's batch, before the step
        smoothed: their moving average, corrected for its start
    """

    rates: list[float]
    losses: list[float]
    smoothed: list[float]

    @property
    def lowest(self) -> int:
        """The step with the lowest smoothed loss."""
        return int(np.argmin(self.smoothed))

    @property
    def suggestion(self) -> float | None:
        """A tenth of the rate at the lowest smoothed loss; None if the loss never fell."""
        return self.rates[self.lowest] / 10 if self.lowest else None

    @property
    def steepest(self) -> float | None:
        """The rate at which the smoothed loss falls fastest, over the logarithm of the rate."""
        if self.lowest < 2:
            return None
        until = self.lowest + 1
        slopes = np.gradient(self.smoothed[:until], np.log(self.rates[:until]))
        return self.rates[int(np.argmin(slopes))]


def study(
    recipe: Recipe,
    out: str | Path | None = None,
    host: Host | None = None,
    lr_low: float = 1e-6,
    lr_high: float = 10.0,
    lr_steps: int = 100,
    command: str = "",
) -> dict[str, Any]:
    """Train a few steps with a rising learning rate, and suggest one for the recipe.

    The rate rises exponentially; the test ends when the smoothed loss is four times its lowest
    value, or not finite. The suggested rate is a tenth of that at the lowest smoothed loss. Nothing
    is kept of the training: no run folder, no checkpoints.

    Args:
        recipe: data, model, optimizer, batch and augmentation; its rate and schedule do not matter,
            and the average of the weights is left out
        out: folder of the figures; None for a new one, `runs/study-lr-DATA`
        host: where to train
        lr_low: the first learning rate
        lr_high: that of the last step
        lr_steps: number of steps
        command: what the user typed

    Returns:
        The JSON of `vitlab study lr`: the suggested `lr` (None if the loss never fell), `steepest`,
        `lowest`, and `rates`, `losses`, `smoothed`.

    Raises:
        OptionError: a range that does not rise.
        RunError: the folder contains something else.
        UserError: as `vitlab.train`.
        KeyboardInterrupt: a stop was asked for; nothing is kept.
    """
    if lr_low >= lr_high:
        raise OptionError(f"lr_low={lr_low:g} must be below lr_high={lr_high:g}")
    host, name = host or Host(), folder_name("study-lr", recipe.data.data)
    plain = replace(
        recipe, schedule=Schedule(schedule="constant"), average=Average(), budget="", patience=0
    )
    rates = np.geomspace(lr_low, lr_high, lr_steps).tolist()
    with joined(host.device, host.timeout) as (world, device):
        with world.agreed():
            folder = placed(out, name, resume=False, world=world)
            if not is_empty(folder, *FILES):
                raise RunError(
                    f"{folder} contains something else than a study: choose another --out"
                )
            nowhere = RunFolder(folder / "run", silent=True)
            task = prepare(plain, host, nowhere, resume=False, world=world)
        world.say(f"{task.config.name}: {lr_steps} steps from lr {lr_low:g} to {lr_high:g}")
        with deaths_reported_late(), deaths_explained():
            reading = measured(task, world, device, rates)
        if not world.first:
            return {}
        return _written(folder, _result(task, reading, command))


def measured(task: Task, world: World, device: torch.device, rates: Sequence[float]) -> Reading:
    """Train a new model with these rates, one per step, until the loss has blown up.

    Raises:
        DivergedError: the loss or gradient of the untrained model is not finite.
        DataError: every image is damaged.
        KeyboardInterrupt: a stop was asked for.
    """
    recipe, reading, mean, best = task.recipe, Reading([], [], []), 0.0, math.inf
    forked = [device] if device.type == "cuda" else []
    with (
        Stop(patient=world.size > 1) as stop,
        torch.random.fork_rng(devices=forked),
        Meter(len(rates), title="range test", shown=world.first) as meter,
    ):
        state = first_state(task, device, world)
        objective = state.task or task.objective
        trainer = Trainer(state.model, recipe, world, objective=objective)
        for step, batch in enumerate(_batches(task, world, len(rates))):
            figures = trainer.step(state, batch, rates[step], step_seed(recipe.seed, step))
            if world.any(stop.asked)[0]:
                raise KeyboardInterrupt("stopped; nothing of the test is kept")
            if figures.fault and not step:
                raise DivergedError(
                    f"the {figures.fault} is not finite before the first step: check the images "
                    "and the model"
                )
            if figures.fault:
                break
            if not figures.images:  # all of them damaged
                continue
            loss = figures.loss / figures.images
            mean = SMOOTHING * mean + (1 - SMOOTHING) * loss
            reading.rates.append(rates[step])
            reading.losses.append(loss)
            reading.smoothed.append(mean / (1 - SMOOTHING ** len(reading.losses)))
            best = min(best, reading.smoothed[-1])
            meter.show(step + 1, f"lr {rates[step]:.1e}  loss {loss:.3f}")
            if step >= FEWEST and reading.smoothed[-1] > BLOWN_UP * best:
                break
    if not reading.losses:
        raise DataError(f"no image of {recipe.data.data} could be decoded")
    return reading


def _batches(task: Task, world: World, steps: int) -> Iterator[Batch]:
    """Yield the first batches of the recipe, this process's share of each."""
    recipe, source = task.recipe, task.opened.cached(task.splits.train, task.config.channels)
    batches = batches_of(recipe, source, task.config, world)
    workers = choose_workers(source, task.host.workers, world.local_size)
    for batch in training_loader(batches, 0, steps, workers):
        yield counted(batch, world)


def _result(task: Task, reading: Reading, command: str) -> dict[str, Any]:
    """Return the JSON of the study."""
    return {
        "study": "lr",
        "data": task.recipe.data.data,
        "model": task.config.name,
        "optimizer": task.recipe.optimizer.optimizer,
        "lr": reading.suggestion,
        "steepest": reading.steepest,
        "lowest": reading.rates[reading.lowest],
        "steps": len(reading.rates),
        "rates": reading.rates,
        "losses": reading.losses,
        "smoothed": reading.smoothed,
        "command": command,
    }


def _written(folder: Path, result: dict[str, Any]) -> dict[str, Any]:
    """Write the figures, the drawing and the page; return the figures and where they are."""
    from vitlab.report.drawings.drawing import standalone  # draws with matplotlib, slow to import
    from vitlab.report.drawings.rate_chart import loss_by_rate

    names = ("rates", "losses", "smoothed", "lr", "steepest")
    drawing = loss_by_rate(*(result[name] for name in names))
    write_text(folder / FILES[0], json.dumps(result, indent=1) + "\n")
    write_text(folder / FILES[1], standalone(drawing))
    lead = _advice(result)
    title = f"Learning-rate range test: {result['model']} on {result['data']}"
    page = TablePage(title, lead, drawings=[drawing], command=result["command"])
    write_tables(folder / FILES[2], page)
    places = {"run": folder, "picture": folder / FILES[1], "report": folder / FILES[2]}
    return result | {name: str(place) for name, place in places.items()}


def _advice(result: dict[str, Any]) -> str:
    """Return what the test says, in a sentence."""
    if result["lr"] is None:
        return "The loss never fell: lower --lr-low, or check the data and the model."
    return (
        f"Suggested with {result['optimizer']}: lr {result['lr']:.2g}, a tenth of the rate at the "
        f"lowest smoothed loss ({result['lowest']:.2g})."
    )


HEAD = ("figure", "value")


def table(result: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return the result as text, in the columns of `HEAD`."""
    rates = [(name, result[name]) for name in ("lr", "steepest", "lowest")]
    rows = [(name, "none" if rate is None else f"{rate:.2g}") for name, rate in rates]
    names = ("steps", "picture", "report")
    return [*rows, *((name, str(result[name])) for name in names), ("advice", _advice(result))]
