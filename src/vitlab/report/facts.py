"""What a report is made of: plain values, gathered after a model was run."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from vitlab.evaluation.per_class import ClassFigures, Confusion, ConfusionMatrix
from vitlab.evaluation.reliability import Bin
from vitlab.models.model import Part
from vitlab.report.atlas.plotted import Atlas
from vitlab.report.inside.looked import Looked
from vitlab.report.table_page import Table


@dataclass(frozen=True)
class Picture:
    """An image to show: `pixels` is uint8 (H, W) or (H, W, 3); `name` is its source."""

    pixels: NDArray[np.uint8]
    name: str


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
        pair: numbers of the true and of the predicted class, of a mistake
        attention: where the last layers look, weights of the patches, float32 (rows, columns)
        unlike: whether the model finds it unlike its training images
    """

    picture: Picture | None
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
class Sizes:
    """The sizes of a sample of the training images, as rows and columns, smallest area first."""

    sampled: int
    smallest: tuple[int, int]
    median: tuple[int, int]
    largest: tuple[int, int]


@dataclass(frozen=True)
class Survey:
    """The data of a run.

    Attributes:
        counts: split (train, validation, test) -> images of each class
        images: split -> images
        samples: class number -> a few of its training images
        sizes: of the training images; None if none could be read
    """

    counts: dict[str, list[int]]
    images: dict[str, int]
    samples: dict[int, list[Picture]]
    sizes: Sizes | None = None


class Ran(Protocol):
    """What the report of any run shows, with labels or without."""

    @property
    def model(self) -> str:
        """The notation of the model."""

    @property
    def run(self) -> dict[str, Any]:
        """As in run.toml: started, command, fingerprint."""

    @property
    def figures(self) -> dict[str, Any]:
        """The run's JSON."""

    @property
    def recipe(self) -> dict[str, dict[str, Any]]:
        """Section -> field -> value, as in run.toml."""

    @property
    def versions(self) -> dict[str, str]:
        """Of the packages."""

    @property
    def training(self) -> list[Point]:
        """Points of the curves on the training images."""

    @property
    def testing(self) -> list[Point]:
        """Points of the curves on held-out images."""


@dataclass(frozen=True)
class Facts:
    """Everything that a report shows."""

    model: str
    run: dict[str, Any]  # as in run.toml: started, command, fingerprint
    figures: dict[str, Any]  # the run's JSON: accuracy, top5, nll, ece, images, params, macs, …
    classes: tuple[str, ...]
    training: list[Point]
    testing: list[Point]
    confusion: ConfusionMatrix  # empty where images have several labels
    reliability: list[Bin]
    mistakes: list[Judged]  # grouped by confusion, the most frequent one first
    examples: list[Judged]  # with attention maps
    cost: list[Part]
    recipe: dict[str, dict[str, Any]]  # section -> field -> value, as in run.toml
    versions: dict[str, str]
    notes: list[str] = field(default_factory=list)  # skipped files, missing classes, …
    per_class: list[ClassFigures] = field(default_factory=list)  # in the order of the classes
    predicted: Sequence[int] = ()  # how often each class was predicted
    confused: list[Confusion] = field(default_factory=list)  # most frequent first
    listed: list[Judged] = field(default_factory=list)  # mistakes by name, most confident first
    uncalibrated: list[Bin] = field(default_factory=list)  # reliability before calibration
    sweep: Table | None = None  # the runs that chose the learning rate
    survey: Survey | None = None  # None if the data is no longer there
    inside: Looked | None = None  # what a few test images show of the model
    atlas: Atlas | None = None  # the map and the likely label errors; None of few images
