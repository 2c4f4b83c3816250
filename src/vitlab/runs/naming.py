"""Where a run is if no folder is given."""

import re
from pathlib import Path

from vitlab.recipes.recipe import Recipe


def folder_of(recipe: Recipe) -> Path:
    """Return where a run is if no folder is given: data, recipe and seed in `runs/`."""
    return default_folder(recipe.data.data, recipe.recipe, recipe.seed)


def default_folder(*words: object) -> Path:
    """Return `runs/` and a name made of words, such as data, recipe and seed.

    A word that is a path counts by its last part.
    """
    parts = [re.sub(r"[^\w.-]+", "-", Path(str(word)).name) or "data" for word in words]
    return Path("runs") / "-".join(parts)
