"""The end of a run: its model, its test, its report."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vitlab.data.classes import most_frequent
from vitlab.data.loading.workers import WorkerDiedError
from vitlab.distributed.parallel import plain
from vitlab.distributed.world import World
from vitlab.errors import DivergedError, RunError
from vitlab.evaluation.intervals import with_intervals
from vitlab.evaluation.metrics import figures
from vitlab.evaluation.paired.examined import keep
from vitlab.evaluation.per_class import class_figures, confused_pairs
from vitlab.evaluation.predictions import Predictions
from vitlab.models.model import Model
from vitlab.progress import named_if_slow
from vitlab.training.pretext.pretext_ending import conclude_pretext
from vitlab.training.session import Session
from vitlab.training.setup.preparation import Task
from vitlab.training.shown.figures_of_run import figures_of_run, notes_of_run
from vitlab.weights.deltas import delta
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


def conclude(task: Task, session: Session, world: World) -> Run:
    """Save the model, test it, write the report, and finish the journal.

    Raises:
        RunError: the run folder was removed, or a data-loading worker died.
        DivergedError: the model's answers are not numbers.
        Interrupted: a stop was asked for before the test was done; the report takes seconds, and
            is finished.
    """
    if task.recipe.pretext.unlabeled:
        figures, own = conclude_pretext(task, session, world)
        return Run(task.folder.path, figures, own.cpu(), world.rank)
    model = plain(session.state.evaluated).eval()
    with world.agreed():
        if world.first:
            task.folder.check()
            save(model, task.folder.model)
            if task.base is not None and task.recipe.start.tune != "all":
                delta(model, task.base).save(task.folder.delta)
    try:
        images = f"{len(task.splits.test):,} images"
        with session.stop.at_once(), named_if_slow(f"testing on {images}", world.first):
            predictions = session.observer.test(task.splits.test, model)
    except WorkerDiedError as error:
        raise RunError(f"{error}; pass --resume to finish the run") from error
    metrics: dict[str, Any] = {}
    with world.agreed():
        if world.first:
            _check_converged(task, predictions)
            metrics = _result(task, session, model, predictions)
            task.folder.check()
            task.folder.journal.write({"kind": "result"} | metrics)
            task.folder.journal.sync()
    return Run(task.folder.path, world.broadcast(metrics), model.cpu(), world.rank)


def _result(task: Task, session: Session, model: Model, predictions: Predictions) -> dict[str, Any]:
    """Return the run's figures, once they are in its report, if it is to have one."""
    results, classes = (predictions.probabilities, predictions.labels), task.splits.classes
    metrics = with_intervals(*results) | figures_of_run(session, model)
    if (usual := most_frequent(task.splits)) is not None:
        metrics["majority"] = usual[1]
    metrics |= _without_leaks(task, predictions)
    metrics["classes"] = [each.as_dict() for each in class_figures(*results, classes)]
    metrics["confused"] = [each.as_dict() for each in confused_pairs(*results, classes)]
    notes = notes_of_run(task, session)
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
    if not leaks.get("test") or leaks["dropped"]:
        return {}
    others = np.flatnonzero(~np.isin(predictions.indices, leaks["test"]))
    result: dict[str, Any] = {"trained_on": len(predictions.indices) - len(others)}
    if len(others) and not predictions.labels.several:
        rest = figures(predictions.probabilities[others], predictions.labels.take(others))
        result["accuracy_without"] = rest["accuracy"]
    return result
