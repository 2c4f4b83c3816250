"""What the report of a run without labels is made of."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitlab.models.model import Part
from vitlab.report.facts import Point


@dataclass(frozen=True)
class PretextFacts:
    """Everything that the report shows.

    Attributes:
        model: the notation of the model
        run: as in run.toml: started, command, fingerprint
        figures: the run's JSON: task, loss, the task's own figures, images, held_out, params, …
        training: points of the curves on the training images
        testing: points on the held-out images
        held_out: what these are called
        pictures: of a few held-out images, by column: uint8 (B, H, W, 3) each
        cost: parameters and multiply-adds of each part of the model
        recipe: section -> field -> value, as in run.toml
        versions: of the packages
        notes: skipped files, leaking stems and the like
    """

    model: str
    run: dict[str, Any]
    figures: dict[str, Any]
    training: list[Point]
    testing: list[Point]
    held_out: str
    pictures: dict[str, NDArray[np.uint8]]
    cost: list[Part]
    recipe: dict[str, dict[str, Any]]
    versions: dict[str, str]
    notes: list[str] = field(default_factory=list)

    @property
    def task(self) -> str:
        """The name of the task, as the recipe has it."""
        return str(self.figures.get("task") or self.recipe.get("pretext", {}).get("task", ""))

    @property
    def names(self) -> list[str]:
        """The names of the task's own figures, in the journal's order."""
        return list(dict.fromkeys(name for p in (*self.testing, *self.training) for name in p.own))
