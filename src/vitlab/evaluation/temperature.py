"""Temperature of a classifier: fitted to logits, and what a calibrated model says of it."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from vitlab.data.labels import Labels, MultiLabels, SingleLabels
from vitlab.errors import DataError
from vitlab.evaluation.answers import Floats, Integers
from vitlab.evaluation.infer import Probabilities
from vitlab.evaluation.intervals import with_intervals
from vitlab.evaluation.metrics import moved_by
from vitlab.models.model import Model

BLOCK = 2_000_000  # logits whose softmax is in memory at once


@dataclass(frozen=True)
class Calibration:
    """A temperature, and what it was fitted on.

    Attributes:
        temperature: divides the logits; above 1 for a model that was too confident
        data: as for training; its validation split was used
        images: how many there are in it
    """

    temperature: float
    data: str
    images: int

    @property
    def provenance(self) -> dict[str, Any]:
        """What is saved with the weights."""
        about = {"data": self.data, "images": self.images}
        return {"temperature": self.temperature, "calibration": about}

    def change(self, model: Model, done: Probabilities) -> dict[str, Any]:
        """Return what it changed, as `vitlab.evaluate` reports it.

        Args:
            model: that has the temperature now
            done: predictions for other images, with their logits
        """
        raw = done.labels.probabilities(torch.from_numpy(done.logits)).numpy()
        points = {}
        for key, probabilities in (("before", raw), ("after", done.probabilities)):
            each = with_intervals(probabilities, done.labels)
            ranges = moved_by("temperature", each["intervals"])
            points[key] = moved_by("temperature", each) | {"intervals": ranges}
        return {"temperature": model.temperature, "images": self.images} | points


def fitted_temperature(logits: Floats, labels: Labels) -> float:
    """Return the temperature of the least negative log-likelihood.

    Where images have several labels, that is the mean binary cross-entropy. It is convex in
    1 / temperature, so that its slope has one root.

    Args:
        logits: (n, classes)
        labels: of the same n images

    Raises:
        DataError: there is no minimum, because the model makes no mistake on these images, or is no
            better than guessing.
    """
    from scipy import optimize  # slow to import

    scores, own = _decisions(logits, labels)
    scores = scores - scores.max(1, keepdims=True)
    mine = np.take_along_axis(scores, own[:, None], axis=1)[:, 0]
    if not mine.any():
        raise DataError(
            f"the model makes no mistake on the {len(logits):,} validation images, so that no "
            "temperature fits best: use more of them, or leave it uncalibrated"
        )
    if _slope(0.0, scores, mine) >= 0:
        raise DataError(
            f"on the {len(logits):,} validation images the model is no better than guessing, so "
            "that no temperature fits: check that their labels are those of the model"
        )
    high = 1.0
    while _slope(high, scores, mine) < 0:
        high *= 2
    return 1 / float(optimize.brentq(_slope, 0.0, high, (scores, mine), xtol=1e-14, rtol=1e-13))


def temperature_of(logits: Floats, labels: Labels) -> float:
    """Return what calibrates logits, however good they are; 1 if nothing does.

    Where all are right, as if one more, of the median margin, had been wrong.

    Args:
        logits: (n, classes)
        labels: of the same n images
    """
    scores, own = _decisions(logits, labels)
    if (scores.argmax(1) == own).all():
        two = np.sort(scores, 1)[:, -2:]
        row = np.zeros((1, scores.shape[1]))
        row[0, 0] = np.median(two[:, 1] - two[:, 0])
        scores = np.concatenate([scores, row])
        own = np.append(own, 1)
    try:
        return fitted_temperature(scores, SingleLabels(own))
    except DataError:  # no better than guessing
        return 1.0


def _decisions(logits: Floats, labels: Labels) -> tuple[Floats, Integers]:
    """Return scores and the right one of each row; each of several labels is one of two classes."""
    match labels:
        case SingleLabels(truth):
            return logits, truth
        case MultiLabels(values=table):
            scores = np.stack([np.zeros(logits.size), logits.reshape(-1)], 1)
            return scores, table.reshape(-1).astype(np.int64)


def _slope(factor: float, scores: Floats, mine: Floats) -> float:
    """Return the derivative of the summed loss with respect to the factor on the logits."""
    slope = 0.0
    count = -(-scores.size // BLOCK)
    for part, own in zip(*(np.array_split(each, count) for each in (scores, mine)), strict=True):
        chances = np.exp(factor * part)
        mean = (chances * part).sum(1) / chances.sum(1)
        slope += float((mean - own).sum())
    return slope
