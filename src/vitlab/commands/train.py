"""`vitlab train`."""

import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from vitlab.errors import OptionError
from vitlab.options import Options, option, options_of, when
from vitlab.recipes.named import RECIPES, start_from
from vitlab.recipes.pretext import Pretext
from vitlab.recipes.recipe import Host, Recipe
from vitlab.recipes.requirements import check_packages
from vitlab.runs import naming
from vitlab.runs.recipe_file import recipe_in
from vitlab.runs.run_folder import RunFolder
from vitlab.runs.using import may_use
from vitlab.terminal import print_figures, print_rows
from vitlab.transfer.series import Series, recorded, run_series

# figures of several runs that only their report has room for
OF_REPORT = (
    "top5", "ece", "balanced_accuracy", "micro_f1", "macro_precision", "macro_recall", "mcc",
    "auroc", "images",
)  # fmt: skip
SUMMARY = "Train a model, test it and write a report."


@dataclass(frozen=True, kw_only=True)
class Train(Options):
    """A recipe, where to train it, the run's folder, and what the user typed when."""

    FIRST: ClassVar[tuple[str, ...]] = (
        "model", "weights", "tune", "out", "resume", "change", "recipe", "epochs", "budget",
        "batch", "lr", "image_size", "seed", "device", "workers",
    )  # fmt: skip
    ELSEWHERE: ClassVar[dict[str, str]] = dict.fromkeys(
        options_of(Pretext), "is for learning without labels: use vitlab pretrain"
    )

    out: str | None = option(
        None, "folder of the run (default: runs/DATA-MODEL, then runs/DATA-MODEL-2, …)"
    )
    resume: bool = option(False, "continue the run in that folder, or the newest of that name")
    change: bool = option(
        False,
        "with resume, continue with the options given, if they differ from the run's: learning "
        "rate, schedule, clipping, regularization, augmentation",
        only=when("resume"),
    )
    series: Series = Series()
    recipe: Recipe = Recipe()
    host: Host = Host()
    command: str = ""
    began: float = field(default_factory=time.monotonic)


def build(given: dict[str, Any], otherwise: str = "") -> Train:
    """Return options that start from a recipe, or from the run to continue.

    Args:
        given: options by name
        otherwise: the recipe if none is named; empty for the default of the data
    """
    out = given.get("out")
    if not (given.get("resume") and out and _to_continue(out)):
        named = given.get("recipe", "")
        start = recipe_in(named) if named and named not in RECIPES else None
        rest = {name: value for name, value in given.items() if name != "recipe"}
        if start is None:
            start, rest = start_from(given, otherwise)
        _check_labeled(start, f"recipe {start.recipe}")
        options = Train(recipe=start).changed(**rest)
        if not options.resume:
            return options
        name = naming.run_name(options.recipe, None, *options.series.words)
        out = out or naming.newest(name)
    begun = _to_continue(out) if out else None
    if begun is not None:
        _check_labeled(begun.recipe, str(out))
    return begun.changed(**given) if begun else options


def _check_labeled(recipe: Recipe, what: str) -> None:
    """Refuse a recipe that learns without labels."""
    if recipe.pretext.task != "classify":
        raise OptionError(
            f"{what} learns without labels (task={recipe.pretext.task}): use vitlab pretrain"
        )


def _to_continue(out: str | Path) -> Train | None:
    """Return the options of the run, or the several runs, in a folder, if there are any."""
    if several := recorded(out):
        return Train(recipe=several[0], series=several[1])
    return Train(recipe=RunFolder(out).recipe) if RunFolder(out).started else None


def check_data_of(recipe: Recipe) -> None:
    """Refuse a run in the place of data, and packages that are not installed.

    Raises:
        OptionError: the data is the folder of a run.
        PackageError: a package of the recipe is not installed.
    """
    check_packages(recipe)
    data = recipe.data.data
    if data not in ("", "digits") and (RunFolder(data).started or recorded(data)):
        raise OptionError(f"{data} is a run, not data: to continue it, pass --out {data} --resume")


def begin(options: Train) -> None:
    """Refuse a folder in the way and missing packages; say what begins."""
    check_data_of(options.recipe)
    if options.out and options.series.single:
        may_use(RunFolder(options.out), options.resume)
    if options.recipe.data.data:
        print(beginning(options.recipe, options.resume), file=sys.stderr, flush=True)


def run(options: Train) -> dict[str, Any]:
    """Train; of several processes only the first one has a result to print."""
    return run_series(
        options.recipe,
        options.out,
        options.series,
        resume=options.resume,
        change=options.change,
        host=options.host,
        command=options.command,
        began=options.began,
    )


def beginning(recipe: Recipe, resume: bool) -> str:
    """Return what is said before the slow imports."""
    what = recipe.model.model or recipe.start.weights
    resumed = ", continuing" if resume else ""
    what = what or "no weights named"
    return f"{what} on {recipe.data.data}, recipe {recipe.recipe}{resumed}"


def show(result: dict[str, Any]) -> None:
    """Print the test figures; of several runs their table, too."""
    campaign = result.get("sweep", result)
    rows = list(campaign.get("runs", []))
    what = next(iter(rows[0])) if rows else ""  # such as seed
    rows += [{what: name} | campaign[name] for name in ("mean", "std") if name in campaign]
    print_rows([{key: row[key] for key in row if key not in OF_REPORT} for row in rows])
    print_figures(result)
