"""One run of a comparison or a listing, as its folder tells it."""

from dataclasses import dataclass

from vitlab.errors import UserError
from vitlab.evaluation.run_predictions import Examined
from vitlab.recipes.recipe import Recipe
from vitlab.report.facts import RunFacts, facts_of
from vitlab.runs.run_folder import RunFolder


@dataclass(frozen=True, eq=False)
class ComparedRun:
    """A run and what it left.

    Attributes:
        name: short, different from those of the others
        folder: the run's
        recipe: of the run; None if `run.toml` is from another version
        facts: of the run; its figures are empty if it is not finished
        examined: what its model answered to each test image; None if that is not known
        unknown: why it is not, in a few words
    """

    name: str
    folder: RunFolder
    recipe: Recipe | None
    facts: RunFacts
    examined: Examined | None = None
    unknown: str = "it is not finished"

    @property
    def seed(self) -> int | None:
        """The seed of its recipe."""
        return None if self.recipe is None else self.recipe.seed


def entry_of(folder: RunFolder, name: str) -> ComparedRun:
    """Read what a run left, without its model and its data.

    Raises:
        RunError: its files are damaged.
    """
    facts = facts_of(folder)
    try:
        return ComparedRun(name, folder, folder.recipe, facts)
    except UserError:
        return ComparedRun(name, folder, None, facts)
