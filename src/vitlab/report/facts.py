"""Facts of a run's report: plain values, gathered after a model was run."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitlab.evaluation.per_class import ClassFigures, Confusion, ConfusionMatrix
from vitlab.evaluation.reliability import Bin
from vitlab.models.model import Part
from vitlab.report.inside.looking import Looked
from vitlab.report.page import Table
from vitlab.report.thumbnails import Pixels


@dataclass(frozen=True)
class Judged:
    """One test image and the model's prediction.

    Attributes:
        picture: the image; None where it is only listed
        name: what its source calls it
        truth: its class, or its classes
        guess: the predicted class, or classes
        confidence: the highest probability of a class
        own: probability of the true class; None where there may be several
        pair: numbers of the true and of the predicted class; None where there may be several
        attention: where the last layers look, weights of the patches, float32 (rows, columns)
        unlike: whether the model finds it unlike its training images
    """

    picture: Pixels | None
    name: str
    truth: str
    guess: str
    confidence: float
    own: float | None = None
    pair: tuple[int, int] | None = None
    attention: NDArray[np.float32] | None = None
    unlike: bool = False


@dataclass(frozen=True)
class Point:
    """One point of a learning curve; `epoch` may be fractional."""

    step: int
    epoch: float
    loss: float
    accuracy: float = math.nan  # NaN where there are no labels
    lr: float | None = None
    probe: float | None = None  # 10-shot accuracy on the data of --probe
    knn: float | None = None  # 20-NN accuracy on that data
    map: float | None = None  # mean average precision, where images have several labels
    seconds: float | None = None  # of training until then
    own: dict[str, float] = field(default_factory=dict)  # figures of a pretext task


@dataclass(frozen=True)
class Survey:
    """The data of a run.

    Attributes:
        counts: split (train, validation, test) -> images of each class
        images: split -> images
        samples: class number -> a few of its training images
    """

    counts: dict[str, list[int]]
    images: dict[str, int]
    samples: dict[int, list[Pixels]]


@dataclass(frozen=True)
class Doubt:
    """An image whose label is likely wrong.

    Attributes:
        picture: the image; None if it can no longer be read
        name: what its source calls it
        given: its label, or its labels
        better: what it likely is
        own: probability of the label; where there are several, of the one most in doubt
        other: probability of the likely class; None where there are several
    """

    picture: Pixels | None
    name: str
    given: str
    better: str
    own: float
    other: float | None


@dataclass(frozen=True)
class Doubts:
    """Labels that are likely wrong.

    Attributes:
        shown: likeliest error first
        listed: how many labels are likely wrong
        expected: how many are estimated to be wrong in all
        images: that were looked at
    """

    shown: list[Doubt]
    listed: int
    expected: float
    images: int


@dataclass(frozen=True, eq=False)
class ImageMap:
    """Test images in the plane, images that the model sees as alike close together.

    Attributes:
        points: float32 (n, 2), x and y from 0 to 1, y downwards
        truth: int64 (n,), the class of each image; -1 where it may have several
        wrong: bool (n,), whether another class is predicted
        doubted: bool (n,), whether its label is likely wrong
        sheet: their thumbnails in the same places, uint8 (rows, columns, 3)
        aspect: width of the points to their height
        of: test images that there are
    """

    points: NDArray[np.float32]
    truth: NDArray[np.int64]
    wrong: NDArray[np.bool_]
    doubted: NDArray[np.bool_]
    sheet: NDArray[np.uint8]
    aspect: float
    of: int


@dataclass(frozen=True)
class Facts:
    """Everything that the report of a run shows; a run without labels has what needs none."""

    model: str  # its notation
    run: dict[str, Any]  # as in run.toml: started, command, fingerprint
    figures: dict[str, Any]  # the run's JSON: accuracy, top5, nll, ece, images, params, macs, …
    training: list[Point]
    testing: list[Point]
    recipe: dict[str, dict[str, Any]]  # section -> field -> value, as in run.toml
    versions: dict[str, str]
    held_out: str = "test"  # what the images of `testing` are called
    cost: list[Part] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # skipped files, missing classes, …
    sweep: Table | None = None  # the runs that chose the learning rate
    classes: tuple[str, ...] = ()
    confusion: ConfusionMatrix | None = None  # empty where images have several labels
    per_class: list[ClassFigures] = field(default_factory=list)  # in the order of the classes
    predicted: Sequence[int] = ()  # how often each class was predicted
    confused: list[Confusion] = field(default_factory=list)  # most frequent first
    reliability: list[Bin] = field(default_factory=list)
    uncalibrated: list[Bin] = field(default_factory=list)  # reliability before calibration
    mistakes: list[Judged] = field(default_factory=list)  # the worst first
    listed: list[Judged] = field(default_factory=list)  # mistakes by name, most confident first
    examples: list[Judged] = field(default_factory=list)  # with attention maps
    unlike: tuple[int, int] | None = None  # images unlike the training images, and those right
    survey: Survey | None = None  # None if the data is no longer there
    inside: Looked | None = None  # what a few test images show of the model
    doubts: Doubts | None = None  # None of few images
    image_map: ImageMap | None = None
    pictures: dict[str, NDArray[np.uint8]] = field(default_factory=dict)  # of a pretext task

    def number(self, key: str) -> float | None:
        """Return a figure of the run, if there is one."""
        figure = self.figures.get(key)
        return float(figure) if isinstance(figure, Real) and not isinstance(figure, bool) else None

    @property
    def several(self) -> bool:
        """Whether images may have several labels."""
        return self.number("map") is not None

    @property
    def first(self) -> str:
        """The figure that comes first."""
        return "map" if self.several else "accuracy"

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95% interval of the first figure, if it was computed."""
        ends = self.figures.get("intervals", {}).get(self.first)
        return None if ends is None else (float(ends[0]), float(ends[1]))

    @property
    def data(self) -> str:
        """The data as the user named it."""
        return str(self.recipe.get("data", {}).get("data", ""))

    @property
    def folder(self) -> str:
        """The run's folder as commands name it."""
        return str(self.figures.get("run", "")) or "RUN"

    @property
    def task(self) -> str:
        """The task of a run without labels; empty if it learned from labels."""
        found = self.figures.get("task") or self.recipe.get("pretext", {}).get("task")
        return "" if found in (None, "classify") else str(found)
