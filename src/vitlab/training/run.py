"""`vitlab.train`: a run from its recipe to its report."""

import platform
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitlab import device as devices
from vitlab.data.classes import class_lines, most_frequent
from vitlab.data.loading.cache import cached
from vitlab.distributed.launch import joined
from vitlab.distributed.parallel import plain
from vitlab.distributed.world import World
from vitlab.errors import RunError
from vitlab.evaluation.intervals import with_intervals
from vitlab.evaluation.metrics import figures
from vitlab.evaluation.predictions import Predictions
from vitlab.models.cost import cost
from vitlab.models.model import Model
from vitlab.optim.schedule import warmup_steps
from vitlab.recipes.recipe import Host, Recipe
from vitlab.runs import RunFolder, folder_of
from vitlab.training import rehearsal
from vitlab.training.leaks import applied, find_leaks
from vitlab.training.preparation import Task, first_state, prepare
from vitlab.training.saving.saver import Saver
from vitlab.training.saving.state import State
from vitlab.training.session import Session
from vitlab.training.step.recompute import recomputed
from vitlab.training.step.trainer import Trainer
from vitlab.training.stop import Stop
from vitlab.training.tracking import OnLine, Tracker
from vitlab.weights.deltas import delta
from vitlab.weights.load import load
from vitlab.weights.save import save


@dataclass(frozen=True)
class Run:
    """A finished run.

    Attributes:
        folder: the run's folder
        metrics: its figures, the keys of the command's JSON
        model: the trained model, on the CPU
        rank: this process's number if torchrun started several; number 0 reports to the user
    """

    folder: Path
    metrics: dict[str, Any]
    model: Model
    rank: int = 0


def train(
    recipe: Recipe,
    out: str | Path | None = None,
    *,
    start: Model | None = None,
    resume: bool = False,
    host: Host | None = None,
    on_line: OnLine | None = None,
    command: str = "",
) -> Run:
    """Train a model by a recipe, test it, and leave a run folder with a report.

    Under torchrun, all processes share every batch; the first one writes and prints.

    Args:
        recipe: what to learn, from `vitlab.recipe`
        out: the run's folder; None for a name in `runs/` made of data, recipe and seed
        start: a model to start from, in place of `recipe.start.weights`; it stays as it is
        resume: continue the run in that folder, to the same bits on a CPU; start it if there is
            none
        host: device, workers, checkpoints
        on_line: called with each line of metrics.jsonl as it is written, by the first process: a
            dictionary with its `kind` (`train`, `test`, `result`), `step`, `epoch` and figures;
            whatever it raises ends the run, which can be resumed
        command: what the user typed, for the report

    Raises:
        UserError: anything the user can fix (see `vitlab.errors`); what is refused before the
            first step leaves no folder.
        KeyboardInterrupt: a stop was asked for; the state is saved, and `resume` continues.
    """
    host = host or Host()
    with joined(host.device, host.timeout) as (world, device), ExitStack() as stack:
        out = out or folder_of(recipe)
        folder = RunFolder(out, silent=not world.first)
        with world.agreed():
            task = prepare(recipe, host, folder, resume or world.restarted, world, start)
        if result := world.broadcast(folder.result() if task.started else None):
            world.say(f"the run in {folder.path} is already finished")
            return Run(folder.path, result, load(folder.model), world.rank)
        with world.agreed():
            leaks = _leaks(task) if world.first else None
        leaks = world.broadcast(leaks)
        task = replace(task, splits=applied(task.splits, leaks), leaks=leaks)
        with world.agreed():
            state = first_state(task, device, world)
        with world.agreed():
            if world.first:
                stack.enter_context(folder.locked())
                if not task.started:
                    marks = task.fingerprint, task.base_fingerprint
                    folder.start(task.recipe, host, command, *marks)
                    folder.keep_duplicates(leaks)
        with world.agreed():
            _check_visible(folder)
        done = _conclude(task, _train(task, state, world, on_line), world)
        if on_line is not None and world.first:
            on_line({"kind": "result"} | done.metrics)
        return done


def _leaks(task: Task) -> dict[str, Any] | None:
    """Return what is known of test images among the training images: found now, or kept."""
    kept = task.folder.duplicates if task.started else None
    if kept is not None or (task.started and not task.recipe.data.drop_duplicates):
        return kept
    return find_leaks(task.recipe, task.host, task.splits)


def _check_visible(folder: RunFolder) -> None:
    """Refuse to train where this machine cannot see the run's folder."""
    if not folder.started:
        raise RunError(
            f"{platform.node()} cannot see {folder.path}: put the run folder on storage shared by "
            "all machines"
        )


def _train(task: Task, state: State, world: World, on_line: OnLine | None) -> Session:
    """Continue from the newest checkpoint, or the start, to the end."""
    recipe, host, folder, splits = task.recipe, task.host, task.folder, task.splits
    saver = Saver(world, folder.checkpoints, host.checkpoint_every)
    found = saver.load()
    if found is not None:
        state.restore(found)
    folder.journal.cut(state.tally.journal)
    model, channels = state.model, task.config.channels
    compiled = host.compile == "yes"
    device = next(model.parameters()).device
    if host.compile == "auto":
        compiled = device.type == "cuda" and task.config.fit != "native"  # a graph per size
    trainer = Trainer(model, recipe, world, compiled, task.objective)
    with (
        Stop(patient=world.size > 1) as stop,
        closing(_tracker(task, state, world, on_line)) as tracker,
        torch.random.fork_rng(devices=[device] if device.type == "cuda" else []),
        recomputed(trainer.engine.plain, host.checkpoint_activations),
    ):
        session = Session(
            recipe,
            host,
            folder,
            state,
            trainer,
            saver,
            source=cached(splits.train, channels),
            held_out=cached(splits.validation or splits.test, channels),
            images=task.images,
            world=world,
            stop=stop,
            tracker=tracker,
            probe=task.probe,
        )
        _announce(task, session)
        rehearsal.rehearse(session)
        session.run()
    return session


def _tracker(task: Task, state: State, world: World, on_line: OnLine | None) -> Tracker:
    """What the lines of the journal are passed on to, in the first process."""
    if not world.first:
        return Tracker("no", task.folder)
    return Tracker(task.host.track, task.folder, state.step, on_line)


def _announce(task: Task, session: Session) -> None:
    """Tell the user what will be trained, on what, for how long."""
    config, plan, world, splits = task.config, session.plan, session.world, task.splits
    price = cost(config)
    rows, columns = config.size
    lines = [
        f"{config.name} for {rows}x{columns}x{config.channels} and {config.classes} classes: "
        f"{price.params / 1e6:.2f} M parameters, {price.macs / 1e9:.3g} GMACs"
    ]
    images = f"{len(splits.train):,} training and {len(splits.test):,} test images"
    processes = f"{world.size} processes, " if world.size > 1 else ""
    planned = f"{plan.total:,} steps"
    if task.recipe.budget and not session.decisions.plan:
        planned = f"as many steps as fit into {task.recipe.budget}"
    place = f"{processes}{session.trainer.device}; run folder {task.folder.path}"
    lines.append(f"{images}; {planned} on {place}")
    if warmup_steps(plan.epoch, plan.recipe.schedule) >= plan.total:
        lines.append("the warm-up is as long as the run: the learning rate never reaches its peak")
    if task.base is not None:
        free = sum(w.numel() for w in session.state.model.parameters() if w.requires_grad)
        start = task.recipe.start
        lines.append(
            f"starting from {start.weights or 'the given model'} (fingerprint "
            f"{task.base_fingerprint[:12]}); tune={start.tune} trains {free:,} parameters"
        )
    lines += [*class_lines(splits), *splits.notes]
    if session.state.step:
        lines.append(f"continuing after step {session.state.step:,}")
    for line in lines:
        world.say(line)


def _conclude(task: Task, session: Session, world: World) -> Run:
    """Save the model, test it, write the report, and finish the journal."""
    model = plain(session.state.evaluated).eval()
    with world.agreed():
        if world.first:
            save(model, task.folder.model)
            if task.base is not None and task.recipe.start.tune != "all":
                delta(model, task.base).save(task.folder.delta)
    predictions = session.predict(task.splits.test, model)
    metrics: dict[str, Any] = {}
    with world.agreed():
        if world.first:
            metrics = _result(task, session, model, predictions)
            task.folder.journal.write({"kind": "result"} | metrics)
            task.folder.journal.sync()
    return Run(task.folder.path, world.broadcast(metrics), model.cpu(), world.rank)


def _result(task: Task, session: Session, model: Model, predictions: Predictions) -> dict[str, Any]:
    """Return the run's figures, once they are in its report."""
    from vitlab.report.gather import write_report  # draws with matplotlib, slow to import

    tally, price = session.state.tally, cost(model)
    metrics = with_intervals(predictions.probabilities, predictions.labels) | {
        "model": model.config.name,
        "params": price.params,
        "macs": price.macs,
        "images_per_second": tally.means["images_per_second"],
        "peak_memory": devices.peak_memory(session.trainer.device),
        "seconds": tally.seconds,
        "damaged": len(tally.bad),
    }
    if (usual := most_frequent(task.splits)) is not None:
        metrics["majority"] = usual[1]
    metrics |= _without_leaks(task, predictions)
    notes = [*task.splits.notes, *(f"skipped: {message}" for message in tally.bad)]
    metrics |= task.folder.places | {"notes": notes}
    write_report(task.folder, model, task.splits.test, predictions, metrics, notes)
    return metrics


def _without_leaks(task: Task, predictions: Predictions) -> dict[str, Any]:
    """Return how many test images were learned from, and the accuracy on all others."""
    leaks = task.leaks or {}
    if not leaks.get("test") or leaks["dropped"]:
        return {}
    others = np.flatnonzero(~np.isin(predictions.indices, leaks["test"]))
    result: dict[str, Any] = {"trained_on": len(predictions.indices) - len(others)}
    if len(others) and not predictions.labels.several:
        rest = figures(predictions.probabilities[others], predictions.labels.take(others))
        result["accuracy_without"] = rest["accuracy"]
    return result
