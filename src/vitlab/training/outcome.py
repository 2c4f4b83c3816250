"""The outcome of a run: its folder, figures and model, and the test that its report shows."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vitlab.data.images import Images
from vitlab.data.splits import Splits
from vitlab.evaluation.compute import Compute
from vitlab.evaluation.infer import Probabilities
from vitlab.evaluation.mask_figures import Tested
from vitlab.evaluation.records import RunRecord
from vitlab.models.heads.segment import Segmenter
from vitlab.models.model import Model


@dataclass(frozen=True)
class Run:
    """A finished run.

    Attributes:
        folder: the run's folder
        metrics: its figures, the keys of the command's JSON
        model: the trained model, on the CPU
        rank: this process's number if torchrun started several; number 0 reports to the user
    """

    folder: Path
    metrics: RunRecord
    model: Model
    rank: int = 0


@dataclass(frozen=True, eq=False)
class ClassifierTest:
    """The test of a run that learned from labels.

    Attributes:
        splits: images of the run, with those that it was tested on
        predictions: of its model for these
        compute: where it was tested
    """

    splits: Splits
    predictions: Probabilities
    compute: Compute


@dataclass(frozen=True, eq=False)
class SegmenterTest:
    """The test of a run that segments.

    Attributes:
        segmenter: of the run
        images: that it was tested on, with their masks
        tested: the figures of each
        compute: where it was tested
    """

    segmenter: Segmenter
    images: Images
    tested: Tested
    compute: Compute


@dataclass(frozen=True, eq=False)
class ObjectiveTest:
    """The test of any other run: of boxes, numbers, or what is learned without labels.

    Attributes:
        pictures: what its objective makes of a few images: uint8 (B, H, W, 3) by column
        pixels: the test of its segmenter, if it has one
    """

    pictures: dict[str, NDArray[np.uint8]] = field(default_factory=dict)
    pixels: SegmenterTest | None = None


@dataclass(frozen=True, eq=False)
class Outcome:
    """A run that has ended, its result written down.

    Attributes:
        run: folder, figures, model
        test: what its report shows, in the first process; None if no report is to be written
        is_new: whether the run has ended now, and not in an earlier session
    """

    run: Run
    test: ClassifierTest | SegmenterTest | ObjectiveTest | None
    is_new: bool = True
