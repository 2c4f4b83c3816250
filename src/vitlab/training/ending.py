"""The end of a run: its model is saved and tested, and its result written down."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vitlab import device as devices
from vitlab.data.augment.normalize import normalize
from vitlab.data.images import Images
from vitlab.data.labels import SingleLabels
from vitlab.data.loading.batches import EvaluationBatches
from vitlab.data.loading.handover import WorkerDiedError
from vitlab.data.summary import most_frequent
from vitlab.distributed.parallel import plain
from vitlab.distributed.world import ALONE, World
from vitlab.errors import DivergedError, RunError
from vitlab.evaluation.answers import answers_of
from vitlab.evaluation.compute import Compute
from vitlab.evaluation.infer import Probabilities, predict
from vitlab.evaluation.intervals import with_intervals
from vitlab.evaluation.mask_figures import Tested
from vitlab.evaluation.metrics import figures
from vitlab.evaluation.paired_tests import pairs_of
from vitlab.evaluation.per_class import class_tables
from vitlab.evaluation.records import RunRecord, cost_figures
from vitlab.evaluation.run_predictions import keep
from vitlab.evaluation.temperature import Calibration, temperature_of
from vitlab.evaluation.unlike import learned_unlike
from vitlab.models.heads.segment import Segmenter
from vitlab.models.model import Model
from vitlab.models.packed import Packed
from vitlab.models.unlike import Unlike
from vitlab.objectives.pretext_task import PretextTask
from vitlab.progress import named_if_slow
from vitlab.recipes.recipe import Host
from vitlab.runs.run_folder import RunFolder
from vitlab.training.checkpoints import Saver
from vitlab.training.first_state import first_state, sign_late
from vitlab.training.leak_record import leak_figures
from vitlab.training.model_choice import ModelChoice
from vitlab.training.observer import Observer
from vitlab.training.outcome import ClassifierTest, ObjectiveTest, Outcome, Run, SegmenterTest
from vitlab.training.resolve import Task
from vitlab.training.step import Trainer
from vitlab.training.stop import Stop
from vitlab.weights.deltas import delta
from vitlab.weights.load import load
from vitlab.weights.save import save
from vitlab.weights.save_head import save_head

CALIBRATES = 50  # validation images from which on their temperature is better than none
PICTURED = 8  # images in the report of a run without labels


def finished(folder: RunFolder, result: Any, world: World = ALONE) -> Run | None:
    """Return a run that has been finished before, with its result; None if there is none."""
    if not result:
        return None
    world.say(f"the run in {folder.path} is already finished")
    return Run(folder.path, RunRecord(result), load(folder.model), world.rank)


def needs_report(folder: RunFolder, host: Host, world: World = ALONE) -> bool:
    """Return whether a finished run has a result that names a report, which is not there.

    If so, the user is told.
    """
    lines = folder.journal.read() if host.draws_report and not folder.report.is_file() else []
    named = any("report" in line for line in lines if line["kind"] == "result")
    is_missing: bool = world.broadcast(named)
    if is_missing:
        world.say("its report is missing: testing it again")
    return is_missing


def conclude(observer: Observer, stop: Stop) -> Outcome:
    """Save the model, test it, and finish the journal.

    Raises:
        RunError: the run folder was removed, or a data-loading worker died.
        DivergedError: the model's answers are not numbers.
        Interrupted: a stop was asked for before the test was done.
    """
    task, state = observer.task, observer.state
    if observer.unlabeled:
        return _conclude_pretext(observer, stop)
    model, found, own = plain(state.evaluated).eval(), None, dict[str, Any]()
    held, untrained = task.splits.validation, state.best.untrained
    if held is not None and len(held) < CALIBRATES:
        held = None
    if untrained:  # the classifier that was fitted first, calibrated then
        model.unlike = None if task.fitted is None else task.fitted.unlike
    elif held is not None:
        found = _calibrated(observer, held, model, stop)
    if not untrained and task.base is not None and not task.recipe.budget:  # which is spent
        model.unlike = _unlike(observer, held, model, stop)
    done = saved_and_tested(observer, model, stop, logits=found is not None)
    if task.fitted is not None:
        before = done
        if not untrained:
            first = task.fitted.to(observer.device)
            before = _predictions(observer, task.splits.test, first, stop)
        with observer.world.agreed():
            own = _beside_start(observer, before, done)
    if found is not None and observer.world.first:
        own["calibration"] = found.change(model, done)
    return reported(observer, model, done, own)


def _calibrated(observer: Observer, source: Images, model: Model, stop: Stop) -> Calibration:
    """Fit the temperature to the validation images, which the model then has."""
    done = _predictions(observer, source, model, stop, logits=True)
    _check_converged(observer, done)
    temperature = observer.world.from_first(lambda: temperature_of(done.logits, done.labels))
    found = Calibration(temperature, observer.task.recipe.data.data, len(source))
    model.provenance |= found.provenance
    return found


def _unlike(observer: Observer, held: Images | None, model: Model, stop: Stop) -> Unlike | None:
    """Return how far an image is from those that the model has learned from, if they say one class.

    The threshold is that of the validation images, if there are any.
    """
    splits = observer.task.splits
    world = observer.world
    single = isinstance(splits.train.target, SingleLabels)
    if not single or observer.task.config.fit == "native":
        return None
    slow = named_if_slow("measuring how far images are from the training images", world.first)
    with stop.at_once(), slow:
        folds = observer.task.host.effort.folds
        return learned_unlike(model, splits.train, held, observer.compute, world, folds)


def _beside_start(observer: Observer, before: Probabilities, done: Probabilities) -> dict[str, Any]:
    """Return which model is kept, and what training has made of the one that was fitted first.

    Args:
        observer: of the run
        before: predictions of the fitted classifier for the test images
        done: those of the run's model, the same ones if it is that classifier
    """
    task, world = observer.task, observer.world
    if not world.first:
        return {}
    assert task.fitted is not None
    best = observer.state.best
    gain = None
    ends = None
    if before is not done:
        both = [answers_of(each.probabilities, each.labels) for each in (before, done)]
        gap = pairs_of(both, task.host.effort.resamples)[0].differences["accuracy"]
        gain = gap.value
        ends = gap.interval
    choice = ModelChoice(
        keeps_fitted=before is done,
        held=len(task.splits.validation or ()) if best.score >= 0 else 0,
        held_fitted=best.start,
        held_tuned=best.trained,
        images=len(before.labels),
        fitted=figures(before.probabilities, before.labels)["accuracy"],
        gain=gain,
        ends=ends,
        file=task.folder.head_start,
    )
    lines = choice.lines()
    for line in lines:
        world.say(line)
    about = task.fitted.provenance["head_start"] | choice.as_table()
    return {"head_start": about, "notes": lines}


def saved_and_tested(
    observer: Observer, model: Model, stop: Stop, *, logits: bool = False
) -> Probabilities:
    """Save the model of a run with labels, and return its predictions for the test images.

    Raises:
        RunError: the run folder was removed, or a data-loading worker died.
        DivergedError: the predictions are not numbers.
        Interrupted: a stop was asked for.
    """
    task, test = observer.task, observer.task.splits.test
    with observer.world.agreed():
        if observer.world.first:
            task.folder.check()
            sign_late(model, task)
            save(model, task.folder.model)
            if task.base is not None and task.recipe.start.tune != "all":
                delta(model, task.base).save(task.folder.delta)
    with stop.at_once():
        found = observer.known(test)
    found = found or _predictions(observer, test, model, stop, logits=logits)
    _check_converged(observer, found)
    return found


def _predictions(
    observer: Observer, source: Images, model: Model, stop: Stop, *, logits: bool = False
) -> Probabilities:
    """Return a model's predictions at the end of a run."""
    slow = named_if_slow(f"testing on {len(source):,} images", observer.world.first)
    try:
        with stop.at_once(), slow:
            return observer.predict(source, model, logits=logits)
    except WorkerDiedError as error:
        raise RunError(f"{error}; pass --resume to finish the run") from error


def _check_converged(observer: Observer, done: Probabilities) -> None:
    """Refuse a model whose answers are not numbers, and leave none behind.

    Raises:
        DivergedError: they are not, though every step was finite.
    """
    task = observer.task
    with observer.world.agreed():
        if not observer.world.first or not np.isnan(done.probabilities).any():
            return
        shutil.rmtree(task.folder.model, ignore_errors=True)
        task.folder.delta.unlink(missing_ok=True)
        raise DivergedError(
            "non-finite logits after the last step: the run diverged with lr="
            f"{task.recipe.optimizer.lr:g}; start again with a lower --lr and another --out"
        )


def reported(observer: Observer, model: Model, done: Probabilities, own: dict[str, Any]) -> Outcome:
    """Write down the result of a run with labels.

    Args:
        observer: of the run
        model: its model, saved
        done: its predictions for the test images
        own: further figures, by the keys of the command's JSON, and further `notes`

    Raises:
        RunError: the run folder was removed.
    """
    return _concluded(observer, model, lambda: _result(observer, model, done, own))


def _concluded(
    observer: Observer,
    model: Model,
    measure: Callable[[], tuple[dict[str, Any], ClassifierTest | ObjectiveTest | None]],
) -> Outcome:
    """Return the outcome of a run, whose figures the first process works out and writes down."""
    metrics, world, folder = dict[str, Any](), observer.world, observer.task.folder
    test: ClassifierTest | ObjectiveTest | None = None
    with world.agreed():
        if world.first:
            metrics, test = measure()
            metrics |= folder.final_places(observer.task.host)
            folder.check()
            folder.journal.write({"kind": "result"} | metrics)
            folder.journal.sync()
    run = Run(folder.path, RunRecord(world.broadcast(metrics)), model.cpu(), world.rank)
    return Outcome(run, test)


def _result(
    observer: Observer, model: Model, predictions: Probabilities, own: dict[str, Any]
) -> tuple[dict[str, Any], ClassifierTest | None]:
    """Return the run's figures, and what a report shows of its test, if there is to be one."""
    task, splits, folder = observer.task, observer.task.splits, observer.task.folder
    results = predictions.probabilities, predictions.labels
    with named_if_slow("computing intervals"):
        metrics = with_intervals(*results, task.host.effort.resamples)
    metrics |= _cost_of(observer, model) | own
    measured = replace(splits, test=splits.test.take(predictions.indices))  # not what is damaged
    if (usual := most_frequent(measured)) is not None:
        metrics["majority"] = usual[1]
    metrics |= _without_leaks(task, predictions) | class_tables(*results, splits.classes)
    metrics |= folder.places | {"notes": [*_notes_of(observer), *own.get("notes", ())]}
    folder.check()
    keep(folder, model, splits.test, predictions)
    if not task.host.draws_report:
        return metrics, None
    return metrics, ClassifierTest(splits, predictions, observer.compute)


def _without_leaks(task: Task, predictions: Probabilities) -> dict[str, Any]:
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


def _cost_of(observer: Observer, model: Model) -> dict[str, Any]:
    """Return what a run cost and what went wrong in it, by the keys of the command's JSON."""
    tally, device = observer.state.tally, observer.device
    return {
        **cost_figures(model),
        "images_per_second": tally.seen / max(tally.seconds, 1e-9),
        "peak_memory": devices.peak_memory(device),
        "seconds": tally.seconds,
        "device": devices.described(device),
        "damaged": len(tally.bad),
        "skipped_steps": tally.skipped,
        "rollbacks": len(observer.task.folder.decisions.rollbacks),
    }


def _notes_of(observer: Observer) -> list[str]:
    """Return remarks on the data, damaged images and skipped steps."""
    task, tally = observer.task, observer.state.tally
    notes = [*task.splits.notes, *tally.bad.lines()]
    if tally.skipped:
        notes.append(
            f"{tally.skipped:,} of {observer.state.step:,} steps skipped for non-finite or "
            f"exploding losses or gradients; rollbacks to earlier weights: "
            f"{len(task.folder.decisions.rollbacks)}"
        )
    return notes


# Runs without labels


def _conclude_pretext(observer: Observer, stop: Stop) -> Outcome:
    """Conclude a run that learned without labels."""
    state, folder, world = observer.state, observer.task.folder, observer.world
    answering = observer.answering
    model = (plain(state.evaluated) if answering is None else answering.model).eval()
    with world.agreed():
        if world.first:
            folder.check()
            model.provenance, model.seen = state.model.provenance, state.model.seen
            sign_late(model, observer.task)
            save(model, folder.model)
            if answering is not None:
                save_head(answering, folder.path)
    if (known := observer.point) is None:
        with stop.at_once(), named_if_slow("measuring the held-out images", world.first):
            known = observer.measure()
    point = known
    return _concluded(observer, model, lambda: _held_out_result(observer, model, point))


def _held_out_result(
    observer: Observer, model: Model, point: dict[str, float]
) -> tuple[dict[str, Any], ObjectiveTest | None]:
    """Return the run's figures, and what a report shows of its test, if there is to be one."""
    task, notes = observer.task, _notes_of(observer)
    own = _objective_of(observer)
    if set(own.figures) <= set(point):
        notes += own.warnings(point)
    if probe := task.watched:
        lines = task.folder.journal.read()
        kept = f"{point[probe.key]:.1%} of the weights that are kept"
        start = (line[probe.key] for line in lines if line.get("step") == 0 and probe.key in line)
        known = [f"{each:.1%} at the start" for each in start]  # nothing if watched later on
        notes.append(f"{probe.name} on {probe.title}: {', '.join([*known, kept])}")
    test = task.splits.test
    with named_if_slow(f"testing on {len(test):,} images"):
        tested, bad, masks = observer.test(test)
    notes = list(dict.fromkeys([*notes, *(f"skipped: {each}" for each in bad)]))
    if tested:
        tested["test_images"] = tested["images"]
        tested |= leak_figures(task.leaks)
    metrics = point | tested | _cost_of(observer, model) | task.folder.places
    metrics |= {"task": task.recipe.pretext.task, "notes": notes}
    metrics |= {"images": len(task.splits.train), "held_out": len(observer.held_out)}
    if not task.host.draws_report:
        return metrics, None
    return metrics, ObjectiveTest(_pictures(observer), _pixels(observer, masks))


def _objective_of(observer: Observer) -> PretextTask:
    """Return what has learned beside the model."""
    state = observer.state
    learned = state.head if state.answers else state.task
    assert isinstance(learned, PretextTask)
    return learned


def _pixels(observer: Observer, tested: Tested | None) -> SegmenterTest | None:
    """Return the test of pixels, where these were tested."""
    segmenter = observer.answering
    if tested is None or not isinstance(segmenter, Segmenter):
        return None
    return SegmenterTest(segmenter, observer.task.splits.test, tested, observer.compute)


def _pictures(observer: Observer) -> dict[str, NDArray[np.uint8]]:
    """Return what the task shows of a few held-out images, uint8 (B, H, W, 3) by column."""
    state = observer.state
    source = observer.held_out
    model = plain(state.evaluated if state.answers else state.model)
    places = np.unique(np.linspace(0, len(source) - 1, num=PICTURED, dtype=np.int64))
    batch = EvaluationBatches(source.take(places), model.config, PICTURED)[0]
    if isinstance(batch.images, Packed) or not len(batch):
        return {}
    device = next(model.parameters()).device
    images = normalize(batch.images.to(device), model.config)
    generator = torch.Generator(device).manual_seed(0)
    learned = _objective_of(observer).eval()
    with torch.no_grad():
        shown = learned.pictures(model.eval(), images, generator)
    return {name: pixels.cpu().numpy() for name, pixels in shown.items()}


# Runs whose report is missing


def repeat_test(
    task: Task, run: Run, world: World, device: torch.device
) -> ClassifierTest | ObjectiveTest | None:
    """Test a finished run again, whose process was killed before it had written the report.

    Args:
        task: of the run, without the training images that it left out
        run: as it was finished
        world: the processes, which test together
        device: where

    Returns:
        What the report shows, in the first process.
    """
    if not task.recipe.pretext.unlabeled:
        compute = Compute(device, "fp32", "plain", task.host.workers, world.local_size)
        predictions = predict(run.model, task.splits.test, compute, world=world)
        return ClassifierTest(task.splits, predictions, compute) if world.first else None
    state = first_state(task, device, world)
    checkpoint = Saver(world, task.folder.checkpoints, task.host.checkpoint_every).load()
    if checkpoint is None:  # it was removed: the report is without pictures
        return ObjectiveTest()
    state.restore(checkpoint)
    state.adopt_best()
    trainer = Trainer(state.model, task.recipe, world, objective=state.task)
    observer = Observer(task, state, trainer)
    if not world.first:
        return None
    *_, masks = observer.test(task.splits.test)
    return ObjectiveTest(_pictures(observer), _pixels(observer, masks))
