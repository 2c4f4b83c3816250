"""What a run decides for itself, once: how many images at once, how many steps. Kept in run.toml.

A resumed run keeps to it, and so would any run of the same recipe that is given these numbers.
"""

import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tomli_w

from vitlab.errors import UserError
from vitlab.files import write_text
from vitlab.recipes.recipe import Recipe
from vitlab.runs import RECIPE


@dataclass(frozen=True)
class Decided:
    """Decisions, each None or empty until it is made, or where there is nothing to decide.

    Attributes:
        micro_batch: images at once
        plan: (from which step on, steps in all), the first from step 0
    """

    micro_batch: int | None = None
    plan: tuple[tuple[int, int], ...] = ()

    def steps(self, at: int) -> int:
        """Steps in all, as planned when step number `at` (from 0) is taken."""
        return next(total for first, total in reversed(self.plan) if first <= at)

    def settle(self, recipe: Recipe, images: int) -> Recipe:
        """The recipe with these numbers in it; its warm-up keeps its share of the schedule."""
        if self.micro_batch is not None:
            recipe = replace(recipe, micro_batch=self.micro_batch)
        if self.plan:
            epochs, how = self.plan[0][1] * recipe.batch / images, recipe.schedule
            longer = epochs / (recipe.steps * recipe.batch / images or recipe.epochs)
            schedule = replace(
                how,
                warmup=how.warmup * longer,
                warmup_steps=round(how.warmup_steps * longer),
                cooldown=how.cooldown * longer,
            )
            recipe = replace(recipe, epochs=epochs, steps=0, schedule=schedule)
        return recipe


def read(folder: Path) -> Decided:
    """What a run has decided so far."""
    table = _content(folder).get("decided", {})
    plan = tuple((int(first), int(total)) for first, total in table.get("plan", ()))
    return Decided(table.get("micro_batch"), plan)


def write(folder: Path, decided: Decided) -> None:
    """Keep it, beside the recipe."""
    table: dict[str, Any] = {}
    if decided.micro_batch is not None:
        table["micro_batch"] = decided.micro_batch
    if decided.plan:
        table["plan"] = [list(each) for each in decided.plan]
    write_text(folder / RECIPE, tomli_w.dumps(_content(folder) | {"decided": table}))


def _content(folder: Path) -> dict[str, Any]:
    file = folder / RECIPE
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError, ValueError) as error:
        raise UserError(f"{file} is damaged or of another version: {error}") from error
