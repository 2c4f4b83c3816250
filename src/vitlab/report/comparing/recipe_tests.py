"""Tests of recipes against each other: differences of means over seeds or folds, by t-tests."""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

import numpy as np

from vitlab.evaluation.metrics import MAIN, METRICS, Metric
from vitlab.evaluation.multiple_tests import holm
from vitlab.evaluation.paired_tests import Difference
from vitlab.evaluation.statistics import Estimate, paired, welch
from vitlab.report.comparing.compared_run import ComparedRun, differing
from vitlab.report.comparing.recipe_groups import ComparedRecipe

OF_LOSS = (
    "--loss", "--bce-threshold", "--label-smoothing", "--balance", "--weight-beta", "--focal-gamma",
    "--mixup", "--cutmix", "loss= (Python)", "--mask-ratio", "--target", "--tokenizer",
    "--normalize-pixels", "--kl-weight", "--prototypes", "--centering",
    "--student-temperature", "--teacher-temperature",
)  # fmt: skip
UNLABELED = ("loss", "probe", "knn")  # figures of runs without labels
PAIRED, WELCH = "paired", "welch"
TITLES = {PAIRED: "paired t-test", WELCH: "Welch's t-test"}
OTHER_IMAGES, NO_FIGURE, SINGLE, SAME_GAP = "images", "figure", "single", "same"  # no test: why
ROUNDING = 1e-9  # of the figures: smaller errors of a mean are none
SECOND_LESS_FIRST = {"second": 1.0, "first": -1.0}


@dataclass(frozen=True)
class RecipePair:
    """Two recipes, and how far the means over their runs are apart.

    Attributes:
        first: number of the one
        second: number of the other
        differences: second minus first, of each figure that both have; intervals are of Student's t
        metric: name of the figure that is tested; empty where there is none
        test: `paired`, of differences within each seed or fold, or `welch`; empty without one
        reason: why there is none
        p: of the test, two-sided
        adjusted: the same after Holm's correction for all pairs
    """

    first: int
    second: int
    differences: dict[str, Difference]
    metric: str = ""
    test: str = ""
    reason: str = ""
    p: float | None = None
    adjusted: float | None = None


def recipe_pairs(recipes: Sequence[ComparedRecipe]) -> list[RecipePair]:
    """Compare each two recipes, if there are some of several runs; nothing otherwise."""
    if not any(len(each.runs) > 1 for each in recipes):
        return []
    known = [number for number, each in enumerate(recipes) if each.runs]
    pairs = [_pair(recipes, *two) for two in combinations(known, 2)]
    adjusted = iter(holm([each.p for each in pairs if each.p is not None]))
    return [each if each.p is None else replace(each, adjusted=next(adjusted)) for each in pairs]


def _pair(recipes: Sequence[ComparedRecipe], first: int, second: int) -> RecipePair:
    one = recipes[first]
    other = recipes[second]
    if not _share_images(one, other):
        return RecipePair(first, second, {}, reason=OTHER_IMAGES)
    metric = main_of_both(one, other)
    if metric is None:
        return RecipePair(first, second, {}, reason=NO_FIGURE)
    seeds = _same_units(one, other)
    estimates = {
        name: _estimate(values, other.figures[name], seeds)
        for name, values in one.figures.items()
        if name in other.figures
    }
    gaps = {name: Difference(each.mean, _interval(each)) for name, each in estimates.items()}
    found = RecipePair(first, second, gaps, metric.name)
    if min(len(one.runs), len(other.runs)) < 2:
        return replace(found, reason=SINGLE)
    main = estimates[metric.name]
    if not main.error and main.mean:
        return replace(found, reason=SAME_GAP)
    return replace(found, test=PAIRED if seeds else WELCH, p=main.p)


def _estimate(first: list[float], second: list[float], in_pairs: bool) -> Estimate:
    values = {"first": first, "second": second}
    found = (paired if in_pairs else welch)(SECOND_LESS_FIRST, values)
    size = max(map(abs, (*first, *second)))
    return replace(found, error=0.0) if found.error <= ROUNDING * size else found


def _interval(found: Estimate) -> tuple[float, float] | None:
    """Return the 95% interval; None where runs do not tell how far they are from each other."""
    if not found.reach or not math.isfinite(found.reach):
        return None
    return found.mean - found.reach, found.mean + found.reach


def _same_units(first: ComparedRecipe, second: ComparedRecipe) -> bool:
    """Whether the runs of both come in the same order of the same seeds and folds."""
    return first.units == second.units and len(set(first.units)) == len(first.units)


def main_of_both(first: ComparedRecipe, second: ComparedRecipe) -> Metric | None:
    """Return the figure by which two recipes are compared; None if they have none in common."""
    shared = first.figures.keys() & second.figures.keys()
    tasks = {first.first.facts.task, second.first.facts.task}
    apart = any(option in OF_LOSS for option in differing((first.first, second.first)))
    if len(tasks) > 1 or apart:
        shared -= {"loss"}  # another quantity
    names = (*MAIN.values(), *UNLABELED)
    return next((METRICS[name] for name in names if name in shared), None)


def same_tests(recipes: Sequence[ComparedRecipe]) -> list[list[ComparedRecipe]]:
    """Return the recipes with finished runs, those that were tested on the same images together."""
    groups = list[list[ComparedRecipe]]()
    for each in recipes:
        if each.runs:
            own = next((group for group in groups if _share_images(group[0], each)), None)
            groups.append([each]) if own is None else own.append(each)
    return groups


def _share_images(first: ComparedRecipe, second: ComparedRecipe) -> bool:
    """Whether two recipes were tested on the same images."""
    contents = [_contents(each) for each in (first, second)]
    if None not in contents:
        return contents[0] == contents[1]
    return {_identify_images(each) for each in first.runs} == {
        _identify_images(each) for each in second.runs
    }


def _contents(recipe: ComparedRecipe) -> bytes | None:
    """Return what tells the test images of all runs from others; None where it is not known."""
    keys = [each.examined.keys for each in recipe.runs if each.examined is not None]
    return np.unique(np.concatenate(keys)).tobytes() if len(keys) == len(recipe.runs) else None


def _identify_images(run: ComparedRun) -> Hashable:
    """Return what chooses the test images of a run."""
    if run.recipe is None:
        return run.folder.data_checksum
    data = run.recipe.data
    share = (data.test_fraction, data.dev_share, data.split_column, data.group_column)
    return run.folder.data_checksum, Path(data.data).name, data.fold, *share
