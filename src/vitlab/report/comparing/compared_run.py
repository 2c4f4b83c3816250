"""One run of a comparison or a listing, as its folder tells it, and how several recipes differ."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from vitlab.errors import UserError
from vitlab.evaluation.run_predictions import Examined
from vitlab.options import Options, hints, options_of
from vitlab.recipes.model_part import ModelPart
from vitlab.recipes.recipe import Recipe
from vitlab.report.facts import RunFacts, facts_of
from vitlab.report.page import setting
from vitlab.runs.run_folder import RunFolder

MISSING = "not known"
Rows = dict[str, tuple[str, ...]]
"""By the name of an option, as the command line spells it, its value in each run, as text."""


@dataclass(frozen=True, eq=False)
class ComparedRun:
    """A run and what it left.

    Attributes:
        name: short, different from those of the others
        folder: the run's
        recipe: of the run; None if `run.toml` is from another version
        facts: of the run; its figures are empty if it is not finished
        examined: what its model answered to each test image; None if that is not known
        unknown: why it is not, in a few words
    """

    name: str
    folder: RunFolder
    recipe: Recipe | None
    facts: RunFacts
    examined: Examined | None = None
    unknown: str = "it is not finished"

    @property
    def seed(self) -> int | None:
        """The seed of its recipe."""
        return None if self.recipe is None else self.recipe.seed


def entry_of(folder: RunFolder, name: str) -> ComparedRun:
    """Read what a run left, without its model and its data.

    Raises:
        RunError: its files are damaged.
    """
    facts = facts_of(folder)
    try:
        return ComparedRun(name, folder, folder.recipe, facts)
    except UserError:
        return ComparedRun(name, folder, None, facts)


# How the recipes of several differ


def differing(entries: Sequence[ComparedRun]) -> Rows:
    """Return the options of the recipes that are not the same in all runs.

    Options that a kind of model does not have are a dash there. Beside them stand the user's own
    functions, and how often options were changed while a run went on.
    """
    codes = [
        {f"{name}= (Python)": each.folder.code.get(name) for name in ("transform", "loss")}
        | {"changed while it ran": len(each.facts.recipe.get("changes", ()))}
        for each in entries
    ]
    recipes = [options_in(each.recipe) if each.recipe else None for each in entries]
    return _apart(recipes) | _apart(codes)


def surroundings(entries: Sequence[ComparedRun]) -> Rows:
    """Return what else differs: the device, and versions of the libraries."""
    return _apart([{"device": each.facts.device, **each.facts.versions} for each in entries])


def _apart(known: Sequence[Mapping[str, Any] | None]) -> Rows:
    """Return the values that are not the same in all runs."""
    names = dict.fromkeys(name for each in known for name in each or ())
    rows = {
        name: tuple(MISSING if each is None else setting(each.get(name)) for each in known)
        for name in names
    }
    return {name: values for name, values in rows.items() if len(set(values)) > 1}


def options_in(group: Options) -> dict[str, Any]:
    """Return every option of a recipe by its name on the command line, `--layer-scale`.

    Those of nested groups come after the group's own.
    """
    kind, found, nested = type(group), dict[str, Any](), list[Options]()
    about, standard = options_of(kind), dict[str, Any]()
    if isinstance(group, ModelPart):
        standard = {each.name: each.default for each in fields(group.CONFIG)}
    for name in hints(kind):
        value = getattr(group, name)
        if isinstance(value, Options):
            nested.append(value)
        else:
            word = about[name].flag if name in about and about[name].flag else name
            usual = standard.get(name) if value is None else value
            found[f"--{word.replace('_', '-')}"] = usual
    for each in nested:
        found |= options_in(each)
    return found
