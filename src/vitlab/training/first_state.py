"""The first state of a run: its model, what learns beside it, average and optimizer.

`head_start`: a new classifier starts at zero, at random, or fitted to the frozen features (numbers:
by ridge regression). One that is fitted first, and then fine-tuned with everything else, changes
the features less than one that knows nothing yet: LP-FT (Kumar et al., Fine-tuning can distort
pretrained features and underperform out-of-distribution, 2022).
"""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from vitlab.data.contents import UNIDENTIFIED
from vitlab.data.holdout import VALIDATION_SHARE, training_hashes, with_train_images
from vitlab.data.images import Images
from vitlab.data.labels import SingleLabels
from vitlab.distributed.parallel import shard
from vitlab.distributed.sync_norm import synchronize
from vitlab.distributed.world import World
from vitlab.errors import DataError, DeviceError
from vitlab.evaluation.compute import Compute
from vitlab.evaluation.feature_cache import default_cache, features_of
from vitlab.evaluation.features import FEATURES, ImageFeatures
from vitlab.evaluation.infer import Vectors
from vitlab.evaluation.probes.feature_options import Cuts
from vitlab.evaluation.probes.searching import KINDS, FeatureChoice, FoundHead, find_ridge, fit_head
from vitlab.evaluation.unlike import fit_unlike_behind
from vitlab.files import staged_file
from vitlab.models.create import build
from vitlab.models.model import Model
from vitlab.models.unlike import layer_of
from vitlab.objectives.detect import Detect
from vitlab.objectives.distillation import Distillation
from vitlab.objectives.pretext_task import OwningObjective
from vitlab.objectives.pretext_tasks import pretext_task
from vitlab.objectives.regress import Regress
from vitlab.objectives.segment import Segment
from vitlab.on_device import with_float64
from vitlab.optim import optimizers
from vitlab.optim.averaging import WeightAverage
from vitlab.precision import fixed
from vitlab.recipes.recipe import CHOOSABLE
from vitlab.runs.kept_arrays import Arrays, read_arrays, write_arrays
from vitlab.training.from_weights import made_from
from vitlab.training.resolve import Task
from vitlab.training.state import RunState
from vitlab.tuning.free import begin_tuning
from vitlab.units import percent
from vitlab.weights.deltas import delta
from vitlab.weights.load import load
from vitlab.weights.save import save

MOST = 20_000  # images that the classifier is fitted to: with more it hardly starts better


def first_state(task: Task, device: torch.device, world: World) -> RunState:
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
    own = _beside(task, device, generator)
    if own is not None:
        if world.size > 1:
            synchronize(own)
        own.start(model)
    optimizer = optimizers.build(model, recipe.optimizer, own)
    answers = recipe.pretext.annotated
    state = RunState(model, average, optimizer, task=own, answers=answers)
    if own is not None and answers and recipe.average.ema:
        state.head_average = WeightAverage(own, recipe.average.ema, recipe.average.ema_warmup)
    return state


def _beside(task: Task, device: torch.device, generator: torch.Generator) -> OwningObjective | None:
    """Return what learns beside a new model, with its first weights; None for labels alone."""
    recipe = task.recipe
    config = task.config
    guide = task.guide
    if guide is not None:
        guide.to(device).eval().requires_grad_(False)
    own: OwningObjective
    if recipe.pretext.unlabeled:
        if recipe.pretext.task == "detect":
            own = Detect(recipe.pretext, config, classes=task.splits.classes)
        elif recipe.pretext.task == "regress":
            first = task.ridge and task.ridge[0]
            own = Regress(recipe.pretext, config, recipe.objective.loss, first or None)
        elif recipe.pretext.task == "segment":
            assert task.layer is not None
            about, layer = task.layer
            layer = {name: each.clone() for name, each in layer.items()}  # which learn
            own = Segment(recipe.pretext, config, about, **layer)
        else:
            own = pretext_task(recipe.pretext.task)(recipe.pretext, config, guide)
    elif guide is not None:
        several = task.splits.train.target.several
        own = Distillation(recipe.distill, task.objective, config, guide, several)
    else:
        return None
    own.reset_parameters(generator)
    wide = any(each.dtype is torch.float64 for each in own.buffers())
    if wide and with_float64(device) != device:
        raise DeviceError(
            f"--task {recipe.pretext.task} needs float64, which {device} lacks: use --device cpu"
        )
    return own.to(device)


# What a saved model says of itself


def signed(model: Model, task: Task) -> None:
    """Let a model say what it was trained on, and how, as far as its images were read."""
    model.provenance = provenance(task)
    model.seen = task.seen
    if task.contents.files_alone:
        model.seen = np.union1d(task.seen, UNIDENTIFIED)
    sign_late(model, task)


def sign_late(model: Model, task: Task) -> None:
    """Let a model say by their contents which images it was trained on, where they were read."""
    if not task.contents.fingerprint or not task.contents.is_cheap:
        return
    model.provenance.pop("data_files", None)
    model.provenance["fingerprint"] = task.contents.fingerprint
    learned = training_hashes(task.splits, labeled=task.recipe.pretext.labeled)
    model.seen = np.union1d(learned, task.seen)


def provenance(task: Task) -> dict[str, Any]:
    """Return what a saved model says about its training, and the weights that it started from."""
    recipe = task.recipe
    splits = task.splits
    options = recipe.data
    unlabeled = recipe.pretext.unlabeled
    about: dict[str, Any] = {
        "fold": options.fold,
        "train_images": options.train_images and len(splits.train),
        "moved": (task.leaks or {}).get("moved"),
        "data": options.data,
        "fingerprint": task.contents.fingerprint,
        "data_files": task.contents.files_alone,
        "held_out": options.test_fraction if splits.whole is not None else 0.0,
        "validation": VALIDATION_SHARE if splits.own_validation else 0.0,
        "recipe": recipe.recipe,
        "seed": recipe.seed,
        "task": unlabeled and recipe.pretext.task,
        "teacher": recipe.distill.teacher,
        "multi_label": splits.train.target.several and not unlabeled,
        "epochs": recipe.steps * recipe.batch / len(splits.train) or recipe.epochs,
    }
    if task.base is not None:
        theirs = task.base.provenance
        start = recipe.start
        about |= {
            "base": start.weights or task.base.config.name,
            "base_fingerprint": task.base_fingerprint,
            "tune": start.tune,
            "base_commit": theirs.get("commit"),
            "source_license": theirs.get("license", theirs.get("source_license")),
        }
    kept = ("held_out", "validation", "seed", "multi_label")  # also where they are 0 or false
    return {key: each for key, each in about.items() if each or key in kept}


# A classifier that is fitted first


def has_head_to_fit(task: Task) -> bool:
    """Return whether `fitted_start` will fit a head."""
    base = task.base
    recipe = task.recipe
    if base is None or recipe.start.head_start != "probe" or task.started:
        return False
    if recipe.pretext.task == "regress":
        return True
    single = isinstance(task.splits.train.target, SingleLabels)
    return single and base.config.labels != task.config.labels


def fitted_start(task: Task, world: World, device: torch.device) -> Task:
    """Return the task with the model that training starts from, its new classifier fitted.

    It is a logistic regression on what the classifier sees, its penalty chosen by cross-validation
    inside the training images, its logits calibrated. Nothing changes where the recipe does not
    say so, where the classifier is that of the weights, and where images have several labels.

    Args:
        task: as it was prepared
        world: the processes, which compute features together
        device: where
    """
    base = task.base
    splits = task.splits
    config = task.config
    if base is None or task.recipe.start.head_start != "probe":
        return task
    if task.recipe.pretext.task == "regress":
        return _ridge_start(task, world, device)
    if base.config.labels == config.labels:
        return task
    if task.started:  # the checkpoints have gone on from there
        kept = task.folder.head_start
        return replace(task, fitted=load(kept, base=base) if kept.is_file() else None)
    if not isinstance(splits.train.target, SingleLabels):
        line = "the classifier starts at zero: images with several labels have no logistic fit"
        return replace(task, told=[*task.told, line])
    model = made_from(base, config, task.recipe.start)
    vectors = Cuts(inner=layer_of(model.last_layer))
    source, learn, choices = _features(task, model, vectors, world, device)
    found, reason = None, ""
    folds = task.host.effort.folds
    with world.agreed():
        if world.first:
            try:
                found = fit_head(source, learn, choices, KINDS[:1], folds, device)
            except DataError as error:  # too few images
                reason = f"the classifier starts at zero: {error}"
    if reason := world.broadcast(reason):
        return replace(task, told=[*task.told, reason])
    with world.agreed():
        if found is not None:
            layer = vectors.inner
            model.unlike = fit_unlike_behind(source, learn, found.folds, model.config, layer)
    _set_head(model, found, world)
    signed(model, task)
    known = found and {"l2": found.head.l2, "cross_validated": found.accuracy}
    about: dict[str, Any] = world.broadcast(known) | {"images": len(source)}
    model.provenance |= {"head_start": about}
    line = (
        f"the classifier starts as a logistic regression on the frozen features of {len(source):,} "
        f"images: {percent(about['cross_validated'])} in cross-validation (l2 {about['l2']:g}); "
        f"{task.folder.model} has this classifier until training is done"
    )
    if splits.validation is None:
        line += (
            f", and then the fine-tuned model: with fewer than {CHOOSABLE} training images, none "
            "are held out to compare the two"
        )
    return replace(task, fitted=model, told=[*task.told, line])


def _features(
    task: Task, model: Model, vectors: Vectors, world: World, device: torch.device
) -> tuple[Images, ImageFeatures, list[FeatureChoice]]:
    """Return the images that a head is fitted to, their features, and that these are chosen."""
    # each class has an image
    splits = task.splits
    most = max(MOST, task.config.classes)
    source = splits.train if len(splits.train) <= most else with_train_images(splits, most).train
    # as the steps compute them, in the packed form: where it is timed, processes may differ
    numbers = task.recipe.pretext.task == "regress"
    precision = "fp32" if numbers else fixed(task.recipe.precision)
    compute = Compute(device, precision, "auto", task.host.workers, world.local_size, measure=False)
    title = "features that the head is fitted to"
    cache = default_cache()
    learn = features_of(model, source, compute, vectors, world=world, cache=cache, title=title)
    width = model.config.features * model.config.answers
    return source, learn, [FeatureChoice(model.last_layer, "", 0, width)]


def _ridge_start(task: Task, world: World, device: torch.device) -> Task:
    """Return the task with a ridge regression; a run that goes on has it in its folder."""
    assert task.base is not None
    kept = None
    if world.first and task.started:
        kept = read_arrays(task.folder.head_start, str, ("weight", "bias"))
        shapes = {name: each.shape for name, each in kept[0].items()} if kept else {}
        if kept and shapes["weight"] != (*shapes["bias"], task.config.features):
            kept = None
    if not world.broadcast(kept is not None):
        model = made_from(task.base, task.config, task.recipe.start)
        features = _features(task, model, FEATURES, world, device)
        with world.agreed():
            kept = _fitted_ridge(*features, task.host.effort.folds) if world.first else None
    arrays, line = kept or ({}, "")
    told = [{name: each.tolist() for name, each in arrays.items()}, line]
    layer, line = world.broadcast(told)
    splits = replace(task.splits, notes=[*task.splits.notes, line])
    return replace(task, ridge=(layer, line), splits=splits)


def _fitted_ridge(
    source: Images, learn: ImageFeatures, choices: list[FeatureChoice], folds: int
) -> tuple[Arrays, str]:
    """Return the arrays of a ridge regression, none if there are too few images; and a line."""
    try:
        found = find_ridge(source, learn, choices, folds)
    except DataError as error:
        return {}, f"the head starts at zero: {error}"
    return found.layer(), (
        f"the head starts as a ridge regression on the frozen features of {len(source):,} images: "
        f"R² {found.about['r2']:.3f} of images left out (l2 {found.about['l2']:g})"
    )


def _set_head(model: Model, found: FoundHead | None, world: World) -> None:
    """Give a model the fitted classifier, that of the first process, divided by its temperature."""
    for name, fitted in {"weight": "weights", "bias": "bias"}.items():
        own = model.get_parameter(f"{model.head_names[0]}{name}").data
        if found is not None:
            own.copy_(torch.from_numpy(getattr(found.head, fitted) / found.temperature))
        if world.size > 1:
            dist.broadcast(own, 0)


def keep_start(task: Task) -> None:
    """Write what was fitted first into the folder of a run that has begun.

    A classifier becomes its model, too: a run that is stopped early leaves one that can be used.

    Raises:
        DiskError: it cannot be written.
    """
    if task.ridge is not None and not task.started:
        layer, line = task.ridge
        with staged_file(task.folder.head_start) as draft:
            write_arrays(draft, {name: np.array(each) for name, each in layer.items()}, line)
    if task.fitted is None or task.started:
        return
    assert task.base is not None
    delta(task.fitted, task.base).save(task.folder.head_start)
    save(task.fitted, task.folder.model)
