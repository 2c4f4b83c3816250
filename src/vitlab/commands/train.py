"""`vitlab train`."""

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from vitlab.command_table import Command
from vitlab.commands import print_costs, shown
from vitlab.errors import OptionError
from vitlab.experiments.several import SeveralRuns, recorded, run_several
from vitlab.options import option, options_of, when
from vitlab.places import check_run_folder
from vitlab.progress import say
from vitlab.recipes.named import RECIPES
from vitlab.recipes.pretext import Pretext, named_task
from vitlab.recipes.recipe import Recipe, RunOptions, check_packages
from vitlab.runs import naming
from vitlab.runs.local_paths import instead_of
from vitlab.runs.recipe_file import recipe_in, start_from
from vitlab.runs.run_folder import RunFolder
from vitlab.terminal import main_figures, print_figures, print_rows

OTHERWISE = "is for learning without labels: use vitlab pretrain"
OF_LABELS = ("task", "object_queries", "query_blocks", "mask_queries", "targets")
ANNOTATED = ("detect", "regress", "segment")  # tasks whose recipes have their names


@dataclass(frozen=True, kw_only=True)
class Train(RunOptions):
    """A recipe, where to train it, the run's folder, and what the user typed when."""

    FIRST: ClassVar[tuple[str, ...]] = (
        "model", "weights", "tune", "out", "resume", "change", "recipe", "epochs", "budget",
        "batch", "lr", "image_size", "seed", "device", "workers",
    )  # fmt: skip
    ELSEWHERE: ClassVar[dict[str, str]] = dict.fromkeys(
        [name for name in options_of(Pretext) if name not in OF_LABELS], OTHERWISE
    )
    NARROWED: ClassVar[dict[str, tuple[Any, str]]] = {
        "task": (
            Literal["classify", "segment", "detect", "regress"],
            "what is learned: the class of an image, that of each pixel (docs/segment.md), objects "
            "with their boxes (docs/detect.md), or numbers, the --targets (docs/regress.md)",
        )
    }

    out: str | None = option(
        None,
        "folder of the run (default: runs/DATA-MODEL, without labels runs/DATA-MODEL-TASK; then "
        "with -2, -3, …)",
        check=check_run_folder,
    )
    resume: bool = option(False, "continue the run in that folder, or the newest of that name")
    change: bool = option(
        False,
        "with resume, continue with the options given, if they differ from the run's: learning "
        "rate, schedule, clipping, regularization, augmentation",
        only=when("resume"),
    )
    several: SeveralRuns = SeveralRuns()
    recipe: Recipe = Recipe()
    began: float = field(default_factory=time.monotonic)

    @staticmethod
    def check_task(recipe: Recipe, given: dict[str, Any], what: str) -> None:
        """Refuse a recipe, or a run, that learns without labels, or another task."""
        own, task = recipe.pretext.task, given.get("task", recipe.pretext.task)
        if not recipe.pretext.changed(task=task).labeled:
            if "task" in given:
                raise OptionError(f"--task {OTHERWISE}")
            raise OptionError(f"{what} learns without labels (task={own}): use vitlab pretrain")
        if task != own and (task in ANNOTATED or own in ANNOTATED):
            raise OptionError(f"task={task}, but {what} is for task={own}: leave one of them out")

    @classmethod
    def built(cls, given: dict[str, Any], otherwise: str = "") -> Self:
        """Return a command's options: of the run to continue, if there is one, else by a recipe.

        Args:
            given: options by name
            otherwise: the recipe if none is named; empty for the default of the data

        Raises:
            OptionError: an invalid option, or a recipe or a run of another command's.
        """
        given = named_task(given)
        out = given.get("out") if given.get("resume") else None
        begun = cls._to_continue(out)
        if begun is None:
            task = given.get("task", "")
            start, rest = start_from(given, task if task in ANNOTATED else otherwise)
            cls.check_task(start, given, f"recipe {start.recipe}")
            options = cls(recipe=start).changed(**rest)
            if out or not options.resume:
                return options
            out = naming.newest(naming.run_name(options.recipe, None, *options.several.words))
            begun = cls._to_continue(out)
            if begun is None:
                return options
        cls.check_task(begun.recipe, given, str(out))
        return begun.changed(**_as_recorded(instead_of(begun.recipe, given)))

    @classmethod
    def _to_continue(cls, out: str | Path | None) -> Self | None:
        """Return the options of the run, or the several runs, in a folder, if there are any."""
        if several := recorded(out):
            return cls(recipe=several[0], several=several[1])
        return cls(recipe=RunFolder(out).recipe_here) if out and RunFolder(out).started else None


build = Train.built


def _as_recorded(given: dict[str, Any]) -> dict[str, Any]:
    """Return options as a run has them: a recipe's name; the model of the weights, unnamed."""
    named = given.get("recipe", "")
    found = recipe_in(named) if named and named not in RECIPES else None
    same = {"recipe": found.recipe} if found else {}
    return {key: value for key, value in given.items() if key != "model" or value} | same


def begin(options: Train) -> None:
    """Refuse a folder in the way, a run in the place of data, missing packages; say what begins."""
    recipe = options.recipe
    check_packages(recipe)
    data = recipe.data.data
    if data not in ("", "digits") and (RunFolder(data).started or recorded(data)):
        raise OptionError(f"{data} is a run, not data: to continue it, pass --out {data} --resume")
    if options.out and options.several.single:
        RunFolder(options.out).may_be_used(options.resume)
    if data:
        what = recipe.model.model or recipe.start.weights or "no weights named"
        resumed = ", continuing" if options.resume else ""
        say(f"{what} on {data}, recipe {recipe.recipe}{resumed}")


def run(options: Train) -> dict[str, Any]:
    """Train; of several processes only the first one has a result to print."""
    how = options.values("resume change host command began")
    return run_several(options.recipe, options.out, options.several, **how)


def show(result: dict[str, Any]) -> None:
    """Print the test figures; of several runs their table, too."""
    if print_costs(result):
        return
    for campaign in (result.get("sweep", {}), result):
        rows = list(campaign.get("runs", []))
        what = next(iter(rows[0])) if rows else ""  # such as seed
        rows += [{what: name} | campaign[name] for name in ("mean", "std") if name in campaign]
        main = [main_figures(row) for row in rows]
        print_rows([{key: row[key] for key in row if key != "images"} for row in main])
    if shown(result):
        return
    print_figures(main_figures(result))


COMMAND = Command(run, show=show, build=build, begin=begin)
