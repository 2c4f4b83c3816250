"""`run.toml`: its format, and the file as a recipe for other runs."""

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_type_hints

from vitlab.documents import read_toml
from vitlab.errors import OptionError, RunError
from vitlab.recipes.named import RECIPES, default_recipe, recipe
from vitlab.recipes.recipe import Decisions, Recipe
from vitlab.runs.local_paths import LocalPaths
from vitlab.values import fits

FORMAT = 2  # of run.toml
LARGEST = 2 * 2**20  # bytes of it


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
    tables = read_tables(file, "it cannot be read as a recipe")
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
    found = LocalPaths.of(tables, file.parent).here(found)
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


def read_tables(file: Path, advice: str) -> dict[str, Any]:
    """Return the tables of a `run.toml`, of this format, each of the right kind.

    Args:
        file: its place
        advice: with which the line about a damaged one ends

    Raises:
        RunError: it cannot be read, is damaged, or states another format.
    """
    try:
        tables = read_toml(file, RunError, LARGEST)
    except RunError as error:
        raise RunError(f"{error}: {advice}") from error
    run = tables.get("run", {})
    check_format(run.get("format", FORMAT) if isinstance(run, dict) else FORMAT, file)
    for name, value in tables.items():
        kind, wanted = KINDS.get(name, (is_table, "a table"))
        if not kind(value):
            raise RunError(f"{file} is damaged: {name} is not {wanted}: {advice}")
    return tables


def is_table(value: object) -> bool:
    """Return whether a value of TOML is a table."""
    return isinstance(value, dict)


def _are_texts(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(each, str) for each in value.values())


def _are_facts(value: object) -> bool:
    """Whether it is the table `run`: texts, and the number of the format."""
    return isinstance(value, dict) and _are_texts({**value, "format": ""})


def _are_changes(value: object) -> bool:
    rows = value if isinstance(value, list) else [None]
    return all(isinstance(each, dict) and type(each.get("step")) is int for each in rows)


def _are_decisions(value: object) -> bool:
    """Whether it is the table `decided`: what `Decisions` has."""
    if not isinstance(value, dict) or not value.keys() <= DECIDED.keys():
        return False
    if not all(fits(each, DECIDED[name]) for name, each in value.items()):
        return False
    plan, micro = value.get("plan"), value.get("micro_batch")
    return (not plan or plan[0][0] == 0) and (micro is None or micro > 0)


DECIDED = get_type_hints(Decisions)
KINDS: dict[str, tuple[Callable[[object], bool], str]] = {
    "run": (_are_facts, "a table of texts"),
    "versions": (_are_texts, "a table of texts"),
    "code": (_are_texts, "a table of texts"),
    "nearby": (_are_texts, "a table of texts"),
    "changes": (_are_changes, "a list of tables, each with its step"),
    "decided": (_are_decisions, "what a run decides"),
}


def check_format(number: object, file: Path) -> None:
    """Refuse a `run.toml` of another format.

    Raises:
        RunError: it states another one.
    """
    if number != FORMAT:
        raise RunError(
            f"{file} has format {number}, but this version of ViTLab reads format {FORMAT}: "
            "pip install -U vitlab"
        )
