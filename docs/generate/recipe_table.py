"""The table of recipes, from the recipes themselves."""

import inspect

from vitlab.recipes.named import RECIPES
from vitlab.recipes.recipe import Recipe

PLACE = "<!-- the recipes -->"
HEAD = "| recipe | source | length | batch | optimizer | learning rate | weight decay | schedule |"


def recipe_table() -> str:
    """Return a row per recipe: its first line, and the values of its usual model."""
    rows = [row(name, inspect.getdoc(make) or "", make()) for name, make in RECIPES.items()]
    return "\n".join([HEAD, "| --- " * (HEAD.count("|") - 1) + "|", *rows])


def row(name: str, about: str, recipe: Recipe) -> str:
    """Return the row of a recipe."""
    how, plan = recipe.optimizer, recipe.schedule
    length = f"{recipe.steps:,} steps" if recipe.steps else f"{recipe.epochs:g} epochs"
    warm = f"{plan.warmup_steps:,} steps" if plan.warmup_steps else f"{plan.warmup:g} epochs"
    cells = (f"`{name}`", about.splitlines()[0], length, f"{recipe.batch:,}", how.optimizer)
    cells += (f"{how.lr:g}", f"{how.weight_decay:g}", f"{plan.schedule}, warm-up {warm}")
    return f"| {' | '.join(cells)} |"
