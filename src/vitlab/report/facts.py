"""What a report is made of: plain values, gathered after a model was run."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitlab.evaluation.metrics import Bin
from vitlab.evaluation.per_class import ClassFigures, Confusion
from vitlab.models.model import Part
from vitlab.report.table_page import Table


@dataclass(frozen=True)
class Picture:
    """An image to show: `pixels` is uint8 (H, W) or (H, W, 3); `name` is its source."""

    pixels: NDArray[np.uint8]
    name: str


@dataclass(frozen=True)
class Judged:
    """One test image and the model's prediction.

    `attention` is the rollout map: non-negative weights of the patches, float32 (rows, columns).
    """

    picture: Picture
    truth: str
    guess: str
    confidence: float  # probability of the predicted class
    attention: NDArray[np.float32] | None = None


@dataclass(frozen=True)
class Point:
    """One point of a learning curve; `epoch` may be fractional."""

    step: int
    epoch: float
    loss: float
    accuracy: float
    lr: float | None = None
    probe: float | None = None  # 10-shot accuracy on the data of --probe


@dataclass(frozen=True)
class Facts:
    """Everything that a report shows."""

    title: str
    command: str
    figures: dict[str, Any]  # the run's JSON: accuracy, top5, nll, ece, images, params, macs, …
    classes: tuple[str, ...]
    training: list[Point]
    testing: list[Point]
    confusion: NDArray[np.int64]  # (K, K) counts; rows are true classes, columns predicted ones
    reliability: list[Bin]
    mistakes: list[Judged]  # most confident first
    examples: list[Judged]  # with attention maps
    cost: list[Part]
    recipe: dict[str, dict[str, Any]]  # section -> field -> value, as in run.toml
    versions: dict[str, str]
    notes: list[str] = field(default_factory=list)  # skipped files, missing classes, …
    per_class: list[ClassFigures] = field(default_factory=list)  # in the order of the classes
    confused: list[Confusion] = field(default_factory=list)  # most frequent first
    uncalibrated: list[Bin] = field(default_factory=list)  # reliability before calibration
    sweep: Table | None = None  # the runs that chose the learning rate
