"""The pretext tasks by name; a task's file is imported when a recipe names it."""

from typing import TYPE_CHECKING

from vitlab.by_name import load_object
from vitlab.models.configs.model_config import ModelConfig
from vitlab.recipes.recipe import Recipe

if TYPE_CHECKING:
    from vitlab.data.loading.views import View
    from vitlab.objectives.pretext_task import PretextTask

TASKS: dict[str, str] = {
    "beit": "vitlab.objectives.beit:BEiT",
    "detect": "vitlab.objectives.detect:Detect",
    "dino": "vitlab.objectives.dino:SelfDistillation",
    "lejepa": "vitlab.objectives.lejepa:LeJEPA",
    "mae": "vitlab.objectives.mae:MAE",
    "masked-patch": "vitlab.objectives.masked_patch:MaskedPatch",
    "regress": "vitlab.objectives.regress:Regress",
    "segment": "vitlab.objectives.segment:Segment",
    "tokenizer": "vitlab.objectives.tokenize:Tokenize",
}
"""Classes, as "module:object", by the recipe's `task`.

`classify` is not among them, for the model itself learns it.
"""


def pretext_task(name: str) -> "type[PretextTask]":
    """Return the class of a task in `TASKS`."""
    task: type[PretextTask] = load_object(TASKS[name])
    return task


def views_of(recipe: Recipe, config: ModelConfig) -> "tuple[View, ...]":
    """Return the crops that a recipe's task learns from; an empty tuple for one of each image."""
    name = recipe.pretext.task
    if name not in TASKS:
        return ()
    return pretext_task(name).views(recipe.pretext, config, recipe.augment)
