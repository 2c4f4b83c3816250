"""The choice between a run's fitted classifier, where it starts, and its fine-tuned model.

From 500 training images on, some are held out, and the better of the two on these is kept. With
fewer it is the fine-tuned one; docs/defaults.md has what other rules gave. The test images decide
nothing.
"""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vitlab.evaluation.answers import answers_of
from vitlab.evaluation.infer import Probabilities
from vitlab.evaluation.intervals import interval_of
from vitlab.evaluation.metrics import METRICS, figures
from vitlab.evaluation.paired_tests import pairs_of
from vitlab.recipes.recipe import CHOOSABLE
from vitlab.training.state import Best
from vitlab.units import counted

ACCURACY = METRICS["accuracy"]
FITTED = "the classifier fitted before training"
TUNED = "the fine-tuned model"


@dataclass(frozen=True)
class TwoModels:
    """The two classifiers of a run, and how one of them was chosen.

    Attributes:
        best: the weights that are kept, as training compared them with those that were fitted
        held: number of validation images; 0 without
        file: of the fitted classifier
        fitted: what it says of the test images
        kept: what the run's model says of them: the same value if it is the fitted classifier
    """

    best: Best
    held: int
    file: Path
    fitted: Probabilities
    kept: Probabilities

    @property
    def keeps_fitted(self) -> bool:
        """Whether the fitted classifier is the run's model."""
        return self.kept is self.fitted

    @property
    def chosen_by(self) -> str:
        """What decided, as JSON has it: validation images, too few images, or too few steps."""
        if self.held and self.best.score >= 0:
            return "validation"
        return "few steps" if self.keeps_fitted else "few images"

    def figures(self) -> dict[str, Any]:
        """Return what JSON says of both, beside what was said of the fit."""
        found: dict[str, Any] = {
            "kept": "fitted" if self.keeps_fitted else "fine-tuned",
            "by": self.chosen_by,
            "accuracy": accuracy_of(self.fitted),
        }
        images = len(self.fitted.labels)
        if (ends := interval_of(ACCURACY, images, found["accuracy"], np.empty(0))) is not None:
            found["accuracy_interval"] = ends
        if min(self.best.start, self.best.trained) >= 0:  # checkpoints of older versions lack them
            found |= {
                "validation_images": self.held,
                "validation_accuracy": self.best.start,
                "validation_accuracy_trained": self.best.trained,
            }
        if not self.keeps_fitted:
            both = [
                answers_of(each.probabilities, each.labels) for each in (self.fitted, self.kept)
            ]
            gap = pairs_of(both)[0].differences["accuracy"]
            found |= {"gain": gap.value, "gain_interval": gap.interval}
        return found

    def lines(self, about: dict[str, Any]) -> list[str]:
        """Return the sentence on what is kept, and what to do where the other is better.

        Args:
            about: `figures`
        """
        images = len(self.fitted.labels)
        line = (
            f"kept: {self._choice()}; on the {counted(images, 'test image')} it has "
            f"{shown(accuracy_of(self.kept), images)}"
        )
        if self.keeps_fitted:
            return [line]
        gain = about["gain"]
        ends = about["gain_interval"]
        line += f", {FITTED} {shown(about['accuracy'], images)}: {ACCURACY.gap(gain, ends)}"
        low, high = ends or (-1.0, 1.0)
        if low <= 0 <= high:
            line += ", too few images to tell which is better"
        if gain >= 0:
            return [line]
        file = shlex.quote(str(self.file))
        return [
            line,
            f"{FITTED}, the better one on these test images, is a model of its own: vitlab predict "
            f"{file} IMAGE… uses it, vitlab evaluate {file} DATA tests it on other images",
        ]

    def _choice(self) -> str:
        """Return which is kept and by what, with the figures that decided."""
        mine = (TUNED, self.best.trained)
        other = (FITTED, self.best.start)
        if self.keeps_fitted:
            mine, other = other, mine
        if self.chosen_by == "few steps":
            return f"{FITTED}, since hardly any steps were taken"
        if self.chosen_by == "few images":
            return (
                f"{TUNED} (with fewer than {CHOOSABLE} training images always: none are held out "
                "to choose by)"
            )
        images = counted(self.held, "validation image")
        if min(self.best.start, self.best.trained) < 0:
            return f"{mine[0]}, the better on the {images}"
        better = "the better" if mine[1] > other[1] else "equally accurate, but of lower loss,"
        scores = [f"{name} {shown(score, self.held)}" for name, score in (mine, other)]
        return f"{mine[0]}, {better} on the {images} ({', '.join(scores)})"


def accuracy_of(done: Probabilities) -> float:
    """Return the share of the images that are classified correctly."""
    return float(figures(done.probabilities, done.labels)["accuracy"])


def shown(accuracy: float, images: int) -> str:
    """Return an accuracy and its interval: `80.4% (66.8 to 89.3)`."""
    ends = ACCURACY.range(interval_of(ACCURACY, images, accuracy, np.empty(0)))
    return ACCURACY.text(accuracy) + (f" ({ends})" if ends else "")
