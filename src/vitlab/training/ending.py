"""The end of a run: its model, its test, its report."""

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from vitlab import device as devices
from vitlab.data.augment.augment import normalize
from vitlab.data.loading.batches import EvaluationBatches
from vitlab.data.loading.loader import WorkerDiedError
from vitlab.data.sources.source import Source, Subset
from vitlab.data.summary import most_frequent
from vitlab.distributed.parallel import plain
from vitlab.distributed.world import ALONE, World
from vitlab.errors import DivergedError, RunError
from vitlab.evaluation.examined import keep
from vitlab.evaluation.intervals import with_intervals
from vitlab.evaluation.metrics import figures
from vitlab.evaluation.per_class import class_figures, confused_pairs
from vitlab.evaluation.predictions import Predictions
from vitlab.models.cost import cost
from vitlab.models.model import Model
from vitlab.models.packed import Packed
from vitlab.objectives.pretext_task import PretextTask
from vitlab.progress import named_if_slow
from vitlab.recipes.decisions import Decisions
from vitlab.runs.run_folder import RunFolder
from vitlab.training.observer import Observer
from vitlab.training.saving.state import State
from vitlab.training.session import Session
from vitlab.training.setup.preparation import Task
from vitlab.training.stop import Stop
from vitlab.units import percent
from vitlab.weights.deltas import delta
from vitlab.weights.load import load
from vitlab.weights.save import save

PICTURED = 8  # images in the report of a run without labels
POSITION = ("kind", "step", "epoch", "seconds")  # keys of a line that are no figures


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


def finished(folder: RunFolder, result: Any, world: World = ALONE) -> Run | None:
    """Return a run that has been finished before, with its result; None if there is none."""
    if not result:
        return None
    world.say(f"the run in {folder.path} is already finished")
    return Run(folder.path, result, load(folder.model), world.rank)


class Ended(Protocol):
    """What the end of a run with labels needs of it: a `Session`, or a head that was fitted."""

    @property
    def state(self) -> State:
        """Where the run stands."""

    @property
    def observer(self) -> Observer:
        """Tests the model."""

    @property
    def decisions(self) -> Decisions:
        """What the run has decided."""

    @property
    def stop(self) -> Stop:
        """Whether a stop was asked for."""


def conclude(task: Task, session: Session, world: World) -> Run:
    """Save the model, test it, write the report, and finish the journal.

    Raises:
        RunError: the run folder was removed, or a data-loading worker died.
        DivergedError: the model's answers are not numbers.
        Interrupted: a stop was asked for before the test was done; the report takes seconds, and
            is finished.
    """
    if task.recipe.pretext.unlabeled:
        figures, own = _conclude_pretext(task, session, world)
        return Run(task.folder.path, figures, own.cpu(), world.rank)
    task, started = _with_start(task, session, world)
    return conclude_labeled(task, session, world, started)


def _with_start(task: Task, session: Ended, world: World) -> tuple[Task, dict[str, Any]]:
    """Test the classifier that the run started from, if it was fitted; return its figures."""
    if task.fitted is None:
        return task, {}
    with session.stop.at_once():
        model = task.fitted.to(session.observer.device)
        found = session.observer.predict(task.splits.test, model)
    if not world.first:
        return task, {}
    own = figures(found.probabilities, found.labels)
    line = (
        f"the fitted classifier that training started from: {percent(own['accuracy'])} of the test "
        f"images; it is {task.folder.head_start}"
    )
    splits = replace(task.splits, notes=[*task.splits.notes, line])
    about = task.fitted.provenance["head_start"] | {"accuracy": own["accuracy"]}
    return replace(task, splits=splits), {"head_start": about}


def conclude_labeled(task: Task, session: Ended, world: World, own: dict[str, Any]) -> Run:
    """Conclude a run with labels.

    Args:
        task: the run
        session: as it ended
        world: the processes
        own: further figures, by the keys of the command's JSON

    Raises:
        RunError: as `conclude`, and the others.
    """
    model = plain(session.state.evaluated).eval()
    with world.agreed():
        if world.first:
            task.folder.check()
            save(model, task.folder.model)
            if task.base is not None and task.recipe.start.tune != "all":
                delta(model, task.base).save(task.folder.delta)
    try:
        what = f"testing on {len(task.splits.test):,} images"
        with session.stop.at_once(), named_if_slow(what, world.first):
            predictions = session.observer.test(task.splits.test, model)
    except WorkerDiedError as error:
        raise RunError(f"{error}; pass --resume to finish the run") from error
    metrics: dict[str, Any] = {}
    with world.agreed():
        if world.first:
            _check_converged(task, predictions)
            metrics = _result(task, session, model, predictions, own)
            task.folder.check()
            task.folder.journal.write({"kind": "result"} | metrics)
            task.folder.journal.sync()
    return Run(task.folder.path, world.broadcast(metrics), model.cpu(), world.rank)


def _result(
    task: Task, session: Ended, model: Model, predictions: Predictions, own: dict[str, Any]
) -> dict[str, Any]:
    """Return the run's figures, once they are in its report, if it is to have one."""
    results, classes = (predictions.probabilities, predictions.labels), task.splits.classes
    metrics = with_intervals(*results) | _cost_of(session, model) | own
    if (usual := most_frequent(task.splits)) is not None:
        metrics["majority"] = usual[1]
    metrics |= _without_leaks(task, predictions)
    metrics["classes"] = [each.as_dict() for each in class_figures(*results, classes)]
    metrics["confused"] = [each.as_dict() for each in confused_pairs(*results, classes)]
    notes = _notes_of(task, session)
    metrics |= task.folder.places | {"notes": notes}
    task.folder.check()
    keep(task.folder, model, task.splits.test, predictions)
    if task.host.report == "yes":
        from vitlab.report.gather import write_report  # draws with matplotlib, slow to import
        from vitlab.report.survey import survey

        seen = survey(task.splits, model.config.channels)
        write_report(task.folder, model, task.splits.test, predictions, metrics, notes, seen)
    return metrics | task.folder.places


def _check_converged(task: Task, predictions: Predictions) -> None:
    """Refuse a model whose answers are not numbers, and leave none behind.

    Raises:
        DivergedError: they are not, though every step was finite.
    """
    if not np.isnan(predictions.probabilities).any():
        return
    shutil.rmtree(task.folder.model)
    task.folder.delta.unlink(missing_ok=True)
    raise DivergedError(
        f"the model's answers are not numbers after the last step: it diverged with lr="
        f"{task.recipe.optimizer.lr:g}; start again with a lower --lr and another --out"
    )


def _without_leaks(task: Task, predictions: Predictions) -> dict[str, Any]:
    """Return how many test images were learned from, and the accuracy on all others."""
    leaks = task.leaks or {}
    if leaks.get("learned_from"):
        return {"learned_from": leaks["learned_from"]}
    if not leaks.get("test") or leaks["dropped"]:
        return {}
    others = np.flatnonzero(~np.isin(predictions.indices, leaks["test"]))
    result: dict[str, Any] = {"trained_on": len(predictions.indices) - len(others)}
    if len(others) and not predictions.labels.several:
        rest = figures(predictions.probabilities[others], predictions.labels.take(others))
        result["accuracy_without"] = rest["accuracy"]
    return result


def _cost_of(session: Ended, model: Model) -> dict[str, Any]:
    """Return what a run cost and what went wrong in it, by the keys of the command's JSON."""
    tally, price, device = session.state.tally, cost(model), session.observer.device
    return {
        "model": model.config.name,
        "params": price.params,
        "macs": price.macs,
        "images_per_second": tally.means["images_per_second"],
        "peak_memory": devices.peak_memory(device),
        "seconds": tally.seconds,
        "device": devices.described(device),
        "damaged": len(tally.bad),
        "skipped_steps": tally.skipped,
        "rollbacks": len(session.decisions.rollbacks),
    }


def _notes_of(task: Task, session: Ended) -> list[str]:
    """Return remarks on the data, damaged images and steps that were passed over."""
    tally = session.state.tally
    notes = [*task.splits.notes, *(f"skipped: {message}" for message in tally.bad)]
    if tally.skipped:
        notes.append(
            f"{tally.skipped:,} of {session.state.step:,} steps passed over, because losses or "
            f"gradients were not finite, or exploded; rollbacks to earlier weights: "
            f"{len(session.decisions.rollbacks)}"
        )
    return notes


def _conclude_pretext(task: Task, session: Session, world: World) -> tuple[dict[str, Any], Model]:
    """Save a model that learned without labels; return its figures, in every process, and it."""
    model, metrics = session.state.evaluated.eval(), dict[str, Any]()
    with world.agreed():
        if world.first:
            task.folder.check()
            model.provenance = session.state.model.provenance
            model.seen = session.state.model.seen
            save(model, task.folder.model)
    point = _last_point(task, session, world)
    if point is None:
        with session.stop.at_once(), named_if_slow("measuring the held-out images", world.first):
            point = session.observer.measure()
    with world.agreed():
        if world.first:
            metrics = _held_out_result(task, session, model, point)
            task.folder.check()
            task.folder.journal.write({"kind": "result"} | metrics)
            task.folder.journal.sync()
    return world.broadcast(metrics), model


def _last_point(task: Task, session: Session, world: World) -> dict[str, float] | None:
    """Return what was measured after the last step; None if earlier weights are kept."""
    if task.recipe.patience:
        return None
    lines = task.folder.journal.read() if world.first else []
    found = [
        {key: value for key, value in line.items() if key not in POSITION}
        for line in lines
        if line["kind"] == session.observer.on and line["step"] == session.state.step
    ]
    point: dict[str, float] | None = world.broadcast(found[-1] if found else None)
    return point


def _held_out_result(
    task: Task, session: Session, model: Model, point: dict[str, float]
) -> dict[str, Any]:
    """Return the run's figures, once they are in its report, if it is to have one."""
    own, notes = session.state.task, _notes_of(task, session)
    assert isinstance(own, PretextTask)
    if set(own.figures) <= set(point):
        notes += own.warnings(point)
    metrics = point | {
        "task": task.recipe.pretext.task,
        "images": len(task.splits.train),
        "held_out": len(session.observer.held_out),
        **_cost_of(session, model),
        "notes": notes,
        **task.folder.places,
    }
    if task.host.report == "yes":
        from vitlab.report.pretext.pretext_report import write_pretext_report  # slow to import

        shown = _pictures(plain(session.state.model), own, session.observer.held_out)
        task.folder.check()
        write_pretext_report(task.folder, model, metrics, shown, notes)
    return metrics | task.folder.places


def _pictures(model: Model, own: PretextTask, source: Source) -> dict[str, NDArray[np.uint8]]:
    """Return what the task shows of a few held-out images, uint8 (B, H, W, 3) by column."""
    places = np.unique(np.linspace(0, len(source) - 1, num=PICTURED, dtype=np.int64))
    batch = EvaluationBatches(Subset(source, places), model.config, PICTURED)[0]
    if isinstance(batch.images, Packed) or not len(batch):
        return {}
    device = next(model.parameters()).device
    images = normalize(batch.images.to(device), model.config)
    generator = torch.Generator(device).manual_seed(0)
    own.eval()
    with torch.no_grad():
        shown = own.pictures(model.eval(), images, generator)
    return {name: pixels.cpu().numpy() for name, pixels in shown.items()}
