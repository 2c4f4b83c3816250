"""Facts of runs: plain values from a run folder, from which reports and comparisons are made."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitlab.evaluation.metrics import METRICS, Metric, main_of
from vitlab.evaluation.per_class import ClassFigures, Confusion, ConfusionMatrix
from vitlab.evaluation.reliability import Bin
from vitlab.models.cost import cost
from vitlab.models.model import Model, PartCost
from vitlab.report.inside.looking import Looked
from vitlab.report.page import ReportTable, Section
from vitlab.report.thumbnails import Pixels
from vitlab.runs.run_folder import RunFolder

EVALUATED = ("test", "validation", "held-out")  # kinds of lines in the journal
NO_VALUES = ("kind", "step", "epoch", "images_per_second", "images")  # of such a line
APART = ("run", "versions")  # tables of run.toml that have a place of their own


@dataclass(frozen=True)
class Judged:
    """One image and what the model says of it.

    Attributes:
        name: what its source calls it
        truth: its class, or its classes
        guess: the predicted class, or classes
        confidence: probability of the predicted class; None where there may be several
        own: probability of the true class; of several, of the one most in doubt
        picture: the image; None where it can no longer be read
        pair: numbers of the true and of the predicted class, if it is a mistake
        unlike: whether the model finds it unlike its training images
    """

    name: str
    truth: str
    guess: str
    confidence: float | None
    own: float
    picture: Pixels | None = None
    pair: tuple[int, int] | None = None
    unlike: bool = False


@dataclass(frozen=True)
class Point:
    """What the journal has of one step, by its keys there; `epoch` may be fractional."""

    step: int
    epoch: float
    values: Mapping[str, float]


@dataclass(frozen=True)
class Survey:
    """Images of a run's data, by split (train, validation, test): of each class, and of all."""

    counts: dict[str, list[int]]
    images: dict[str, int]


@dataclass(frozen=True)
class Doubts:
    """Labels that are likely wrong.

    Attributes:
        shown: likeliest error first; `guess` is what each likely is
        listed: how many labels are likely wrong
        expected: how many are estimated to be wrong in all
        images: that were looked at
    """

    shown: list[Judged]
    listed: int
    expected: float
    images: int


@dataclass(frozen=True)
class RunFacts:
    """Everything that pages show of a run; what is not known, or has no meaning, is empty."""

    model: str  # its notation
    run: dict[str, Any]  # as in run.toml: started, command, fingerprint
    figures: dict[str, Any]  # the run's JSON: accuracy, top5, nll, ece, images, params, macs, …
    training: list[Point]
    testing: list[Point]
    recipe: dict[str, dict[str, Any]]  # section -> field -> value, as in run.toml
    versions: dict[str, str]
    held_out: str = "test"  # what the images of `testing` are called
    cost: list[PartCost] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # skipped files, missing classes, …
    sweep: ReportTable | None = None  # the runs that chose the learning rate
    classes: tuple[str, ...] = ()
    confusion: ConfusionMatrix | None = None  # empty where images have several labels
    per_class: list[ClassFigures] = field(default_factory=list)  # in the order of the classes
    predicted: Sequence[int] = ()  # how often each class was predicted
    confused: list[Confusion] = field(default_factory=list)  # most frequent first
    reliability: list[Bin] = field(default_factory=list)
    mistakes: list[Judged] = field(default_factory=list)  # with pictures, some of each confusion
    unlike: tuple[int, int] | None = None  # images unlike the training images, and those right
    survey: Survey | None = None  # None if the data is no longer there
    inside: Looked | None = None  # what a few test images show of the model
    doubts: Doubts | None = None  # None of few images
    pictures: dict[str, NDArray[np.uint8]] = field(default_factory=dict)  # of a pretext task
    sections: Sequence[Section] = ()  # of its own

    def number(self, key: str) -> float | None:
        """Return a figure of the run, if there is one."""
        figure = self.figures.get(key)
        return float(figure) if isinstance(figure, int | float) else None

    def interval(self, key: str) -> tuple[float, float] | None:
        """Return the 95% interval of a figure, if it was computed."""
        ends = self.figures.get("intervals", {}).get(key)
        return None if ends is None else (float(ends[0]), float(ends[1]))

    def option(self, section: str, name: str) -> Any:
        """Return a value of run.toml; None if it is not there."""
        return self.recipe.get(section, {}).get(name)

    @property
    def several(self) -> bool:
        """Whether images may have several labels."""
        return self.number("map") is not None

    @property
    def main(self) -> Metric:
        """The figure that comes first."""
        return main_of(self.figures) or METRICS["accuracy"]

    @property
    def data(self) -> str:
        """The data as the user named it."""
        return str(self.option("data", "data") or "")

    @property
    def device(self) -> str:
        """Where the run was computed, as far as it is known."""
        return str(self.figures.get("device") or self.option("host", "device") or "")

    @property
    def folder(self) -> str:
        """The run's folder as commands name it."""
        return str(self.figures.get("run", "")) or "RUN"

    @property
    def task(self) -> str:
        """The task of a run without labels; empty if it learned from labels."""
        found = self.figures.get("task") or self.option("pretext", "task")
        return "" if found in (None, "classify") else str(found)


def facts_of(
    folder: RunFolder,
    figures: dict[str, Any] | None = None,
    model: Model | None = None,
    notes: Sequence[str] = (),
) -> RunFacts:
    """Return the facts that a run of any kind has.

    Args:
        folder: the run's
        figures: of the run, the keys of the command's JSON; None for those in the folder
        model: of the run, for the cost of its parts
        notes: remarks for the reader

    Raises:
        RunError: the run's files are damaged.
    """
    tables, journal = folder.tables, folder.journal.read()
    if figures is None:
        figures = next((line for line in journal if line["kind"] == "result"), {})
    name = figures.get("model") or tables.get("model", {}).get("model") or ""
    evaluated = [line["kind"] for line in journal if line["kind"] in EVALUATED]
    return RunFacts(
        model=model.config.name if model else str(name),
        run=tables.get("run", {}),
        figures=figures,
        training=points(journal, ("train",)),
        testing=points(journal, EVALUATED),
        recipe={key: table for key, table in tables.items() if key not in APART},
        versions=tables.get("versions", {}),
        held_out=evaluated[-1] if evaluated else "test",
        cost=[part for part in cost(model).parts if part.params or part.macs] if model else [],
        notes=list(notes),
        sweep=ReportTable(**sweep["table"]) if (sweep := folder.sweep()) else None,
    )


def points(journal: Sequence[dict[str, Any]], kinds: Sequence[str]) -> list[Point]:
    """Return the points in the order of their steps; of a step that was taken again, the last."""
    chosen = {line["step"]: line for line in journal if line["kind"] in kinds}
    return [
        Point(step, line["epoch"], {
            key: float(value) for key, value in line.items()
            if key not in NO_VALUES and isinstance(value, int | float)
        })
        for step, line in sorted(chosen.items())
    ]  # fmt: skip
