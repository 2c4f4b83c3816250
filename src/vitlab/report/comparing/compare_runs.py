"""`vitlab.compare`: several runs side by side, as JSON values and as a page."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vitlab.evaluation.metrics import METRICS
from vitlab.evaluation.paired_tests import Difference, Pair
from vitlab.places import check_drawing, check_page
from vitlab.public_calls import PLACE, public
from vitlab.report.comparing.compared_run import ComparedRun, differing
from vitlab.report.comparing.recipe_groups import ComparedRecipe, seeds_of
from vitlab.report.comparing.recipe_tests import RecipePair
from vitlab.report.comparing.run_comparison import Compared, Progress, gathered

COSTS = ("images", "params", "macs", "images_per_second", "peak_memory", "seconds", "device")


@public(runs=(Sequence, Path), out=PLACE, figure=PLACE)
def compare(
    runs: str | Path | Sequence[str | Path],
    out: str | Path | None = None,
    *,
    figure: str | Path | None = None,
    replace: bool = False,
    device: str = "auto",
    workers: int | None = None,
    command: str = "",
    progress: Progress = lambda name, images, total: None,
    quiet: bool = False,
) -> dict[str, Any]:
    """Compare recipes by the means of their runs, and runs by the same test images.

    Runs that differ in their seed or fold alone are one recipe, wherever they lie. A model's
    predictions for its test images are computed once, and kept in its run's folder. Classes are
    matched by name and images by content: the order of either may differ.

    Args:
        runs: folders of at least two runs, of at most 20 recipes, or a single one; that of seeds,
            folds or a study stands for its runs, that of a sweep for its best run, or alone for all
        out: the page to write, a name that ends in .html; None for none
        figure: a drawing of the recipes to write, a name that ends in .svg, .pdf or .png: the mean
            of each with its deviation; None for none
        replace: older files of the names of `out` and `figure`
        device: where to compute what is not kept: auto, cpu, cuda, cuda:N or mps
        workers: processes that decode; None to choose
        command: what the user typed, for the page
        progress: called with the name of a run, the number of its images processed, and of all
        quiet: print nothing but warnings

    Returns:
        `recipes`: of each its `name`, `runs` (the folders of its finished runs), `seeds`, perhaps
        `folds` and `unfinished`, and of each figure that all of them have `mean` and `std`, the
        sample standard deviation;
        `recipe_pairs`, if a recipe has several runs, two recipes each: the `differences` of means
        (second minus first) with their 95% intervals, and the `test` of one `metric`: paired where
        both have the same seeds and folds, else Welch's, with p and p after Holm's correction;
        `runs`, the figures of each run; `pairs`, two runs each on the `images` they have in common:
        McNemar's exact p, p after Holm's correction, the difference (second minus first) of each
        figure with its 95% interval, the share of equal answers, and how far mistakes coincide;
        `recipe`, the options that differ and their values; `seeds`, mean and standard deviation of
        runs that differ in their seed alone; `notes`; and `report` and `figure`, the files.

    Raises:
        RunError: no run in a folder, the same run twice, or damaged files.
        OptionError: fewer than two runs or more than 20 recipes, `out` or `figure` is not a
            new file of its kind, or no run has a figure to draw.
        DiskError: a file cannot be written.
    """
    file = None if out is None else check_page(out, replace=replace)
    drawing = None if figure is None else check_drawing(figure, replace=replace)
    named = [runs] if isinstance(runs, str | Path) else runs  # one folder of several runs
    compared = gathered([str(run) for run in named], device, workers, progress)
    result = {
        "images": 0 if compared.same is None else len(compared.same),
        "runs": [_run(each) for each in compared.entries],
        "pairs": [_pair(compared, each) for each in compared.pairs],
        "recipes": [_recipe(each) for each in compared.recipes],
        "recipe_pairs": [_recipe_pair(compared, each) for each in compared.recipe_pairs],
        "recipe": {option: list(values) for option, values in differing(compared.entries).items()},
        "seeds": seeds_of(compared.entries),
        "notes": compared.notes,
    }
    return result | _write_files(compared, file, drawing, command)


def _write_files(
    compared: Compared, file: Path | None, drawing: Path | None, command: str
) -> dict[str, str]:
    """Write drawing and page, those that are asked for; return where they are.

    Raises:
        OptionError: there is nothing to draw.
        DiskError: a file cannot be written.
    """
    written = {}
    if drawing is not None:
        from vitlab.report.comparing.recipe_figure import write_figure  # slow to import

        written["figure"] = str(write_figure(drawing, compared.recipes))
    if file is not None:
        from vitlab.report.comparing.comparison_page import write_comparison  # slow to import

        written["report"] = str(write_comparison(file, compared, command))
    return written


def _recipe(recipe: ComparedRecipe) -> dict[str, Any]:
    unfinished = [str(each.folder.path) for each in recipe.unfinished]
    return {
        "name": recipe.name,
        "model": recipe.first.facts.model,
        "runs": [str(each.folder.path) for each in recipe.runs],
        "seeds": list(dict.fromkeys(seed for seed, _ in recipe.units)),
        **({"folds": recipe.folds} if recipe.folds else {}),
        **({"unfinished": unfinished} if unfinished else {}),
        "mean": recipe.mean,
        "std": recipe.std,
    }


def _recipe_pair(compared: Compared, pair: RecipePair) -> dict[str, Any]:
    names = [each.name for each in compared.recipes]
    return {
        "first": names[pair.first],
        "second": names[pair.second],
        "metric": pair.metric or None,
        "test": pair.test or None,
        "p": pair.p,
        "adjusted": pair.adjusted,
        "differences": _differences(pair.differences),
    }


def _run(entry: ComparedRun) -> dict[str, Any]:
    facts, names = entry.facts, (*METRICS, *COSTS, "intervals")
    return {
        "run": str(entry.folder.path),
        "name": entry.name,
        "model": facts.model,
        "seed": entry.seed,
        **({"task": facts.task} if facts.task else {}),
        "finished": bool(facts.figures),
        **{key: facts.figures[key] for key in names if key in facts.figures},
    }


def _pair(compared: Compared, pair: Pair) -> dict[str, Any]:
    """Return the tests of two runs, which are named."""
    assert compared.same is not None
    first, second = (
        str(compared.entries[compared.same.runs[place]].folder.path)
        for place in (pair.first, pair.second)
    )
    differences = _differences(pair.differences)
    return asdict(pair) | {"first": first, "second": second, "differences": differences}


def _differences(differences: Mapping[str, Difference]) -> dict[str, Any]:
    """Return differences as JSON values; what is not a number becomes null."""
    return {
        name: {
            "value": each.value if math.isfinite(each.value) else None,
            "interval": each.interval and list(each.interval),
        }
        for name, each in differences.items()
    }
