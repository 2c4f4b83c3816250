"""Recipes of compared runs: runs that differ in their seed or fold alone are one.

What a run starts from counts as the same, too, where that is a run that differs in its seed or fold
alone: the fine-tuned models of three seeds, each from the pre-trained model of its seed.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from vitlab.errors import OptionError, UserError
from vitlab.evaluation.metrics import METRICS
from vitlab.places import exists
from vitlab.recipes.recipe import Recipe
from vitlab.report.comparing.compared_run import ComparedRun, options_in
from vitlab.report.comparing.short_names import recipe_names
from vitlab.runs.run_folder import RunFolder

MOST = 20  # recipes that are compared at once
NUMBERING = ("--seed", "--fold")  # what runs of one recipe differ in
PLACES = ("--images", "--cache-data", "--cache-gb", "--allow-outside")  # where the same data lies
GUIDES = ("--teacher", "--tokenizer")
Unit = tuple[int | None, str]
"""The seed and the fold of a run."""


@dataclass(frozen=True, eq=False)
class ComparedRecipe:
    """Runs that differ in their seed or fold alone.

    Attributes:
        name: short, different from those of the others
        runs: finished ones, one of each seed and fold
        unfinished: others, which have no figures
        again: finished runs of a seed and fold that another one has, too
    """

    name: str
    runs: tuple[ComparedRun, ...]
    unfinished: tuple[ComparedRun, ...] = ()
    again: tuple[ComparedRun, ...] = ()

    @property
    def first(self) -> ComparedRun:
        """A run whose options stand for those of all."""
        return (*self.runs, *self.unfinished)[0]

    @property
    def units(self) -> list[Unit]:
        """Seed and fold of each finished run."""
        return [unit_of(each) for each in self.runs]

    @property
    def folds(self) -> list[str]:
        """The folds of the finished runs, each once."""
        return list(dict.fromkeys(fold for _, fold in self.units if fold))

    @property
    def figures(self) -> dict[str, list[float]]:
        """By metric its value in each run, as far as all of them have it."""
        values = {name: [each.facts.number(name) for each in self.runs] for name in METRICS}
        known = {name: [each for each in own if each is not None] for name, own in values.items()}
        return {name: own for name, own in known.items() if own and len(own) == len(self.runs)}

    @property
    def mean(self) -> dict[str, float]:
        """The mean of each figure."""
        return {name: float(np.mean(own)) for name, own in self.figures.items()}

    @property
    def std(self) -> dict[str, float]:
        """The sample standard deviation of each figure; nothing of a single run."""
        if len(self.runs) < 2:
            return {}
        return {name: float(np.std(own, ddof=1)) for name, own in self.figures.items()}


def unit_of(entry: ComparedRun) -> Unit:
    """Return the seed and the fold of a run."""
    return entry.seed, "" if entry.recipe is None else entry.recipe.data.fold


def recipes_of(entries: Sequence[ComparedRun]) -> list[ComparedRecipe]:
    """Return the recipes of some runs, in the order of their first runs.

    Raises:
        OptionError: there are too many.
    """
    groups = list(_groups(entries, NUMBERING))
    if len(groups) > MOST:
        raise OptionError(f"these are {len(groups)} recipes: compare at most {MOST} at once")
    recipes = [_recipe(own) for own in groups]
    named = [each.runs or each.unfinished for each in recipes]
    names = recipe_names([[run.folder.path for run in runs] for runs in named])
    return [replace(each, name=name) for each, name in zip(recipes, names, strict=True)]


def _recipe(entries: Sequence[ComparedRun]) -> ComparedRecipe:
    runs = dict[tuple[Unit, tuple[Unit, ...]], ComparedRun]()
    again = list[ComparedRun]()
    for each in entries:
        if each.facts.figures:
            own = unit_of(each), _numbers_before(each)
            again += [each] * (own in runs)
            runs.setdefault(own, each)
    unfinished = tuple(each for each in entries if not each.facts.figures)
    in_order = sorted(runs.values(), key=lambda run: (run.seed or 0, unit_of(run)[1]))
    return ComparedRecipe("", tuple(in_order), unfinished, tuple(again))


def _numbers_before(entry: ComparedRun) -> tuple[Unit, ...]:
    """Return seed and fold of each run that a run starts from."""
    before = _origins(entry.folder, entry.recipe) if entry.recipe else []
    return tuple((recipe.seed, recipe.data.fold) for _, recipe in before)


def seeds_of(entries: Sequence[ComparedRun]) -> list[dict[str, Any]]:
    """Return mean and deviation of each figure that all runs have which differ in their seed alone.

    Returns:
        Of each group of runs `runs`, their folders, `seeds`, and by figure `mean` and `std`, the
        sample standard deviation.
    """
    found = []
    for runs in _groups([each for each in entries if each.facts.figures], NUMBERING[:1]):
        if len({each.seed for each in runs}) > 1:
            group = ComparedRecipe("", tuple(runs))
            found.append(
                {
                    "runs": [str(each.folder.path) for each in runs],
                    "seeds": [each.seed for each in runs],
                    "mean": group.mean,
                    "std": group.std,
                }
            )
    return found


def _groups(
    entries: Sequence[ComparedRun], numbering: Iterable[str]
) -> Iterable[list[ComparedRun]]:
    """Return the runs whose recipes are the same but for some options, each group together."""
    groups = defaultdict[str, list[ComparedRun]](list)
    for each in entries:
        own = str(each.folder.path.resolve())  # of another version: alone
        groups[_identity(each.folder, each.recipe, numbering) if each.recipe else own].append(each)
    return groups.values()


def _identity(folder: RunFolder, recipe: Recipe, numbering: Iterable[str]) -> str:
    """Return a text that is the same for runs of one recipe and the same images."""
    origins = _origins(folder, recipe)
    parts = list[Any]()
    numbering = set(numbering)
    for number, (run, learned) in enumerate([(folder, recipe), *origins]):
        options = options_in(learned) | dict.fromkeys((*numbering, *PLACES))
        options["--data"] = Path(str(options["--data"])).name  # the fingerprint says which
        named = number < len(origins)  # the run that it starts from: compared next
        options["--from"] = "a run" if named else run.base or options["--from"]
        for name in GUIDES:
            options[name] = options[name] and (run.guided_by or options[name])
        data = run.data_checksum
        if (fold := learned.data.fold) and "--fold" in numbering:  # each has a fingerprint
            data = f"{fold.partition('/')[2]} of {_whole_place(learned.data.data)}"
        parts.append((options, data, run.code, run.tables.get("changes", [])))
    return repr(parts)


def _whole_place(data: str) -> str:
    """Return where data lies, if that is on this machine; else its name."""
    path = Path(data).expanduser()
    return str(path.resolve()) if exists(data) else str(path)


def _origins(folder: RunFolder, recipe: Recipe) -> list[tuple[RunFolder, Recipe]]:
    """Return the run that another one starts from, then that before it, as far as at hand."""
    found = list[tuple[RunFolder, Recipe]]()
    known = {folder.path.resolve()}
    while before := _run_before(folder):
        if before.path.resolve() in known:
            break
        known.add(before.path.resolve())
        folder = before
        recipe = before.recipe
        found.append((folder, recipe))
    return found


def _run_before(folder: RunFolder) -> RunFolder | None:
    """Return the run that another one starts from, wherever it lies now; None without one."""
    for path in folder.paths.places("weights"):
        run = RunFolder(path)
        try:
            if run.started and isinstance(run.recipe, Recipe):  # else of another version
                return run
        except UserError:
            continue
    return None
