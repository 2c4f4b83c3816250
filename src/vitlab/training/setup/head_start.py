"""`head_start`: a new classifier starts at zero, at random, or fitted to the frozen features.

A classifier that is fitted first, and then fine-tuned with everything else, changes the features
less than one that knows nothing yet: LP-FT (Kumar et al., Fine-tuning can distort pretrained
features and underperform out-of-distribution, 2022).
"""

from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

from vitlab.data.holdout import with_train_images
from vitlab.data.labels import SingleLabels
from vitlab.distributed.world import World
from vitlab.errors import DataError
from vitlab.evaluation.compute import Compute
from vitlab.evaluation.features import default_cache, features_of
from vitlab.evaluation.probes.searching import KINDS, FeatureChoice, FoundHead, fit_head
from vitlab.models.model import Model
from vitlab.recipes.recipe import CHOOSABLE
from vitlab.training.setup.preparation import Task, signed
from vitlab.training.setup.starting import made_from, same_classes
from vitlab.units import percent
from vitlab.weights.deltas import delta
from vitlab.weights.load import load
from vitlab.weights.save import save

FOLDS = 5
MOST = 20_000  # images that the classifier is fitted to: with more it hardly starts better


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
    base, start = task.base, task.recipe.start
    if base is None or start.head_start != "probe" or same_classes(base.config, task.config.labels):
        return task
    if task.started:  # the checkpoints have gone on from there
        kept = task.folder.head_start
        return replace(task, fitted=load(kept, base=base) if kept.is_file() else None)
    if not isinstance(task.splits.train.labels, SingleLabels):
        line = "the classifier starts at zero: images with several labels have no logistic fit"
        return replace(task, told=[*task.told, line])
    model = made_from(base, task.config, start)
    splits, most = task.splits, max(MOST, task.config.classes)  # each class has an image
    source = splits.train if len(splits.train) <= most else with_train_images(splits, most).train
    compute = Compute(device, "fp32", "plain", task.host.workers, world.local_size)
    title = "features that the classifier is fitted to"
    learn = features_of(model, source, compute, world=world, cache=default_cache(), title=title)
    found, reason = None, ""
    if world.first:
        choices = [FeatureChoice(model.last_layer, "", 0, learn.values.shape[1])]
        try:
            found = fit_head(source, learn, choices, KINDS[:1], FOLDS, device)
        except DataError as error:  # too few images
            reason = f"the classifier starts at zero: {error}"
    if reason := world.broadcast(reason):
        return replace(task, told=[*task.told, reason])
    model.unlike = found.unlike if found else None
    _set_head(model, found, world)
    return _told(replace(task, fitted=model), found, len(source), world)


def _set_head(model: Model, found: FoundHead | None, world: World) -> None:
    """Give a model the fitted classifier, that of the first process, divided by its temperature."""
    for name, fitted in {"weight": "weights", "bias": "bias"}.items():
        own = model.get_parameter(f"{model.head_names[0]}{name}").data
        if found is not None:
            own.copy_(torch.from_numpy(getattr(found.head, fitted) / found.temperature))
        if world.size > 1:
            dist.broadcast(own, 0)


def _told(task: Task, found: FoundHead | None, images: int, world: World) -> Task:
    """Return the task whose model says what it is, and whose user knows how the head was fitted."""
    assert task.fitted is not None
    known = found and {"l2": found.head.l2, "cross_validated": found.accuracy, "images": images}
    about: dict[str, Any] = world.broadcast(known)
    signed(task.fitted, task)
    task.fitted.provenance |= {"head_start": about}
    line = (
        f"the classifier starts as a logistic regression on the frozen features of {images:,} "
        f"images: {percent(about['cross_validated'])} in cross-validation (l2 {about['l2']:g}); "
        f"{task.folder.model} is that one until training is done"
    )
    if task.splits.validation is None:
        line += (
            f"; with fewer than {CHOOSABLE} training images none are held out to choose between it "
            "and the fine-tuned one, which is kept: the test sets both side by side"
        )
    return replace(task, told=[*task.told, line])


def keep_start(task: Task) -> None:
    """Write the fitted classifier into the folder of a run that has begun, and as its model.

    So a run that is stopped early leaves a classifier that can be used.

    Raises:
        DiskError: it cannot be written.
    """
    if task.fitted is None or task.started:
        return
    assert task.base is not None
    delta(task.fitted, task.base).save(task.folder.head_start)
    save(task.fitted, task.folder.model)
