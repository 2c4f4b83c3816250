"""`vitlab recipes`."""

from dataclasses import dataclass
from typing import Any

from vitlab.command_table import Command
from vitlab.options import Options
from vitlab.recipes.named import RECIPES
from vitlab.terminal import print_table


@dataclass(frozen=True, kw_only=True)
class Recipes(Options):
    """Nothing to choose."""


def run(options: Recipes) -> dict[str, Any]:
    """Return every recipe with all its options."""
    return {
        "recipes": [
            {"recipe": name, "about": (make.__doc__ or "").split("\n")[0]} | make().as_tables()
            for name, make in RECIPES.items()
        ]
    }


def show(result: dict[str, Any]) -> None:
    """Print a row per recipe."""
    rows = [(each["recipe"]["recipe"], each["about"]) for each in result["recipes"]]
    print_table(("recipe", "for"), rows)
    print("vitlab train DATA --recipe NAME --help-all shows every option with the recipe's value")


COMMAND = Command(run, show=show, is_light=True)
