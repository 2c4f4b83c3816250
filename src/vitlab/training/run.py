"""`vitlab.train`: a run from its recipe to its report."""

import platform
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from vitlab.data.learning import OpenedData
from vitlab.data.loading.order import steps
from vitlab.data.sources.request import Given
from vitlab.device import forked_random, restart_peak
from vitlab.distributed.launch import joined
from vitlab.distributed.world import World
from vitlab.errors import DataError, DeviceError, DiskError, DivergedError, OptionError, RunError
from vitlab.models.cost import cost
from vitlab.models.encoder.recomputing import recomputed
from vitlab.models.model import Model
from vitlab.objectives.classify import Loss
from vitlab.optim.sliced import full
from vitlab.progress import public
from vitlab.recipes.recipe import Host, Recipe
from vitlab.runs.naming import run_name
from vitlab.runs.run_folder import RunFolder
from vitlab.training import rehearsal
from vitlab.training.ending import Run, conclude, finished
from vitlab.training.observer import HeldOut, Observer, measured_on
from vitlab.training.rollback import Rollback
from vitlab.training.saving.checkpoint import Checkpoint
from vitlab.training.saving.saver import Saver
from vitlab.training.saving.state import State
from vitlab.training.session import Session
from vitlab.training.setup.changing import check_same, keep_changes
from vitlab.training.setup.head_start import fitted_start, keep_start
from vitlab.training.setup.hooks import Hooks
from vitlab.training.setup.leaks import applied, find_leaks
from vitlab.training.setup.preparation import Task, first_state, prepare
from vitlab.training.setup.settling import learning_from
from vitlab.training.setup.whereabouts import placed
from vitlab.training.shown.announcing import announce
from vitlab.training.shown.tracking import OnLine, Tracker
from vitlab.training.step.trainer import Trainer
from vitlab.training.step.transform import Transform
from vitlab.training.stop import Stop
from vitlab.weights.save import save

MANY, LONG = (
    5_000,
    1e16,
)  # steps, or operations, from which a run wins back the compiling of its step


@public(recipe=Recipe)
def train(
    recipe: Recipe,
    out: str | Path | None = None,
    *,
    data: Given | None = None,
    start: Model | None = None,
    resume: bool = False,
    change: bool = False,
    host: Host | None = None,
    on_line: OnLine | None = None,
    transform: Transform | None = None,
    loss: Loss | None = None,
    opened: OpenedData | None = None,
    command: str = "",
    quiet: bool = False,
    began: float | None = None,
) -> Run:
    """Train a model by a recipe, test it, and leave a run folder with a report.

    Under torchrun, all processes share every batch; the first one writes and prints.

    Args:
        recipe: what to learn, from `vitlab.recipe`
        out: the run's folder; None for a new one in `runs/`, named after data and model
        data: what to learn from, in place of `recipe.data.data`: any DATA, or labeled images in
            memory (`vitlab.evaluate` says which); a run of images in memory goes on if it is given
            the same ones
        start: a model to start from, in place of `recipe.start.weights`; it stays as it is
        resume: continue the run in that folder, or the newest of that name, to the same bits on a
            CPU; start it if there is none
        change: with `resume`, continue with other options than before (learning rate, schedule,
            clipping, weight decay and other regularization, augmentation), or other functions; the
            change is kept in `run.toml` and holds from there on
        host: device, workers, checkpoints
        on_line: called with each line of metrics.jsonl as it is written, by the first process: a
            dictionary with its `kind` (`train`; `validation`, `test` or `held-out`; `skipped`,
            `rollback`, `result`), `step`, `epoch` and figures; whatever it raises ends the run,
            which can be resumed
        transform: a function of your own that changes the training images of every step, after the
            crop and before the recipe's augmentation: images, uint8 (B, channels, H, W) on the
            training device, and a `torch.Generator` there, seeded by the run's seed and the step,
            to such images
        loss: a function of your own in place of the recipe's loss: scores, float32 (B, classes),
            and targets, float32 (B, classes), as label smoothing and mixing leave them, to the
            loss of each image, (B,), or to their mean
        opened: data that earlier runs have opened and decoded, and later ones find; the same bits
        quiet: print nothing but warnings
        command: what the user typed, for the report
        began: when the clock of `recipe.budget` was started, by `time.monotonic()`; None for now

    Raises:
        UserError: anything the user can fix (see `vitlab.errors`); what is refused before the
            first step leaves no folder.
        KeyboardInterrupt: a stop was asked for; the state is saved, and `resume` continues.
    """
    host, began = host or Host(), began or time.monotonic()
    recipe, images = learning_from(recipe, data)
    with Stop() as stop, joined(host.device, host.timeout) as (world, device), ExitStack() as stack:
        stop.patient, stop.quiet = world.size > 1, not world.first
        place = placed(out, run_name(recipe, start), resume=resume, world=world)
        folder, resume = RunFolder(place, silent=not world.first), resume or world.restarted
        how = resume, world, start, Hooks(transform, loss), images, change, opened
        with world.agreed(), stop.at_once():
            task = prepare(recipe, host, folder, *how)
        agreed = replace(task.recipe, precision=world.broadcast(task.recipe.precision))
        task = replace(task, recipe=agreed)
        result = world.broadcast(folder.result())
        if before := finished(task.folder, result, world):
            return before
        task = _without_leaks(task, world, stop)
        with stop.at_once():
            task = fitted_start(task, world, device)
        with world.agreed(), stop.at_once():
            task.hooks.try_out(task.config, task.objective, task.splits.train.labels, device)
            state = first_state(task, device, world)
        with world.agreed():
            if world.first:
                stack.enter_context(folder.locked())
                _begin(task, resume, command)
        _check_visible(folder, world)
        try:
            done = conclude(task, _train(task, state, world, on_line, stop, began))
        except DivergedError as error:
            if world.first:
                folder.decide(replace(folder.decisions, diverged=str(error)))
            raise
        if on_line is not None and world.first:
            on_line({"kind": "result"} | done.metrics)
        return done


def _begin(task: Task, resume: bool, command: str) -> None:
    """Start the run, whose folder this process holds, or find it as it was prepared for.

    Raises:
        RunError: another process has been at work in the folder meanwhile.
    """
    folder = task.folder
    if folder.may_be_used(resume) != task.started or folder.result():
        raise RunError(
            f"another process has trained in {folder.path} meanwhile: run the command again with "
            "--resume, or choose another --out"
        )
    marks, guide = (task.fingerprint, task.base_fingerprint), task.guide_fingerprint
    with _withdrawn(task):
        if task.started:
            if not task.change:
                task.hooks.check_same(folder)
            check_same(folder, task.recipe, *marks, task.change, guide)
        else:
            folder.keep_duplicates(task.leaks)
            folder.start(task.recipe, task.host, command, *marks, task.hooks.record(), guide)
        if task.guide is not None and not folder.guide.is_dir():
            save(task.guide, folder.guide)
        keep_start(task)


def _without_leaks(task: Task, world: World, stop: Stop) -> Task:
    """Return the task with what the first process knows of test images among the training images.

    If the recipe says so, they are left out.
    """
    with world.agreed(), stop.at_once():
        leaks = _leaks(task) if world.first else None
    leaks = world.broadcast(leaks)
    return replace(task, splits=applied(task.splits, leaks), leaks=leaks)


def _leaks(task: Task) -> dict[str, Any] | None:
    """Return what is known of test images among the training images: found now, or kept."""
    kept = task.folder.duplicates if task.started else None
    found = kept is not None or (task.started and not task.recipe.data.drop_duplicates)
    if found or task.recipe.pretext.unlabeled:  # without labels nothing is tested
        return kept
    return find_leaks(task.recipe, task.host, task.splits, task.seen)


def _check_visible(folder: RunFolder, world: World) -> None:
    """Refuse to train where one of the machines cannot see the run's folder."""
    with world.agreed():
        if not folder.started:
            raise RunError(
                f"{platform.node()} cannot see {folder.path}: put the run folder on storage shared "
                "by all machines"
            )


def _train(
    task: Task, state: State, world: World, on_line: OnLine | None, stop: Stop, began: float
) -> Session:
    """Continue from the newest checkpoint, or the start, to the end."""
    recipe, host, folder, splits = task.recipe, task.host, task.folder, task.splits
    saver = Saver(world, folder.checkpoints, host.checkpoint_every)
    _continue(task, state, saver)
    stop.message = f"interrupted after step {state.step:,}: pass --resume to continue"
    device = next(state.model.parameters()).device
    restart_peak(device)
    compiled, objective = _compiled(task, device), state.task or task.objective
    trainer = Trainer(state.model, recipe, world, compiled, objective, task.hooks.transform)
    with (
        forked_random(device),
        recomputed(trainer.engine.plain, host.checkpoint_activations),
    ):
        session = Session(
            recipe,
            host,
            folder,
            state,
            trainer,
            saver,
            source=task.opened.cached(splits.train, task.config.channels),
            observer=_observer(task, trainer, state, world),
            world=world,
            stop=stop,
            rollback=Rollback(state, saver, folder, lambda: _at_start(task, device, world)),
            began=began,
            chooses=task.fitted is not None and splits.validation is not None,
        )
        announce(task, session)
        stop.check()
        damaged = (task.leaks or {}).get("damaged", ())
        with _withdrawn(task):
            session.observer.note_damage([(0, message) for message in damaged])
            rehearsal.rehearse(session)
        with closing(_tracker(task, state, world, on_line)) as session.tracker:
            session.run()
        return session


def _compiled(task: Task, device: torch.device) -> bool:
    """Return whether the training step is compiled."""
    if task.host.compile != "auto":
        return task.host.compile == "yes"
    recipe = task.recipe
    if device.type != "cuda" or task.config.fit == "native" or recipe.pretext.unlabeled:
        return False
    taken = recipe.steps or steps(recipe.epochs, len(task.splits.train), recipe.batch)
    return bool(recipe.budget) or worth_compiling(taken, recipe.batch * cost(task.config).macs)


def worth_compiling(taken: int, macs: int) -> bool:
    """Return whether a run on a GPU is long enough to win back the time to compile its step.

    On an H100, compiling took 28 to 31 s and saved a fifth of a step of ViT-B/16.

    Args:
        taken: steps of the run
        macs: multiply-adds of a batch's forward pass
    """
    return taken >= MANY or 6 * macs * taken >= LONG  # twice as much backward as forward


@contextmanager
def _withdrawn(task: Task) -> Iterator[None]:
    """Leave no folder of a new run that is refused in the block."""
    try:
        yield
    except (OptionError, DeviceError, DiskError, DataError):
        if not task.started:
            task.folder.withdraw()
        raise


def _continue(task: Task, state: State, saver: Saver) -> None:
    """Become the newest checkpoint, if there is one; write down and say what differs from here."""
    world, folder, found = saver.world, task.folder, saver.load()
    if found is not None:
        state.restore(found)
    with world.agreed():
        remark = folder.continue_from(found.journal if found else b"", state.tally.journal)
        lines = [remark] if remark else []
        if world.first:
            lines += keep_changes(folder, task.recipe, task.hooks.record(), state.step)
    for line in lines:
        world.say(line)


def _at_start(task: Task, device: torch.device, world: World) -> Checkpoint:
    """Return the state before the first step."""
    fresh = first_state(task, device, world).checkpoint()
    tensors = {name: full(tensor) for name, tensor in fresh.tensors.items()}
    return replace(fresh, tensors=tensors, journal=b"")


def _observer(task: Task, trainer: Trainer, state: State, world: World) -> Observer:
    """Return what measures the model, on the validation images if there are any."""
    splits, recipe, host = task.splits, task.recipe, task.host
    chosen, on = splits.validation or splits.test, "validation" if splits.validation else "test"
    if pretext := recipe.pretext.unlabeled:
        chosen, on = measured_on(splits.test), "held-out"
    held_out = task.opened.cached(chosen, task.config.channels)
    return Observer(
        state,
        host,
        world,
        trainer.device,
        held_out=held_out,
        images=task.images,
        tested=len(held_out if pretext else splits.test),
        on=on,
        probe=task.probe,
        own=HeldOut(trainer, recipe, task.config, held_out, host) if pretext else None,
    )


def _tracker(task: Task, state: State, world: World, on_line: OnLine | None) -> Tracker:
    """What the lines of the journal are passed on to, in the first process."""
    own = task.host.track, task.folder, state.step, on_line
    return Tracker(*own) if world.first else Tracker("no", task.folder)
