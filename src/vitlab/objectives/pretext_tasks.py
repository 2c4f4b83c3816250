"""The pretext tasks by name."""

from vitlab.data.loading.views import View
from vitlab.models.configs.model_config import ModelConfig
from vitlab.objectives.beit import BEiT
from vitlab.objectives.detect import Detect
from vitlab.objectives.dino import SelfDistillation
from vitlab.objectives.lejepa import LeJEPA
from vitlab.objectives.mae import MAE
from vitlab.objectives.masked_patch import MaskedPatch
from vitlab.objectives.pretext_task import PretextTask
from vitlab.objectives.regress import Regress
from vitlab.objectives.segment import Segment
from vitlab.objectives.tokenize import Tokenize
from vitlab.recipes.recipe import Recipe

TASKS: dict[str, type[PretextTask]] = {
    "beit": BEiT,
    "detect": Detect,
    "dino": SelfDistillation,
    "lejepa": LeJEPA,
    "mae": MAE,
    "masked-patch": MaskedPatch,
    "regress": Regress,
    "segment": Segment,
    "tokenizer": Tokenize,
}
"""By the recipe's `task`; `classify` is not among them, for the model itself learns it."""


def views_of(recipe: Recipe, config: ModelConfig) -> tuple[View, ...]:
    """Return the crops that a recipe's task learns from; an empty tuple for one of each image."""
    task = TASKS.get(recipe.pretext.task)
    return () if task is None else task.views(recipe.pretext, config, recipe.augment)
