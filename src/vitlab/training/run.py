"""A run from its recipe to its result, in the order of its events."""

import platform
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from vitlab.data.loading.order import steps
from vitlab.data.opened_data import OpenedData
from vitlab.data.sources.request import Given
from vitlab.device import forked_random, restart_peak
from vitlab.distributed.launch import joined
from vitlab.distributed.world import World
from vitlab.errors import DataError, DeviceError, DiskError, DivergedError, OptionError, RunError
from vitlab.models.cost import cost
from vitlab.models.encoder.recomputing import recomputed
from vitlab.models.model import Model
from vitlab.optim.sliced import full
from vitlab.progress import named_if_slow
from vitlab.recipes.recipe import Host, Recipe
from vitlab.runs.naming import run_name
from vitlab.runs.run_folder import RunFolder
from vitlab.runs.same_data import is_same_data
from vitlab.training import screen, trial_steps
from vitlab.training.budget import Pacer
from vitlab.training.checkpoints import Saver
from vitlab.training.ending import conclude, finished, needs_report, repeat_test
from vitlab.training.first_state import first_state, fitted_start, keep_start
from vitlab.training.forecast import foresee
from vitlab.training.leaks import applied, find_leaks
from vitlab.training.observer import Observer
from vitlab.training.outcome import Outcome
from vitlab.training.own_code import NONE, Hooks
from vitlab.training.resolve import Task, prepare
from vitlab.training.resume import check_same, keep_changes, placed
from vitlab.training.rollback import Rollback
from vitlab.training.run_data import learning_from
from vitlab.training.session import Session
from vitlab.training.state import Checkpoint, RunState
from vitlab.training.step import Trainer
from vitlab.training.stop import Stop
from vitlab.training.tracking import OnLine, Tracker
from vitlab.units import seconds
from vitlab.weights.save import save

MANY = 5_000  # steps from which a run wins back the compiling of its step
LONG = 1e16  # operations from which it does


@dataclass(frozen=True)
class Invocation:
    """The call that asks for a run.

    Attributes:
        command: what the user typed, for the report
        began: when the clock of `recipe.budget` was started, by `time.monotonic()`
    """

    command: str = ""
    began: float = field(default_factory=time.monotonic)


@dataclass(frozen=True, eq=False)
class RunRequest:
    """A run that is asked for; `vitlab.train` says what each field is."""

    recipe: Recipe
    out: str | Path | None = None
    data: Given | None = None
    start: Model | None = None
    resume: bool = False
    change: bool = False
    host: Host = Host()
    on_line: OnLine | None = None
    hooks: Hooks = NONE
    opened: OpenedData | None = None
    invocation: Invocation = field(default_factory=Invocation)


def train_and_test(request: RunRequest) -> Outcome:
    """Train a model by a recipe, test it, and leave a run folder, whose report is still to come.

    Under torchrun, all processes share every batch; the first one writes and prints.

    Raises:
        UserError: as `vitlab.train`, which writes the report too.
        KeyboardInterrupt: a stop was asked for; the state is saved, and `resume` continues.
    """
    host = request.host
    recipe, images = learning_from(request.recipe, request.data)
    with Stop() as stop, joined(host.device, host.timeout) as (world, device), ExitStack() as stack:
        stop.patient, stop.quiet = world.size > 1, not world.first
        place = placed(
            request.out, run_name(recipe, request.start), resume=request.resume, world=world
        )
        folder = RunFolder(place, silent=not world.first)
        resume = request.resume or world.restarted
        with stop.at_once():
            task = prepare(
                recipe,
                host,
                folder,
                resume,
                world,
                request.start,
                request.hooks,
                images,
                request.change,
                request.opened,
            )
        agreed, started = world.broadcast([task.recipe.precision, task.started])
        task = replace(task, recipe=replace(task.recipe, precision=agreed), started=started)
        if before := finished(folder, world.broadcast(folder.result()), world):
            test = None
            if needs_report(folder, host, world):
                stop.message = "interrupted: pass --resume to write the report"
                task = fitted_start(_without_leaks(task, world, stop), world, device)
                with stop.at_once():
                    test = repeat_test(task, before, world, device)
            return Outcome(before, test, is_new=False)
        with world.agreed(), stop.at_once():
            pacer = _foresee(task, world, device, request.invocation.began)
        task = _without_leaks(task, world, stop)
        with stop.at_once(), named_if_slow("making the model to start from", world.first):
            task = fitted_start(task, world, device)
        making = named_if_slow("making the model", world.first)
        with world.agreed(exchanging=True), stop.at_once(), making:
            state = first_state(task, device, world)
        with world.agreed():
            if world.first:
                stack.enter_context(folder.locked())
                _begin(task, resume, request.invocation.command)
        with world.agreed():
            if not folder.started:
                raise RunError(
                    f"{platform.node()} cannot see {folder.path}: put the run folder on storage "
                    "shared by all machines"
                )
        try:
            return conclude(_trained(task, state, world, request.on_line, stop, pacer), stop)
        except DivergedError as error:
            if world.first:
                folder.decide(replace(folder.decisions, diverged=str(error)))
            raise


def _without_leaks(task: Task, world: World, stop: Stop) -> Task:
    """Return the task without the training images that are also test images, and what was found."""
    with world.agreed(), stop.at_once():
        found = _leaks(task) if world.first else None
    leaks = world.broadcast(found)
    return replace(task, splits=applied(task.splits, leaks), leaks=leaks)


def _foresee(task: Task, world: World, device: torch.device, began: float) -> Pacer:
    """Try the user's functions; return the clock of a budget that has room for what is useful."""
    task.hooks.try_out(task.config, task.objective, task.splits.train.target, device)
    pacer = Pacer(seconds(task.recipe.budget), 0.0, began)
    if pacer.budget and not (task.started and task.folder.decisions.plan):
        foresee(task, pacer, world, device)
    return pacer


def _leaks(task: Task) -> dict[str, Any] | None:
    """Return what is known of test images among the training images: found now, or kept."""
    kept = task.folder.duplicates if task.started else None
    found = kept is not None or (task.started and not task.recipe.data.drop_duplicates)
    if found or not task.recipe.pretext.labeled:  # without labels nothing is tested
        return kept
    return find_leaks(task.recipe, task.host, task.splits, task.seen)


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
    contents = task.contents
    base = task.base_fingerprint
    guide = task.guide_fingerprint
    with _withdrawn(task):
        if task.started:
            if not task.change:
                task.hooks.check_same(folder)
            same_data = is_same_data(folder, contents)
            check_same(folder, task.recipe, same_data, base, task.change, guide)
        else:
            folder.keep_duplicates(task.leaks)
            code = task.hooks.record()
            folder.start(
                task.recipe, task.host, command, contents.fingerprint, base, code, guide,
                mark=contents.mark, order=task.order,
            )  # fmt: skip
        if task.guide is not None and not folder.guide.is_dir():
            save(task.guide, folder.guide)
        keep_start(task)


@contextmanager
def _withdrawn(task: Task) -> Iterator[None]:
    """Leave no folder of a new run that is refused in the block."""
    try:
        yield
    except (OptionError, DeviceError, DiskError, DataError):
        if not task.started:
            task.folder.withdraw()
        raise


def _trained(
    task: Task, state: RunState, world: World, on_line: OnLine | None, stop: Stop, pacer: Pacer
) -> Observer:
    """Continue from the newest checkpoint, or the start, to the end; return what tests it then."""
    host, folder = task.host, task.folder
    device = next(state.model.parameters()).device
    saver = Saver(world, folder.checkpoints, host.checkpoint_every)
    _continue(task, state, saver)
    stop.message = f"interrupted after step {state.step:,}: pass --resume to continue"
    restart_peak(device)
    compiled, objective = _compiled(task, device), state.task or task.objective
    trainer = Trainer(state.model, task.recipe, world, compiled, objective, task.hooks.transform)
    rollback = Rollback(state, saver, folder, lambda: _at_start(task, device, world))
    with forked_random(device), recomputed(trainer.engine.plain, host.checkpoint_activations):
        session = Session(task, state, trainer, saver, rollback, stop, pacer)
        observer = session.observer
        fixed = not task.recipe.budget or bool(session.decisions.plan)
        world.say(*screen.announcement(observer, session.plan, fixed))
        stop.check()
        with _withdrawn(task):
            observer.note_damage([(0, each) for each in (task.leaks or {}).get("damaged", ())])
            with named_if_slow("trying the first steps", world.first):
                trial_steps.try_steps(session)
        own = (host.track, state.step, on_line) if world.first else ("no", 0, None)
        with closing(Tracker(folder, *own)) as session.tracker:
            session.run()
    return observer


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


def _continue(task: Task, state: RunState, saver: Saver) -> None:
    """Become the newest checkpoint, if there is one; write down and say what differs from here."""
    world, folder, found = saver.world, task.folder, saver.load()
    if found is not None:
        state.restore(found)
    with world.agreed():
        remark = folder.continue_from(found.journal if found else b"", state.tally.journal)
        lines = [remark] if remark else []
        if world.first:
            lines += keep_changes(folder, task.recipe, task.hooks.record(), state.step)
    world.say(*lines)


def _at_start(task: Task, device: torch.device, world: World) -> Checkpoint:
    """Return the state before the first step."""
    fresh = first_state(task, device, world).checkpoint()
    tensors = {name: full(tensor) for name, tensor in fresh.tensors.items()}
    return replace(fresh, tensors=tensors, journal=b"")
