"""A run from its recipe to its report."""

import platform
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from vitlab import device as devices
from vitlab.data.loading.cache import cached
from vitlab.data.loading.shape import input_shape
from vitlab.data.sources.opening import open_data
from vitlab.data.sources.splits import Splits, fingerprint, with_validation
from vitlab.distributed.parallel import plain, shard
from vitlab.distributed.sync_norm import synchronize
from vitlab.distributed.world import World, joined
from vitlab.errors import RunError, UserError
from vitlab.evaluation.metrics import figures
from vitlab.evaluation.predictions import Predictions
from vitlab.models.config import ModelConfig, ViTConfig
from vitlab.models.cost import cost
from vitlab.models.create import Model, build
from vitlab.optim import optimizers
from vitlab.optim.averaging import WeightAverage
from vitlab.optim.schedule import warmup_steps
from vitlab.progress import say
from vitlab.recipes.recipe import Host, Recipe
from vitlab.runs import RunFolder, default_folder
from vitlab.training import checkpoint, tracking
from vitlab.training.checkpoint import Checkpoint
from vitlab.training.loop import Loop
from vitlab.training.state import State
from vitlab.weights.load import load
from vitlab.weights.save import save


@dataclass(frozen=True)
class Run:
    """A finished run: its folder, its figures (the keys of the command's JSON) and its model.

    `rank` is this process's number where torchrun started several; number 0 tells the user.
    """

    folder: Path
    metrics: dict[str, Any]
    model: Model
    rank: int = 0


def train(
    recipe: Recipe,
    out: str | Path | None = None,
    *,
    resume: bool = False,
    host: Host | None = None,
    command: str = "",
) -> Run:
    """Train a model as a recipe says, test it, and leave a run folder with a report.

    Under torchrun all its processes share every batch; the first one writes and prints.

    Args:
        recipe: what to learn, from `vitlab.recipe`
        out: the run's folder; None for `runs/` and a name made of the data, the recipe and the seed
        resume: go on where the run in that folder stopped, to the same bits on a CPU
        host: device, workers, checkpoints
        command: what the user typed, for the report

    Raises:
        ValueError: anything the user can mend; nothing half-made is left behind.
        KeyboardInterrupt: asked to stop; the state is saved and `resume` goes on from it.
    """
    host = host or Host()
    with joined(host.device, host.timeout) as (world, device), ExitStack() as held:
        folder = RunFolder(
            out or default_folder(recipe.data.data, recipe.recipe, recipe.seed),
            silent=not world.first,
        )
        with world.agreed():
            resume = resume or world.restarted
            started = world.first and _may_use(folder, resume)
            _check_world(recipe, host, world)
            splits = open_data(recipe.data.data, recipe.data.test_fraction)
            if recipe.patience:
                splits = with_validation(splits)
            config = resolve(recipe, splits)
            _possible(host, config)
            recipe = replace(recipe, model=recipe.model.resolved(config))
            mark = fingerprint(splits.whole or splits.train)
            if started:
                _same(folder, recipe, mark)
            elif resume:
                world.say(f"no run in {folder.path} yet: starting it")
            model = build(config, torch.Generator().manual_seed(recipe.seed)).to(device)
            model.provenance = _provenance(recipe, splits, mark)
            optimizers.build(model, recipe.optimizer)  # what it refuses leaves no folder
        with world.agreed():
            if world.first:
                held.enter_context(folder.locked())
                if not started:
                    folder.start(recipe, host, command, mark)
        with world.agreed():
            if not folder.started:
                raise RunError(
                    f"{platform.node()} cannot see {folder.path}: put the run folder on storage "
                    "shared by all machines"
                )
        if done := world.tell(folder.result() if world.first else None):
            world.say(f"the run in {folder.path} is finished")
            return Run(folder.path, done, load(folder.model), world.rank)
        loop = _prepare(recipe, host, splits, model, folder, world)
        loop.run()
        return _finish(loop, splits)


def _check_world(recipe: Recipe, host: Host, world: World) -> None:
    """Refuse what several processes, or one, cannot do."""
    if recipe.batch < world.size:
        raise UserError(
            f"{world.size} processes cannot share batches of {recipe.batch}: a larger --batch, or "
            "fewer processes"
        )
    if host.shard and world.size == 1:
        raise UserError("--shard needs several processes: start with torchrun, or leave it out")
    if world.size > 1:
        alone = [
            ("--budget", recipe.budget, "give --epochs or --steps"),
            ("--micro-batch auto", recipe.micro_batch == "auto", "give a number"),
            ("--precision bf16-pure", recipe.precision == "bf16-pure", "use bf16"),
        ]
        for what, given, instead in alone:
            if given:
                raise UserError(f"{what} is decided by one process, not {world.size}: {instead}")
    if host.shard:
        how = recipe.optimizer
        if how.optimizer not in ("sgd", "adam", "adamw") or how.rho:
            what = "SAM" if how.rho else how.optimizer
            raise UserError(f"--shard cannot step with {what}: sgd, adam or adamw without rho")
        if recipe.patience:
            raise UserError("--shard keeps no best weights: leave --patience out")


def resolve(recipe: Recipe, splits: Splits) -> ModelConfig:
    """The whole model configuration; size, channels and classes come from the data unless given.

    Raises:
        ValueError: what the recipe gives and what the data has do not go together.
    """
    size, channels = input_shape(splits.train)
    classes, given = len(splits.classes), recipe.model.classes
    if given not in (None, classes):
        raise UserError(f"classes={given}, but {recipe.data.data} has {classes}: leave it out")
    config = recipe.model.config(
        image_size=size, channels=channels, classes=classes, labels=splits.classes
    )
    if isinstance(config, ViTConfig) and config.queries > 1:
        raise UserError(f"queries={config.queries} gives as many answers an image: learn with 1")
    return config


def _may_use(folder: RunFolder, resume: bool) -> bool:
    """Return whether the folder contains a run, which must not be in the way."""
    if folder.started and not resume:
        raise RunError(
            f"{folder.path} already contains a run: pass --resume to continue it, or choose "
            "another --out"
        )
    if not folder.started and not folder.free:
        raise RunError(f"{folder.path} exists and contains no run: choose a new or empty folder")
    return folder.started


def _possible(host: Host, config: ModelConfig) -> None:
    """Refuse before anything is written what could not be done."""
    if host.track != "no":
        tracking.find(host.track)
    if host.checkpoint_activations and not isinstance(config, ViTConfig):
        raise UserError("checkpoint_activations is for Vision Transformers, which have blocks")


def _same(folder: RunFolder, recipe: Recipe, mark: str) -> None:
    """Refuse to continue a run with another recipe, or on other data."""
    old, new = folder.recipe.as_tables(), recipe.as_tables()
    for part in old:
        for key in old[part] | new[part]:
            was, now = old[part].get(key), new[part].get(key)
            if was != now:
                raise RunError(
                    f"{folder.path} was started with {key}={was}, not {now}: leave the option "
                    "out, or start another run with another --out"
                )
    if folder.fingerprint != mark:
        raise RunError(
            f"{recipe.data.data} has changed since {folder.path} was started: start another run "
            "with another --out"
        )


def _provenance(recipe: Recipe, splits: Splits, mark: str) -> dict[str, Any]:
    """What is said of a model's training where it is saved."""
    return {
        "data": recipe.data.data,
        "fingerprint": mark,
        "held_out": recipe.data.test_fraction if splits.whole is not None else 0.0,
        "recipe": recipe.recipe,
        "seed": recipe.seed,
        "multi_label": splits.train.labels.several,
        "epochs": recipe.steps * recipe.batch / len(splits.train) or recipe.epochs,
    }


def _prepare(
    recipe: Recipe, host: Host, splits: Splits, model: Model, folder: RunFolder, world: World
) -> Loop:
    """Everything in its place, at the newest checkpoint or at the start."""
    how = recipe.average
    if world.size > 1:
        synchronize(model)
    average = WeightAverage(model, how.ema, how.ema_warmup) if how.ema else None
    if host.shard:
        for each in (model, *([average.model] if average else [])):
            shard(each, world)
    state = State(model, average, optimizers.build(model, recipe.optimizer))
    parts = [part for part in (splits.train, splits.validation, splits.test) if part is not None]
    loop = Loop(
        recipe=recipe,
        host=host,
        state=state,
        source=cached(splits.train, model.config.channels),
        test=cached(splits.validation or splits.test, model.config.channels),
        images=sum(len(part) for part in parts),
        folder=folder,
        world=world,
    )
    if world.first:
        _announce(loop, splits)
    found = _newest(folder.checkpoints, world)
    if found is not None:
        state.restore(found)
        world.say(f"going on after step {state.step:,}")
    loop.journal.cut(state.journal)
    return loop


def _newest(folder: Path, world: World) -> Checkpoint | None:
    """The newest checkpoint that is whole: the first process finds it, all read it.

    Raises:
        ValueError: another process cannot read what the first one could.
    """
    found: Checkpoint | None = None
    if world.first:
        checkpoint.tidy(folder)
        found, remarks = checkpoint.load(folder)
        for remark in remarks:
            say(remark)
    place = world.tell(checkpoint.place_of(folder, found.state["step"]).name if found else None)
    with world.agreed():
        if place and not world.first:
            try:
                found = checkpoint.read(folder / place)
            except checkpoint.DAMAGE as error:
                raise UserError(f"cannot read checkpoint {folder / place}: {error}") from error
    return found


def _announce(loop: Loop, splits: Splits) -> None:
    config, price = loop.state.model.config, cost(loop.state.model.config)
    rows, columns = config.size
    say(
        f"{config.name} for {rows}x{columns}x{config.channels} and {config.classes} classes: "
        f"{price.params / 1e6:.2f} M parameters, {price.macs / 1e9:.3g} GMACs"
    )
    images = f"{len(splits.train):,} training and {len(splits.test):,} test images"
    many = f"{loop.world.size} processes, " if loop.world.size > 1 else ""
    planned = f"{loop.total:,} steps"
    if loop.recipe.budget and not loop.decided.plan:
        planned = f"as many steps as fit into {loop.recipe.budget}"
    say(f"{images}; {planned} on {many}{loop.device}; run folder {loop.folder.path}")
    if warmup_steps(loop.epoch, loop.recipe.schedule) >= loop.total:
        say("the warm-up is as long as the run: the learning rate does not reach its peak")
    for note in splits.notes:
        say(note)


def _finish(loop: Loop, splits: Splits) -> Run:
    """Save the model, test it, write down what came out."""
    folder, state, world = loop.folder, loop.state, loop.world
    model = plain(state.kept).eval()
    with world.agreed():
        if world.first:
            save(model, folder.model)
    seen = loop.predict(splits.test, model)
    metrics: dict[str, Any] = {}
    with world.agreed():
        if world.first:
            metrics = _conclude(loop, splits, model, seen)
    return Run(folder.path, world.tell(metrics), model.cpu(), world.rank)


def _conclude(loop: Loop, splits: Splits, model: Model, seen: Predictions) -> dict[str, Any]:
    """The figures, the report, the last line of the journal."""
    from vitlab.report.gather import write_report  # draws with matplotlib, slow to import

    folder, state = loop.folder, loop.state
    price = cost(model)
    metrics = figures(seen.probabilities, seen.labels) | {
        "model": model.config.name,
        "params": price.params,
        "macs": price.macs,
        "images_per_second": state.seen / max(state.seconds, 1e-9),
        "peak_memory": devices.peak_memory(loop.device),
        "seconds": state.seconds,
        "damaged": len(state.bad),
    }
    metrics |= folder.places
    notes = [*splits.notes, *(f"skipped: {message}" for message in state.bad)]
    write_report(folder, model, splits.test, seen, metrics, notes)
    loop.journal.write({"kind": "result"} | metrics)
    loop.journal.sync()
    return metrics
