"""What is worked out and refused before a run writes anything."""

from collections.abc import Sized
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from vitlab.data.holdout import (
    CONTENTS,
    VALIDATION_SHARE,
    fingerprint,
    partitioned,
    seen_by,
    with_validation,
)
from vitlab.data.learning import OpenedData, splits_of
from vitlab.data.sources.request import Splits
from vitlab.data.summary import divided, input_shape
from vitlab.distributed.parallel import shard
from vitlab.distributed.sync_norm import synchronize
from vitlab.distributed.world import World
from vitlab.errors import OptionError
from vitlab.evaluation.probes.watching import Probe
from vitlab.models.config import ModelConfig
from vitlab.models.create import build
from vitlab.models.model import Model
from vitlab.models.names import shape_of
from vitlab.models.seen import NOTHING, Seen
from vitlab.objectives.distill.two_heads import with_distillation_token
from vitlab.objectives.objective import Objective, objective_of
from vitlab.optim import optimizers
from vitlab.optim.averaging import WeightAverage
from vitlab.optim.table import OPTIMIZERS
from vitlab.progress import named_if_slow
from vitlab.recipes.model_part import part_of
from vitlab.recipes.recipe import Host, Recipe
from vitlab.recipes.requirements import check_packages
from vitlab.runs.run_folder import RunFolder
from vitlab.training.saving.state import State
from vitlab.training.setup.beside import (
    beside,
    check_beside,
    guide_of,
    guiding,
)
from vitlab.training.setup.changing import check_same
from vitlab.training.setup.hooks import NONE, Hooks
from vitlab.training.setup.settling import (
    check_names,
    check_native,
    elsewhere,
    fitted,
    for_channels,
    settled,
)
from vitlab.training.setup.starting import config_from, made_from, starting_model
from vitlab.training.shown import tracking
from vitlab.tuning.begin import begin_tuning
from vitlab.weights.identity import fingerprint as fingerprint_of


@dataclass(frozen=True)
class Task:
    """A run that can be started or resumed.

    Attributes:
        recipe: with every field of the model, as the data resolved it
        host: where and how
        folder: the run's folder
        splits: training, validation and test images
        config: the model's whole configuration
        fingerprint: of the data
        started: whether the folder already contains this run (as the first process sees it)
        base: the model that the run starts from, which stays as it is; None for random weights
        base_fingerprint: of that model; empty for random weights
        probe: what else is measured at each evaluation
        leaks: what was found of test images among the training images (training/setup/leaks.py)
        hooks: functions of the user's own
        change: whether options may differ from those of the run
        guide: a frozen model whose answers are learned: a tokenizer or a teacher
        guide_fingerprint: of that model; empty without one
        opened: where the data was opened, and what has been decoded of it
        told: what the user should know of this start alone
        fitted: the base with a classifier that was fitted to its features (head_start=probe)
    """

    recipe: Recipe
    host: Host
    folder: RunFolder
    splits: Splits
    config: ModelConfig
    fingerprint: str
    started: bool
    base: Model | None = None
    base_fingerprint: str = ""
    probe: Probe | None = None
    leaks: dict[str, Any] | None = None
    hooks: Hooks = NONE
    change: bool = False
    guide: Model | None = None
    guide_fingerprint: str = ""
    opened: OpenedData = field(default_factory=OpenedData)
    told: list[str] = field(default_factory=list)
    fitted: Model | None = None

    @property
    def seen(self) -> Seen:
        """What the models were trained on that the run starts from, or learns from."""
        return _seen_before(self.base, self.guide)

    @property
    def objective(self) -> Objective:
        """What is minimized."""
        labels, classes = self.splits.train.labels, len(self.splits.classes)
        return objective_of(self.recipe.objective, labels, classes, self.hooks.loss)

    @property
    def images(self) -> int:
        """The number of images in all splits."""
        parts = (self.splits.train, self.splits.validation, self.splits.test)
        return sum(len(part) for part in parts if part is not None)


def prepare(
    recipe: Recipe,
    host: Host,
    folder: RunFolder,
    resume: bool,
    world: World,
    start: Model | None = None,
    hooks: Hooks = NONE,
    data: Sized | None = None,
    change: bool = False,
    opened: OpenedData | None = None,
) -> Task:
    """Work out what a run needs, and refuse what cannot be.

    Args:
        recipe: as the user asked for it
        host: where and how
        folder: the run's folder
        resume: whether it may contain this run
        world: this process among those of the run
        start: a model to start from, in place of `recipe.start.weights`
        hooks: functions of the user's own
        data: images in memory, in place of `recipe.data.data`
        change: whether options may differ from those of the run
        opened: where the data may have been opened before

    Raises:
        WeightsError: the weights to start from cannot be loaded.
        RunError: the folder is in the way, or its run was started otherwise.
        OptionError: options that do not go together, or do not fit the data or the processes.
        DataError: the data cannot be used.
        PackageError: a tracker, or a package of the recipe, is not installed.
    """
    check_packages(recipe)
    opened = OpenedData() if opened is None or data is not None else opened
    started = world.first and folder.may_be_used(resume)
    check_names(recipe, folder)
    with named_if_slow(f"reading {recipe.data.data}", world.first):
        splits, mark = _splits(recipe, data, opened, folder.fingerprint if started else CONTENTS)
    before = folder.recipe if started else None
    recipe, splits = settled(recipe, splits, before, bool(hooks.loss))
    recipe, told = fitted(recipe, len(splits.train), before, host.device)
    check_world(recipe, host, world)
    with named_if_slow(f"loading {recipe.start.weights or guiding(recipe)}", world.first):
        base, guide = starting_model(recipe, start), guide_of(recipe, folder, started)
    config, remarks = resolve(recipe, splits, base)
    check_native(recipe, config)
    hooks.check(recipe, config, splits.train.labels)
    check_host(host, config)
    remarks += check_beside(recipe, host, config, guide, splits.train.labels)
    splits = replace(splits, notes=[*splits.notes, *remarks])
    begins = recipe.start if start is None else replace(recipe.start, weights=start.source)
    recipe = replace(recipe, model=part_of(config, recipe.model.model), start=begins)
    origin, guided_by = mark_of(base), mark_of(guide)
    if started:
        if not change:
            hooks.check_same(folder)
        check_same(folder, recipe, mark, origin, change, guided_by)
    elif resume:
        world.say(f"no run in {folder.path} yet: starting it")
    probe = _probe(recipe, host, config, splits, base, guide)
    told += elsewhere(folder) if started else []
    given = mark, started, base, origin, probe, None, hooks, change, guide, guided_by, opened
    return Task(recipe, host, folder, splits, config, *given, told)


def _probe(
    recipe: Recipe, host: Host, config: ModelConfig, splits: Splits, *before: Model | None
) -> Probe | None:
    """Return what else is measured, on images that neither the run nor its models learn from."""
    if not host.probe:
        return None
    own = seen_by(splits, labeled=not recipe.pretext.unlabeled)
    seen = np.union1d(own, _seen_before(*before))
    return Probe.of(host.probe, config.channels, host.probe_by, seen)


def _seen_before(*models: Model | None) -> Seen:
    """Return what some models have seen, sorted."""
    return np.unique(np.concatenate([NOTHING, *(each.seen for each in models if each is not None)]))


def mark_of(model: Model | None) -> str:
    """Return the fingerprint of a model; empty for none."""
    return "" if model is None else fingerprint_of(model)


def _splits(
    recipe: Recipe, data: Sized | None, opened: OpenedData, like: str
) -> tuple[Splits, str]:
    """Return the images of the recipe's data, or of what was given, and their fingerprint."""
    options, unlabeled = recipe.data, recipe.pretext.unlabeled
    if data is None:
        splits = opened.splits(options, unlabeled)
    else:
        splits = splits_of(options, unlabeled, data)
    if not unlabeled:
        splits = partitioned(splits, options)
        if decides := recipe.chooses(len(splits.train)):
            splits = with_validation(splits, options.split_by, decides)
    return splits, fingerprint(splits.whole or splits.train, like)


def first_state(task: Task, device: torch.device, world: World) -> State:
    """Return the state of a run before its first step.

    Raises:
        OptionError: the model cannot be trained by the optimizer, or not this way; a field does
            not fit the weights that it starts from.
    """
    recipe = task.recipe
    generator = torch.Generator().manual_seed(recipe.seed)
    if task.base is None:
        model = build(task.config, generator)
    else:
        model = made_from(task.fitted or task.base, task.config, recipe.start, generator)
    begin_tuning(model, recipe.start, generator)
    model.to(device)
    signed(model, task)
    if world.size > 1:
        synchronize(model)
    average = None
    if recipe.average.ema:
        average = WeightAverage(model, recipe.average.ema, recipe.average.ema_warmup)
    if task.host.shard:
        for each in (model, *([average.model] if average else [])):
            shard(each, world)
    beginnings = task.objective, task.splits.train.labels, task.hooks, generator
    own = beside(recipe, task.config, task.guide, device, *beginnings)
    if own is not None:
        own.start(model)
    optimizer = optimizers.build(model, recipe.optimizer, own)
    return State(model, average, optimizer, task=own)


def signed(model: Model, task: Task) -> None:
    """Let a model say what it was trained on, and how."""
    model.provenance = provenance(task)
    learned = seen_by(task.splits, labeled=not task.recipe.pretext.unlabeled)
    model.seen = np.union1d(learned, task.seen)


def check_world(recipe: Recipe, host: Host, world: World) -> None:
    """Refuse options that do not fit the number of processes.

    Raises:
        OptionError: the first of them.
    """
    if recipe.batch < world.size:
        raise OptionError(
            f"{world.size} processes cannot share a batch of {recipe.batch}: choose a --batch of "
            f"at least {world.size}, or start fewer processes"
        )
    if world.size > 1:
        alone = [
            ("--budget", recipe.budget, "set --epochs or --steps"),
            ("--precision bf16-pure", recipe.precision == "bf16-pure", "use --precision bf16"),
        ]
        for option, given, instead in alone:
            if given:
                raise OptionError(f"{option} needs a single process, not {world.size}: {instead}")
    if not host.shard:
        return
    if world.size == 1:
        raise OptionError("--shard needs several processes: start with torchrun, or leave it out")
    options = recipe.optimizer
    if not OPTIMIZERS[options.optimizer].slices or options.rho:
        name = "SAM" if options.rho else options.optimizer
        able = ", ".join(each for each, entry in OPTIMIZERS.items() if entry.slices)
        raise OptionError(f"--shard does not support {name}: choose from {able}, without --rho")
    if recipe.patience:
        raise OptionError("--shard does not support --patience: leave one of them out")


def check_host(host: Host, config: ModelConfig) -> None:
    """Refuse what the machine lacks or the model cannot.

    Raises:
        OptionError: activations are recomputed block by block, and the model has no blocks.
        PackageError: a tracker is not installed.
    """
    if host.track != "no":
        tracking.find(host.track)
    if host.checkpoint_activations and not config.blocks:
        raise OptionError("checkpoint_activations applies to Vision Transformers: leave it out")


def resolve(
    recipe: Recipe, splits: Splits, base: Model | None = None
) -> tuple[ModelConfig, list[str]]:
    """Return the whole model configuration, and remarks for the user.

    Classes come from the data; size and channels too, unless there are weights to start from.

    Raises:
        OptionError: the recipe, the data and the weights do not go together.
    """
    labels = () if recipe.pretext.unlabeled else splits.classes
    classes, given = len(labels), recipe.model.classes
    if given not in (None, classes):
        raise OptionError(
            f"classes={given}, but {recipe.data.data} has {classes} classes: leave it out"
        )
    remarks: list[str] = []
    if base is None:
        size, channels = input_shape(splits.train)
        part = for_channels(recipe, channels)
        chosen = part.chosen()
        fields = shape_of(part.model) | chosen
        if "image_size" not in chosen:
            # without labels, a part of the image is learned from another
            least = 2 if recipe.pretext.unlabeled and "patch" in fields else 1
            size, remarks = divided(size, fields.get("patch") or fields.get("stride", 1), least)
        config = part.config(image_size=size, channels=channels, classes=classes, labels=labels)
    else:
        part = for_channels(recipe, base.config.channels)
        config, remarks = config_from(base.config, part, labels, recipe.start.tune)
    if config.answers > 1:
        raise OptionError(
            f"queries={config.answers} gives that many outputs per image: classification needs 1"
        )
    if recipe.distill.distill_token:
        config = with_distillation_token(config, base is not None)
    return config, remarks


def provenance(task: Task) -> dict[str, Any]:
    """Return what a saved model says about its training."""
    recipe, splits = task.recipe, task.splits
    options = recipe.data
    chosen: dict[str, Any] = {"fold": options.fold} if options.fold else {}
    if options.train_images:
        chosen["train_images"] = len(splits.train)
    if changed := (task.leaks or {}).get("moved"):
        chosen["moved"] = changed
    return (
        chosen
        | {
            "data": recipe.data.data,
            "fingerprint": task.fingerprint,
            "held_out": recipe.data.test_fraction if splits.whole is not None else 0.0,
            "split_by": recipe.data.split_by,
            "validation": VALIDATION_SHARE if splits.own_validation else 0.0,
            "recipe": recipe.recipe,
            "seed": recipe.seed,
            **({"task": recipe.pretext.task} if recipe.pretext.unlabeled else {}),
            **({"teacher": recipe.distill.teacher} if recipe.distill.teacher else {}),
            "multi_label": splits.train.labels.several and not recipe.pretext.unlabeled,
            "epochs": recipe.steps * recipe.batch / len(splits.train) or recipe.epochs,
        }
        | _origin(task)
    )


def _origin(task: Task) -> dict[str, Any]:
    """Return what a saved model says about the weights that its training started from."""
    if task.base is None:
        return {}
    theirs, start = task.base.provenance, task.recipe.start
    license = theirs.get("license", theirs.get("source_license"))
    return {
        "base": start.weights or task.base.config.name,
        "base_fingerprint": task.base_fingerprint,
        "tune": start.tune,
        **({"base_commit": theirs["commit"]} if theirs.get("commit") else {}),
        **({"source_license": license} if license else {}),
    }
