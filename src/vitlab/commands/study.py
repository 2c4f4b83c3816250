"""`vitlab study`."""

from dataclasses import MISSING, dataclass
from typing import Any, ClassVar, Literal

from vitlab.options import Options, above, option
from vitlab.recipes.named import start_from
from vitlab.recipes.recipe import Host, Recipe
from vitlab.terminal import print_table

SUMMARY = "Reproduce a table from a paper."


@dataclass(frozen=True, kw_only=True)
class Study(Options):
    """A study, the recipe that it varies, and where to train."""

    HIDDEN: ClassVar[frozenset[str]] = frozenset(  # what the study varies
        {"optimizer", "weight_decay", "betas", "momentum", "eps", "rho", "precondition_every"}
    )

    name: Literal["optimizers"] = option(
        MISSING, "optimizers: the same model trained with each of them", positional=True
    )
    only: tuple[str, ...] = option((), "train only these rows (default: all)")
    lr_grid: tuple[float, ...] = option(
        (1.0,), "factors of each row's learning rate to try", above(0)
    )
    out: str | None = option(None, "folder of the runs (default: runs/study-NAME-DATA)")
    recipe: Recipe = Recipe()
    host: Host = Host()


def build(given: dict[str, Any]) -> Study:
    """Return options that start from a recipe; with `epochs` its warm-up changes in proportion."""
    start, rest = start_from({"data": "digits"} | given)
    if "epochs" in rest and "warmup" not in rest:
        start = start.lasting(rest["epochs"])
    return Study(name=given["name"], recipe=start).changed(**rest)


def run(options: Study) -> dict[str, Any]:
    """Train every row and collect the figures."""
    from vitlab.studies.optimizer_table import study

    return study(options.recipe, options.out, options.host, options.only, options.lr_grid)


def show(result: dict[str, Any]) -> None:
    """Print the table."""
    from vitlab.studies.optimizer_table import HEAD, table

    print_table(HEAD, table(result))
