"""The end of a run: its model, its test, its report."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
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
from vitlab.evaluation.answers import answers_of
from vitlab.evaluation.calibration import Calibration, before_and_after, temperature_of
from vitlab.evaluation.examined import keep
from vitlab.evaluation.intervals import with_intervals
from vitlab.evaluation.metrics import METRICS, figures
from vitlab.evaluation.paired_tests import pairs_of
from vitlab.evaluation.per_class import class_figures, confused_pairs
from vitlab.evaluation.predictions import Predictions
from vitlab.evaluation.records import RunRecord
from vitlab.models.cost import cost
from vitlab.models.model import Model
from vitlab.models.packed import Packed
from vitlab.objectives.pretext_task import PretextTask
from vitlab.progress import named_if_slow
from vitlab.recipes.decisions import Decisions
from vitlab.runs.run_folder import RunFolder
from vitlab.training.observer import Observer
from vitlab.training.saving.state import State
from vitlab.training.setup.preparation import Task
from vitlab.training.stop import Stop
from vitlab.units import percent
from vitlab.weights.deltas import delta
from vitlab.weights.load import load
from vitlab.weights.save import save

CALIBRATES = 50  # validation images from which on their temperature is better than none
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
    metrics: RunRecord
    model: Model
    rank: int = 0


def finished(folder: RunFolder, result: Any, world: World = ALONE) -> Run | None:
    """Return a run that has been finished before, with its result; None if there is none."""
    if not result:
        return None
    world.say(f"the run in {folder.path} is already finished")
    return Run(folder.path, RunRecord(result), load(folder.model), world.rank)


class Ended(Protocol):
    """What the end of a run needs of it: a `Session`, or a head that was fitted.

    Attributes:
        state: where the run stands
        observer: tests the model
        decisions: what the run has decided
        stop: whether a stop was asked for
        world: this process among those of the run
    """

    state: State
    observer: Observer
    decisions: Decisions
    stop: Stop
    world: World


def conclude(task: Task, session: Ended) -> Run:
    """Save the model, test it, write the report, and finish the journal.

    Raises:
        RunError: the run folder was removed, or a data-loading worker died.
        DivergedError: the model's answers are not numbers.
        Interrupted: a stop was asked for before the test was done; the report takes seconds, and
            is finished.
    """
    if task.recipe.pretext.unlabeled:
        return _conclude_pretext(task, session)
    model = plain(session.state.evaluated).eval()
    found = _calibrated(task, session, model)
    done = saved_and_tested(task, session, model, logits=found is not None)
    own = _beside_start(task, session, done)
    if found is not None and session.world.first:
        own["calibration"] = before_and_after(model, found, done)
    return reported(task, session, model, done, own)


def _calibrated(task: Task, session: Ended, model: Model) -> Calibration | None:
    """Fit the temperature to the validation images, which the model then has.

    None if they are too few; the classifier that was fitted first has been calibrated.
    """
    source, temperature = task.splits.validation, 1.0
    if source is None or len(source) < CALIBRATES or session.state.best.untrained:
        return None
    done = _predictions(session, source, model, logits=True)
    _check_converged(task, session, done)
    if done.logits is not None and session.world.first:
        temperature = temperature_of(done.logits, done.labels)
    found = Calibration(session.world.broadcast(temperature), task.recipe.data.data, len(source))
    model.provenance |= found.provenance
    return found


def _beside_start(task: Task, session: Ended, done: Predictions) -> dict[str, Any]:
    """Return what training has made of the classifier that was fitted first, if one was.

    The interval of the difference is that of two models on the same images.

    Args:
        task: the run
        session: as it ended
        done: predictions of its model for the test images
    """
    if task.fitted is None:
        return {}
    before, change = done, ", and is kept"
    if not session.state.best.untrained:
        fitted = task.fitted.to(session.observer.device)
        before = _predictions(session, task.splits.test, fitted)
    if not session.world.first:
        return {}
    first = figures(before.probabilities, before.labels)["accuracy"]
    about = task.fitted.provenance["head_start"] | {"accuracy": first}
    if before is not done:
        both = [answers_of(each.probabilities, each.labels) for each in (before, done)]
        gap = pairs_of(both)[0].differences["accuracy"]
        about |= {"gain": gap.value, "gain_interval": gap.interval}
        low, high = gap.interval or (-1.0, 1.0)
        change = f", training changed that by {METRICS['accuracy'].gap(gap.value, gap.interval)}"
        change += ", which chance may explain: vitlab probe needs no training" * (low <= 0 <= high)
        change += f"; it is {task.folder.head_start}"
    line = f"the fitted classifier: {percent(first)} of the test images{change}"
    session.world.say(line)
    return {"head_start": about, "notes": [line]}


def saved_and_tested(
    task: Task, session: Ended, model: Model, *, logits: bool = False
) -> Predictions:
    """Save the model of a run with labels, and return its predictions for the test images.

    Raises:
        RunError: the run folder was removed, or a data-loading worker died.
        DivergedError: the predictions are not numbers.
        Interrupted: a stop was asked for.
    """
    with session.world.agreed():
        if session.world.first:
            task.folder.check()
            save(model, task.folder.model)
            if task.base is not None and task.recipe.start.tune != "all":
                delta(model, task.base).save(task.folder.delta)
    with session.stop.at_once():
        found = session.observer.known(task.splits.test)
    found = found or _predictions(session, task.splits.test, model, logits=logits)
    _check_converged(task, session, found)
    return found


def _predictions(
    session: Ended, source: Source, model: Model, *, logits: bool = False
) -> Predictions:
    """Return a model's predictions at the end of a run."""
    slow = named_if_slow(f"testing on {len(source):,} images", session.world.first)
    try:
        with session.stop.at_once(), slow:
            return session.observer.predict(source, model, logits=logits)
    except WorkerDiedError as error:
        raise RunError(f"{error}; pass --resume to finish the run") from error


def reported(
    task: Task, session: Ended, model: Model, done: Predictions, own: dict[str, Any]
) -> Run:
    """Write the figures of a run with labels, and its report.

    Args:
        task: the run
        session: as it ended
        model: its model, saved
        done: its predictions for the test images
        own: further figures, by the keys of the command's JSON, and further `notes`

    Raises:
        RunError: the run folder was removed.
    """
    return _concluded(task, session, model, lambda: _result(task, session, model, done, own))


def _concluded(
    task: Task, session: Ended, model: Model, figures: Callable[[], dict[str, Any]]
) -> Run:
    """Return the finished run, with figures that the first process works out and writes down."""
    metrics, world = dict[str, Any](), session.world
    with world.agreed():
        if world.first:
            metrics = figures()
            task.folder.check()
            task.folder.journal.write({"kind": "result"} | metrics)
            task.folder.journal.sync()
    found = RunRecord(world.broadcast(metrics))
    return Run(task.folder.path, found, model.cpu(), world.rank)


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
    notes = [*_notes_of(task, session), *own.get("notes", ())]
    metrics |= task.folder.places | {"notes": notes}
    task.folder.check()
    keep(task.folder, model, task.splits.test, predictions)
    if task.host.report == "yes":
        from vitlab.report.gather import write_report  # draws with matplotlib, slow to import
        from vitlab.report.survey import survey

        seen = survey(task.splits, model.config.channels)
        write_report(task.folder, model, task.splits.test, predictions, metrics, notes, seen)
    return metrics | task.folder.places


def _check_converged(task: Task, session: Ended, done: Predictions) -> None:
    """Refuse a model whose answers are not numbers, and leave none behind.

    Raises:
        DivergedError: they are not, though every step was finite.
    """
    with session.world.agreed():
        if not session.world.first or not np.isnan(done.probabilities).any():
            return
        shutil.rmtree(task.folder.model, ignore_errors=True)
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


def _conclude_pretext(task: Task, session: Ended) -> Run:
    """Conclude a run that learned without labels."""
    model, world = session.state.evaluated.eval(), session.world
    with world.agreed():
        if world.first:
            task.folder.check()
            model.provenance = session.state.model.provenance
            model.seen = session.state.model.seen
            save(model, task.folder.model)
    point = _last_point(task, session)
    if point is None:
        with session.stop.at_once(), named_if_slow("measuring the held-out images", world.first):
            point = session.observer.measure()
    known = point
    return _concluded(task, session, model, lambda: _held_out_result(task, session, model, known))


def _last_point(task: Task, session: Ended) -> dict[str, float] | None:
    """Return what was measured after the last step; None if earlier weights are kept."""
    if task.recipe.patience:
        return None
    lines = task.folder.journal.read() if session.world.first else []
    found = [
        {key: value for key, value in line.items() if key not in POSITION}
        for line in lines
        if line["kind"] == session.observer.on and line["step"] == session.state.step
    ]
    point: dict[str, float] | None = session.world.broadcast(found[-1] if found else None)
    return point


def _held_out_result(
    task: Task, session: Ended, model: Model, point: dict[str, float]
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
