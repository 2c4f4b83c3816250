"""`run.toml`: its format, and the file as a recipe for other runs."""

import logging
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

from vitlab.errors import OptionError, RunError
from vitlab.recipes.named import RECIPES, default_recipe, recipe
from vitlab.recipes.recipe import Recipe

FORMAT = 2  # of run.toml


def recipe_in(place: str | Path) -> Recipe | None:
    """Return the recipe in a run's folder, or in its `run.toml` or a copy of it; None elsewhere.

    The classes and channels of that run's data are left out, so that it goes with other data.

    Raises:
        RunError: the file is damaged, or has fields that this version does not know.
    """
    path = Path(place)
    file = path / "run.toml" if path.is_dir() else path
    if path.suffix != ".toml" and not (path.is_dir() and file.is_file()):
        return None
    try:
        tables = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(f"{file} cannot be read as a recipe: {error}") from error
    check_format(tables, file)
    try:
        found = Recipe.from_tables(tables)
    except (OptionError, TypeError) as error:
        raise RunError(f"{file} cannot be read as a recipe: {error}") from error
    if code := [f"{k}={v}" for k, v in tables.get("code", {}).items() if "sha256" not in k]:
        logging.getLogger("vitlab").warning(
            f"{file} is of a run with {' and '.join(code)}, which a recipe does not have: pass the "
            "function to vitlab.train again"
        )
    none: dict[str, Any] = dict.fromkeys(("classes", "channels"))
    return replace(found, model=replace(found.model, **none))


def start_from(choices: dict[str, Any], otherwise: str = "") -> tuple[Recipe, dict[str, Any]]:
    """Return the recipe that choices start from, and the remaining choices.

    Args:
        choices: options by name; the recipe, of a name or in a run's folder, is made for the model
            or the weights among them; of another model, that of a folder keeps how images are
            prepared and what is dropped
        otherwise: the recipe if the choices name none; empty for the default of the data

    Raises:
        OptionError: an unknown recipe or model.
        RunError: a file that is no recipe.
    """
    name = choices.get("recipe") or otherwise or default_recipe(choices.get("data", ""))
    rest = {key: value for key, value in choices.items() if key != "recipe"}
    taken = {key: choices[key] for key in ("model", "weights") if key in choices}
    rest.pop("model", None)
    if name not in RECIPES and (found := recipe_in(name)):
        if (model := taken.get("model", found.model.model)) != found.model.model:
            found = replace(found, model=found.model.of_model(model))
        return found, rest
    return recipe(name, **taken), rest


def check_format(tables: dict[str, Any], file: Path) -> None:
    """Refuse the tables of a `run.toml` of another format.

    Raises:
        RunError: they state another one.
    """
    number = tables.get("run", {}).get("format", FORMAT)
    if number != FORMAT:
        raise RunError(
            f"{file} has format {number}, but this version of ViTLab reads format {FORMAT}: "
            "pip install -U vitlab"
        )
