"""What learns beside a model, and the frozen model that both learn from."""

import torch

from vitlab.errors import OptionError
from vitlab.models.config import ModelConfig
from vitlab.models.model import Model
from vitlab.objectives.pretext_task import PretextTask
from vitlab.objectives.pretext_tasks import TASKS
from vitlab.recipes.recipe import Host, Recipe
from vitlab.runs.run_folder import RunFolder
from vitlab.weights.load import load


def is_pretext(recipe: Recipe) -> bool:
    """Return whether a recipe learns without labels."""
    return recipe.pretext.task != "classify"


def guide_of(recipe: Recipe, folder: RunFolder, started: bool) -> Model | None:
    """Return the frozen model whose answers are learned, a tokenizer or a teacher, if there is one.

    A run that goes on has a copy in its folder.

    Raises:
        WeightsError: it cannot be loaded.
        HubError: the Hub does not have it, or cannot be reached.
    """
    weights = recipe.pretext.tokenizer or recipe.distill.teacher
    if not weights:
        return None
    kept = started and folder.guide.is_dir()
    return load(folder.guide if kept else weights)


def check_beside(recipe: Recipe, host: Host, config: ModelConfig, guide: Model | None) -> list[str]:
    """Refuse a task that has no meaning for a model, a guide or a host; return its remarks.

    Raises:
        OptionError: the message says what would work.
    """
    if not is_pretext(recipe):
        return []
    name, kind = recipe.pretext.task, TASKS[recipe.pretext.task]
    if host.shard:
        raise OptionError(f"--shard does not support task={name}: leave it out")
    kind.check(recipe.pretext, config, guide)
    return kind.remarks(recipe.pretext, config)


def beside(
    recipe: Recipe,
    config: ModelConfig,
    guide: Model | None,
    device: torch.device,
    generator: torch.Generator,
) -> PretextTask | None:
    """Return what learns beside a new model, with its first weights; None for labels alone.

    Args:
        recipe: names the task
        config: of the model
        guide: the frozen model, which moves to the device
        device: where to train
        generator: of the first weights
    """
    if not is_pretext(recipe):
        return None
    if guide is not None:
        guide.to(device).eval().requires_grad_(False)
    task = TASKS[recipe.pretext.task](recipe.pretext, config, guide)
    task.reset_parameters(generator)
    return task.to(device)
