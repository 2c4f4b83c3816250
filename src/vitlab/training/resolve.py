"""Resolving a run: recipe and data to all that training needs; refusals before anything is written.

`prepare` is the whole of it, in order: data, recipe, weights, model, own functions, the folder.
"""

import math
from collections.abc import Sized
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
from torch import Tensor

from vitlab import device as devices
from vitlab.data.contents import Contents
from vitlab.data.exists import SCENES
from vitlab.data.holdout import (
    training_hashes,
    with_train_images,
)
from vitlab.data.loading.order import KEYED
from vitlab.data.opened_data import OpenedData
from vitlab.data.splits import Splits
from vitlab.data.standardize import standardize
from vitlab.data.summary import divided, input_shape, missing_lines, of_sounds
from vitlab.distributed.reading import read_in_order
from vitlab.distributed.world import World
from vitlab.errors import DataError, OptionError, remedy_of
from vitlab.evaluation.probes.probing import Probe
from vitlab.images import Size
from vitlab.models.config import ModelConfig
from vitlab.models.create import resize_tensors
from vitlab.models.heads.segment import DenseClasses
from vitlab.models.model import Model
from vitlab.models.names import shape_of
from vitlab.models.seen import NOTHING, Seen
from vitlab.objectives.balance import decided
from vitlab.objectives.classify import Classify, objective_of
from vitlab.objectives.distillation import with_distillation_token
from vitlab.optim.table import OPTIMIZERS
from vitlab.precision import remark, resolved
from vitlab.progress import named_if_slow
from vitlab.recipes.model_part import ModelPart, part_of
from vitlab.recipes.named import RECIPES
from vitlab.recipes.recipe import PROBE, Host, Recipe
from vitlab.runs.run_folder import RunFolder
from vitlab.runs.same_data import is_same_data
from vitlab.runs.versions import processor
from vitlab.training import tracking
from vitlab.training.from_weights import check_guide, config_from, guide_of, guiding, starting_model
from vitlab.training.own_code import NONE, Hooks
from vitlab.training.resume import check_same, find_again, order_in
from vitlab.training.run_data import SURROGATE, DataRead, read_run_data
from vitlab.weights.assembly import empty
from vitlab.weights.identity import fingerprint as fingerprint_of

Started = TypeVar("Started", Model, Model | None)
UNPROBED = (
    "training without labels can ruin trained features: pass --probe LABELED to measure them at "
    "each test and keep the best weights"
)
SOUNDS = (
    "sounds become log-mel spectrograms of 16 kHz: channels are averaged, other rates resampled; "
    "they are not mirrored (flip=False), and cropped in time alone"
)


@dataclass(frozen=True)
class Task:
    """A run that can be started or resumed.

    Attributes:
        recipe: with every field of the model, as the data resolved it
        host: where and how
        folder: the run's folder
        splits: training, validation and test images
        config: the model's whole configuration
        contents: of the data
        started: whether the folder already contains this run; `prepare` tells the first process
        base: the model that the run starts from, which stays as it is; None for random weights
        base_fingerprint: of that model; empty for random weights
        probe: what else is measured at each evaluation
        hooks: functions of the user's own
        change: whether options may differ from those of the run
        guide: a frozen model whose answers are learned: a tokenizer or a teacher
        guide_fingerprint: of that model; empty without one
        opened: where the data was opened, and what has been decoded of it
        told: what the user should know of this start alone
        leaks: what was found of test images among the training images (training/leaks.py)
        fitted: the base with a classifier that was fitted to its features (head_start=probe)
        ridge: rows of the weight and bias that regression starts with, none for zeros, and how
            they were fitted
        layer: what the weights of a segmenter are, and its linear layer
    """

    recipe: Recipe
    host: Host
    folder: RunFolder
    splits: Splits
    config: ModelConfig
    contents: Contents
    started: bool
    base: Model | None = None
    base_fingerprint: str = ""
    probe: Probe | None = None
    hooks: Hooks = NONE
    change: bool = False
    guide: Model | None = None
    guide_fingerprint: str = ""
    opened: OpenedData = field(default_factory=OpenedData)
    told: list[str] = field(default_factory=list)
    leaks: dict[str, Any] | None = None
    fitted: Model | None = None
    ridge: tuple[dict[str, list[Any]], str] | None = None
    layer: tuple[DenseClasses, dict[str, Tensor]] | None = None

    @property
    def seen(self) -> Seen:
        """What the models were trained on that the run starts from, or learns from."""
        return _seen_before(self.base, self.guide)

    @property
    def watched(self) -> Probe | None:
        """The probe, if it decides which weights are kept: of trained ones without labels."""
        return self.probe if self.base is not None and not self.recipe.pretext.labeled else None

    @property
    def objective(self) -> Classify:
        """What is minimized."""
        labels = self.splits.train.target
        classes = len(self.splits.classes)
        return objective_of(self.recipe.objective, labels, classes, self.hooks.loss)

    @property
    def order(self) -> str:
        """The order of the training images in an epoch: the run's own, else that of new runs."""
        return order_in(self.folder) if self.started else KEYED


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
    opened = OpenedData() if opened is None or data is not None else opened

    def read() -> DataRead:
        started = world.first and folder.may_be_used(resume)
        with named_if_slow(f"reading {recipe.data.data}", world.first):
            data_read = read_run_data(recipe, folder, resume, data, opened, host.effort.read_first)
        return replace(data_read, started=started)

    reading = read_in_order(world, read)
    with world.agreed():
        before = folder.recipe if reading.started else None
        recipe, splits = settled(reading.recipe, reading.splits, before, bool(hooks.loss))
        if recipe.pretext.task == "regress":
            splits = standardize(splits)
        recipe, told = fitted(recipe, len(splits.train), before, host.device)
        check_world(recipe, host, world)
        with named_if_slow(f"loading {recipe.start.weights or guiding(recipe)}", world.first):
            recipe, base, origin = find_again(
                folder, recipe, "start", lambda each: with_fingerprint(starting_model(each, start)),
                lambda mark: mark == folder.base, resume and start is None,
            )  # fmt: skip
            guide = guide_of(recipe, folder, resume)
        config, remarks = resolve(recipe, splits, base)
        check_model(recipe, host, config)
        hooks.check(recipe, config, splits.train.target)
        remarks += check_guide(recipe, host, config, guide, splits.train.target)
        splits = replace(splits, notes=[*splits.notes, *remarks])
        begins = recipe.start if start is None else replace(recipe.start, weights=start.source)
        recipe = replace(recipe, model=part_of(config, recipe.model.model), start=begins)
        guided_by = with_fingerprint(guide)[1]
        if reading.started:
            recipe = folder.paths.as_recorded(recipe)
            if not change:
                hooks.check_same(folder)
            same = is_same_data(folder, reading.contents)
            check_same(folder, recipe, same, origin, change, guided_by)
            told += elsewhere(folder)
        elif resume:
            world.say(f"no run in {folder.path} yet: starting it")
        told += reading.contents.remarks(recipe.data.data)
        labeled = recipe.pretext.labeled
        seen = training_hashes(splits, labeled=labeled) if host.probe else NOTHING
        probe = _probe_of(host, config, seen, base, guide)
        told += [UNPROBED] if base is not None and not labeled and probe is None else []
        weights = base, origin, probe, hooks, change, guide, guided_by
        known = recipe, host, folder, splits, config, reading.contents, reading.started
        return Task(*known, *weights, opened, told, layer=reading.layer)


def _probe_of(
    host: Host, config: ModelConfig, learned: Seen, base: Model | None, guide: Model | None
) -> Probe | None:
    """Return what else is measured: images that neither the run nor its models learn from."""
    if not host.probe:
        return None
    seen = np.union1d(learned, _seen_before(base, guide))
    return Probe.of(host.probe, config.channels, host.probe_by, seen)


def with_fingerprint(model: Started) -> tuple[Started, str]:
    """Return a model, if there is one, and its fingerprint."""
    return model, "" if model is None else fingerprint_of(model)


def _seen_before(*models: Model | None) -> Seen:
    """Return what some models have seen, sorted."""
    return np.unique(np.concatenate([NOTHING, *(each.seen for each in models if each is not None)]))


# What a recipe leaves to data and machine


def settled(
    recipe: Recipe, splits: Splits, before: Recipe | None, own_loss: bool = False
) -> tuple[Recipe, Splits]:
    """Return the recipe with a number for `train_images` and without `balance=auto`.

    Args:
        recipe: as the user asked for it
        splits: all images
        before: the recipe of the run that goes on, whose decision stands
        own_loss: whether a function of the user's own takes the place of the loss

    Returns:
        The recipe, without flips for sounds and digits, and splits with the chosen training images
        and notes on uneven classes and sounds.

    Raises:
        OptionError: more training images than there are, or too few; sampling by class where
            images have several.
        DataError: the name of a class cannot be written down.
    """
    recipe = recipe.decided_as(before) if before else recipe
    data = recipe.data
    objective = recipe.objective
    labeled = not recipe.pretext.unlabeled
    if labeled and (odd := next(filter(SURROGATE.search, splits.classes), "")):
        raise DataError(f"the class name {odd!r} is not Unicode: {remedy_of(odd)}")
    if data.train_images and not data.dev_share:  # else `take_partition` has chosen them
        splits = with_train_images(splits, data.train_images)
        data = replace(data, train_images=len(splits.train))
    if labeled:
        labels = splits.train.target
        classes = len(splits.classes)
        objective, notes = decided(objective, labels, classes, own_loss, recipe.recipe != PROBE)
        splits = replace(splits, notes=[*splits.notes, *missing_lines(splits), *notes])
    augment = recipe.augment
    sounds = of_sounds(splits.train)
    if sounds or data.data == SCENES:  # nobody writes mirrored digits
        augment = replace(augment, flip=False)
    if sounds:
        splits = replace(splits, notes=[*splits.notes, SOUNDS])
    return replace(recipe, data=data, objective=objective, augment=augment), splits


def fitted(
    recipe: Recipe, images: int, before: Recipe | None, device: str
) -> tuple[Recipe, list[str]]:
    """Return the recipe with a batch that the data has and a precision that is decided, and why.

    A run that goes on keeps its own precision, whatever this machine does faster.

    Args:
        recipe: as the user asked for it
        images: to learn from
        before: the recipe of the run that goes on
        device: where to compute, by its name
    """
    where = devices.choose(device)
    kept = recipe.precision if before is None else before.precision
    if recipe.precision == "auto":
        recipe = replace(recipe, precision=resolved(kept, where))
    told = [remark(recipe.precision, where)]
    if images < recipe.batch:  # which would have images several times
        told.append(
            f"batch reduced from {recipe.batch:,} to all {images:,} training images; the learning "
            f"rate stays {recipe.optimizer.lr:g}"
        )
    return replace(recipe, batch=min(recipe.batch, images)), [line for line in told if line]


def elsewhere(folder: RunFolder) -> list[str]:
    """Return a remark on a run that goes on with another kind of processor than it began on."""
    began = folder.tables.get("versions", {}).get("processor")
    here = processor()
    if began in (None, here):
        return []
    return [f"the run was started on {began} and continues on {here}: the last bits may differ"]


# The model


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
        if "image_size" not in chosen:
            fields = shape_of(part.model) | chosen
            # without labels, a part of the image is learned from another
            least = 2 if recipe.pretext.unlabeled and "patch" in fields else 1
            size, remarks = divided(size, fields.get("patch") or fields.get("stride", 1), least)
        config = part.config(image_size=size, channels=channels, classes=classes, labels=labels)
    else:
        part = for_channels(recipe, base.config.channels)
        part, told = for_size(recipe, part, base.config)
        config, remarks = config_from(base.config, part, labels, recipe.start.tune)
        remarks = [*told, *remarks]
    if config.answers > 1:
        raise OptionError(
            f"queries={config.answers} gives that many outputs per image: classification needs 1"
        )
    if recipe.distill.distill_token:
        config = with_distillation_token(config, base is not None)
    return config, remarks


def for_channels(recipe: Recipe, channels: int) -> ModelPart:
    """Return the model; of a recipe's mean and std for RGB, gray images get the mean of the three.

    Args:
        recipe: as the user asked for it, whose own numbers stay
        channels: of the data or the weights, unless the user names others
    """
    part = recipe.model
    own = RECIPES.get(recipe.recipe, Recipe)().model
    gray: dict[str, Any] = {}
    for name in ("mean", "std") if (part.channels or channels) == 1 else ():
        values = part.chosen().get(name)
        if values and values == getattr(own, name, None):
            gray[name] = (sum(values) / len(values),)
    return replace(part, **gray)


def for_size(recipe: Recipe, part: ModelPart, base: ModelConfig) -> tuple[ModelPart, list[str]]:
    """Return the model with a size that the weights take, if only the recipe says another.

    A recipe's number is the side of a square, and it may have another for some patches. Weights of
    rectangles, of native aspect ratios or of one size keep theirs.

    Args:
        recipe: as the user asked for it, whose own numbers stay
        part: its model
        base: of the weights

    Returns:
        The model, and a remark if its size is another one now.
    """
    size = part.image_size
    name = recipe.recipe
    if size in (None, base.image_size) or size != _size_of(name, part.model):
        return part, []
    stays = f"image_size stays {base.image_size}, not {size} as in {name}: "
    if isinstance(base.image_size, tuple):
        return part.of_size(None), [f"{stays}the weights are for rectangles"]
    if (part.fit or base.fit) == "native":
        tokens = math.ceil(size / base.step) ** 2
        way = f"pass --fit crop for squares, or --tokens {tokens} for as many patches"
        return part.of_size(None), [f"{stays}images keep their aspect ratio; {way}"]
    told: list[str] = []
    if not _takes(base, size) and (better := _size_of(name, base.name)) != size:
        told = [f"image_size={better}, as {name} has for {base.name}"]
        size = better
    try:
        resize_tensors(empty(base), base, base.sized(size))
    except OptionError as error:
        if _takes(base, size):  # but has no positions for it
            line = stays + str(error).partition(":")[0]
            return part.of_size(None), [line]
    return part.of_size(size), told


def _takes(base: ModelConfig, size: Size) -> bool:
    """Return whether a size is one that the patch divides."""
    try:
        base.sized(size)
    except OptionError:
        return False
    return True


def _size_of(recipe: str, model: str) -> Size | None:
    """Return the image size that a recipe by name sets for a model; None for none."""
    size: Size | None = RECIPES[recipe](model).model.image_size if recipe in RECIPES else None
    return size


# Refusals


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
    alone = (
        ("--budget", recipe.budget, "set --epochs or --steps"),
        ("--precision bf16-pure", recipe.precision == "bf16-pure", "use --precision bf16"),
    )
    for option, given, instead in alone if world.size > 1 else ():
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


def check_model(recipe: Recipe, host: Host, config: ModelConfig) -> None:
    """Refuse what the model cannot, or the machine lacks.

    Raises:
        OptionError: images that keep their aspect ratio have no common rectangle to be mixed in;
            activations are recomputed block by block, and the model has no blocks.
        PackageError: a tracker is not installed.
    """
    for name in ("mixup", "cutmix") if config.fit == "native" else ():
        if getattr(recipe.augment, name):
            raise OptionError(
                f"{name} needs images of one size, which fit=native does not give: set {name}=0, "
                "or fit=crop"
            )
    if host.checkpoint_activations and not config.blocks:
        raise OptionError("checkpoint_activations applies to Vision Transformers: leave it out")
    if host.track != "no":
        tracking.find(host.track)
