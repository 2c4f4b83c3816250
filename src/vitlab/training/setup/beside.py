"""What learns beside a model, and the frozen model that both learn from."""

from dataclasses import replace

import torch

from vitlab.data.labels import Labels
from vitlab.data.settings import Augment
from vitlab.device import with_float64
from vitlab.errors import DeviceError, OptionError
from vitlab.models.config import ModelConfig
from vitlab.models.model import Model
from vitlab.objectives.classify import Classify
from vitlab.objectives.distill.distillation import distillation
from vitlab.objectives.distill.teacher import check_teacher, remarks_of
from vitlab.objectives.objective import Objective
from vitlab.objectives.owning import OwningObjective
from vitlab.objectives.pretext_tasks import TASKS
from vitlab.recipes.recipe import Host, Recipe
from vitlab.runs.run_folder import RunFolder
from vitlab.training.setup.hooks import Hooks
from vitlab.weights.load import load


def guiding(recipe: Recipe) -> str:
    """Return the weights of the tokenizer or the teacher that a recipe names; empty for none."""
    return recipe.pretext.tokenizer or recipe.distill.teacher


def guide_of(recipe: Recipe, folder: RunFolder, started: bool) -> Model | None:
    """Return the frozen model whose answers are learned, a tokenizer or a teacher, if there is one.

    A run that goes on has a copy in its folder.

    Raises:
        WeightsError: it cannot be loaded.
        HubError: the Hub does not have it, or cannot be reached.
    """
    weights = guiding(recipe)
    if not weights:
        return None
    kept = started and folder.guide.is_dir()
    return load(folder.guide if kept else weights)


def check_beside(
    recipe: Recipe, host: Host, config: ModelConfig, guide: Model | None, labels: Labels
) -> list[str]:
    """Refuse a task or a teacher that has no meaning for a model or a host; return its remarks.

    Args:
        recipe: names the task or the teacher
        host: where and how
        config: of the model
        guide: tokenizer or teacher, if there is one
        labels: of the training images

    Raises:
        OptionError: the message says what would work.
    """
    name, taught = recipe.pretext.task, recipe.distill
    if host.shard and (recipe.pretext.unlabeled or taught.teacher):
        what = "a teacher" if taught.teacher else f"task={name}"
        raise OptionError(f"--shard does not support {what}: leave it out")
    if recipe.pretext.unlabeled:
        TASKS[name].check(recipe.pretext, config, guide)
        return TASKS[name].remarks(recipe.pretext, config)
    if guide is None:
        return []
    check_teacher(taught, config, guide, labels.several)
    return remarks_of(config, guide, taught)


def beside(
    recipe: Recipe,
    config: ModelConfig,
    guide: Model | None,
    device: torch.device,
    classify: Objective,
    labels: Labels,
    hooks: Hooks,
    generator: torch.Generator,
) -> OwningObjective | None:
    """Return what learns beside a new model, with its first weights; None for labels alone.

    Args:
        recipe: names the task or the teacher
        config: of the model
        guide: the frozen model, which moves to the device
        device: where to train
        classify: the loss of labels, beside which a teacher's answers are learned
        labels: of the training images
        hooks: functions of the user's own
        generator: of the first weights
    """
    if guide is not None:
        guide.to(device).eval().requires_grad_(False)
    own: OwningObjective
    if recipe.pretext.unlabeled:
        own = TASKS[recipe.pretext.task](recipe.pretext, config, guide)
    elif guide is not None:
        assert isinstance(classify, Classify)
        kept = len(labels) if _unchanging(recipe, hooks) else 0
        own = distillation(recipe.distill, classify, config, guide, labels.several, kept)
    else:
        return None
    own.reset_parameters(generator)
    wide = any(each.dtype is torch.float64 for each in own.buffers())
    if wide and with_float64(device) != device:
        raise DeviceError(
            f"--task {recipe.pretext.task} needs float64, which {device} lacks: use --device cpu"
        )
    return own.to(device)


def _unchanging(recipe: Recipe, hooks: Hooks) -> bool:
    """Return whether every epoch shows the teacher the same pixels, so that it is asked once."""
    plain = replace(recipe.augment, repeats=1) == Augment() and hooks.transform is None
    return plain and recipe.distill.cache_teacher == "auto"
