"""One run of a comparison, as its folder tells it."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vitlab.errors import UserError
from vitlab.evaluation.run_predictions import Examined
from vitlab.recipes.recipe import Recipe
from vitlab.report.facts import Point
from vitlab.report.gather import EVALUATED, points
from vitlab.runs.run_folder import RunFolder


@dataclass(frozen=True, eq=False)
class Entry:
    """A run and what it left.

    Attributes:
        name: short, different from those of the others
        folder: the run's
        recipe: of the run; None if `run.toml` is from another version
        result: its figures, the keys of the command's JSON; empty if it is not finished
        training: points of its learning curve on the training images
        testing: points on the images that it was evaluated on
        held_out: what these are: test or validation
        examined: what its model answered to each test image; None if that is not known
        unknown: why it is not, in a few words
    """

    name: str
    folder: RunFolder
    recipe: Recipe | None
    result: dict[str, Any]
    training: list[Point]
    testing: list[Point]
    held_out: str
    examined: Examined | None = None
    unknown: str = field(default="it is not finished")

    @property
    def model(self) -> str:
        """The notation of its model, as far as it is known."""
        named = self.result.get("model") or self.folder.tables.get("model", {}).get("model")
        return str(named or "")

    @property
    def task(self) -> str:
        """What it learned without labels; empty if it learned from labels."""
        named = self.result.get("task")
        if not named and self.recipe is not None and self.recipe.pretext.task != "classify":
            named = self.recipe.pretext.task
        return str(named or "")

    @property
    def report(self) -> Path | None:
        """Its own report, if there is one."""
        return self.folder.report if self.folder.report.is_file() else None

    @property
    def seed(self) -> int | None:
        """The seed of its recipe."""
        return None if self.recipe is None else self.recipe.seed

    def interval(self, key: str) -> tuple[float, float] | None:
        """Return the 95% confidence interval of a figure, if it was computed."""
        found = self.result.get("intervals", {}).get(key)
        return None if found is None else (float(found[0]), float(found[1]))

    def number(self, key: str) -> float | None:
        """Return a figure, if the run has it."""
        value = self.result.get(key)
        if not isinstance(value, int | float) or isinstance(value, bool):
            return None
        return float(value)


def entry_of(folder: RunFolder, name: str) -> Entry:
    """Read what a run left, without its model and its data.

    Raises:
        RunError: its files are damaged.
    """
    journal = folder.journal.read()
    tested = [line["kind"] for line in journal if line["kind"] in EVALUATED]
    try:
        recipe = folder.recipe
    except UserError:
        folder.tables  # noqa: B018  (raises if the file itself is damaged)
        recipe = None
    return Entry(
        name,
        folder,
        recipe,
        next((line for line in journal if line["kind"] == "result"), {}),
        points(journal, ("train",)),
        points(journal, EVALUATED),
        tested[-1] if tested else "test",
    )
