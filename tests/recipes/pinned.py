"""Pinned values: of every option and public argument, of every recipe, and of every study's arms.

`PYTHONPATH=src:tests:docs/generate python -m recipes.pinned` writes them anew, where a change is
meant: they are the papers', and those that runs and scripts of users rely on.
"""

import inspect
from collections.abc import Iterator
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from option_pages import groups, own_options, values

import vitlab
from vitlab.recipes.named import RECIPES
from vitlab.recipes.recipe import Recipe
from vitlab.studies.base import Base, small
from vitlab.studies.papers import STUDIES, study_named

FILE = Path(__file__).with_name("pinned.txt")
MODELS = (
    "ViT-Ti/16", "ViT-S/16", "ViT-B/16", "ViT-L/16", "ViT-H/14", "ViT-S18x2/16", "R50+ViT-B/16",
    "BiT-R50x1",
)  # fmt: skip


def options() -> Iterator[str]:
    """A line for each option: default, values, and when it applies."""
    for kind in groups():
        defaults = {each.name: each.default for each in fields(kind)}  # type: ignore[arg-type]
        for name, about in own_options(kind).items():
            value = "required" if defaults[name] is MISSING else repr(defaults[name])
            only = f"; {about.only.words}" if about.only else ""
            yield f"{kind.__name__}.{name} = {value}; {values(kind, name, about)}{only}"


def arguments() -> Iterator[str]:
    """A line for each public function: its arguments and their defaults."""
    for name in vitlab.__all__:
        if inspect.isfunction(function := getattr(vitlab, name)):
            every = inspect.signature(function).parameters.values()
            plain = [each.replace(annotation=inspect.Parameter.empty) for each in every]
            shown = (str(each).partition("=<function")[0] for each in plain)  # without its address
            yield f"vitlab.{name}({', '.join(shown)})"


def recipes() -> Iterator[str]:
    """A line for each recipe: what differs from the defaults, and for some models from that."""
    usual = flat(Recipe())
    for name, make in RECIPES.items():
        own = flat(make())
        yield f"{name}: {changes(usual, own)}"
        for model in MODELS:
            try:
                other = flat(vitlab.recipe(name, model=model))
            except vitlab.UserError:
                other = own
            if more := changes(own, other):
                yield f"{name}, {model}: {more}"


def arms() -> Iterator[str]:
    """A line for each arm of the small studies: what differs from the recipe of all."""
    base = Base(small("images"), downstream="digits")
    usual = flat(base.recipe)
    for name in STUDIES:
        for arm in study_named(name).arms(base):
            more = {
                key: getattr(arm, key) for key in ("after", "guide", "rates", "x", "macs", "paper")
            }
            own = {"model": arm.recipe.model.model} | {k: v for k, v in more.items() if v}
            yield f"{name}, {arm.name}: {changes(usual, flat(arm.recipe) | own)}"


def flat(recipe: Recipe) -> dict[str, Any]:
    """All options of a recipe but those that name it."""
    tables = recipe.as_tables().values()
    told = {key: value for table in tables for key, value in table.items()}
    return {key: value for key, value in told.items() if key not in ("recipe", "model")}


def changes(before: dict[str, Any], after: dict[str, Any]) -> str:
    """What one has and the other has not."""
    return ", ".join(f"{k}={v!r}" for k, v in after.items() if k not in before or before[k] != v)


def text() -> str:
    """The whole file."""
    return "\n".join([*options(), "", *arguments(), "", *recipes(), "", *arms(), ""])


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
