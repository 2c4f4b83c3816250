"""`vitlab train`."""

from dataclasses import dataclass
from typing import Any

from vitlab.options import Options, option
from vitlab.recipes.named import start_from
from vitlab.recipes.recipe import Host, Recipe
from vitlab.runs import RunFolder, folder_of
from vitlab.terminal import print_figures

SUMMARY = "Train a model, test it and write a report."


@dataclass(frozen=True, kw_only=True)
class Train(Options):
    """A recipe, where to train it, and the run's folder; `command` is what the user typed."""

    out: str | None = option(None, "folder of the run (default: runs/DATA-RECIPE-SEED)")
    resume: bool = option(False, "continue the run in that folder")
    recipe: Recipe = Recipe()
    host: Host = Host()
    command: str = ""


def build(given: dict[str, Any], otherwise: str = "") -> Train:
    """Return options that start from a recipe, or from the run to continue.

    Args:
        given: options by name
        otherwise: the recipe if none is named; empty for the default of the data
    """
    out = given.get("out")
    if not (given.get("resume") and out and RunFolder(out).started):
        start, rest = start_from(given, otherwise)
        options = Train(recipe=start).changed(**rest)
        out = out or folder_of(options.recipe)
        if not (options.resume and RunFolder(out).started):
            return options
    return Train(recipe=RunFolder(out).recipe).changed(**given)


def run(options: Train) -> dict[str, Any]:
    """Train; of several processes only the first one has a result to print."""
    import vitlab

    finished = vitlab.train(
        options.recipe,
        options.out,
        resume=options.resume,
        host=options.host,
        command=options.command,
    )
    return finished.metrics if finished.rank == 0 else {}


def show(result: dict[str, Any]) -> None:
    """Print the test figures."""
    print_figures(result)
