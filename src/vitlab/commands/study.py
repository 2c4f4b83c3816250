"""`vitlab study`."""

import inspect
from dataclasses import MISSING, dataclass
from importlib import import_module
from typing import Any

from vitlab.errors import OptionError
from vitlab.options import Options, above, at_least, option, when
from vitlab.recipes.named import start_from
from vitlab.recipes.recipe import Host, Recipe
from vitlab.terminal import print_table

SUMMARY = "Reproduce a table or figure of a paper, or find a learning rate."


@dataclass(frozen=True)
class Entry:
    """A study: its module, what it is, and the options of a recipe that it chooses itself.

    The module has `study`, whose parameters are options of the command, `HEAD` and `table`.
    """

    module: str
    about: str
    varies: str = ""


STUDIES = {
    "optimizers": Entry(
        "optimizer_table",
        "the same model trained with each of them",
        "optimizer weight_decay betas momentum eps rho precondition_every",
    ),
    "lr": Entry(
        "lr_range",
        "a learning rate for the recipe, from a short run with a rising one",
        "lr schedule warmup warmup_steps final_lr timescale cooldown ema ema_warmup epochs steps "
        "budget patience test_every",
    ),
    "figure-7": Entry(
        "figure_seven", "filters, positions and attention distance of a model trained here"
    ),
}
ABOUT = "; ".join(f"{name}: {entry.about}" for name, entry in STUDIES.items())


@dataclass(frozen=True, kw_only=True)
class Study(Options):
    """A study, the recipe that it starts from, and where to train."""

    name: str = option(MISSING, ABOUT, choices=lambda: STUDIES, positional=True)
    only: tuple[str, ...] = option(
        (), "train only these rows (default: all)", only=when("name", "optimizers")
    )
    lr_grid: tuple[float, ...] = option(
        (1.0,),
        "factors of each row's learning rate to try",
        above(0),
        only=when("name", "optimizers"),
    )
    lr_low: float = option(1e-6, "the first learning rate", above(0), only=when("name", "lr"))
    lr_high: float = option(10.0, "the last learning rate", above(0), only=when("name", "lr"))
    lr_steps: int = option(
        100, "steps from the first to the last", at_least(20), only=when("name", "lr")
    )
    out: str | None = option(None, "folder of the study (default: a new one, runs/study-NAME-DATA)")
    recipe: Recipe = Recipe()
    host: Host = Host()
    command: str = ""


def build(given: dict[str, Any]) -> Study:
    """Return options that start from a recipe; with `epochs` its warm-up changes in proportion."""
    start, rest = start_from({"data": "digits"} | given)
    study = Study(name=given["name"], recipe=start)
    chosen = set(STUDIES[study.name].varies.split()) & set(given)
    if chosen:
        raise OptionError(f"the study {study.name} chooses {min(chosen)} itself: leave it out")
    if "epochs" in rest and "warmup" not in rest:
        study = Study(name=study.name, recipe=start.lasting(rest["epochs"]))
    return study.changed(**rest)


def run(options: Study) -> dict[str, Any]:
    """Do what the study does, with the options that it takes."""
    study = _module(options.name).study
    return dict(
        study(**{name: getattr(options, name) for name in inspect.signature(study).parameters})
    )


def show(result: dict[str, Any]) -> None:
    """Print the table."""
    module = _module(result["study"])
    print_table(module.HEAD, module.table(result))


def _module(name: str) -> Any:
    return import_module(f"vitlab.studies.{STUDIES[name].module}")
