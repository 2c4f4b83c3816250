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

from vitlab.evaluation.intervals import interval_of
from vitlab.evaluation.metrics import METRICS, Interval
from vitlab.recipes.recipe import CHOOSABLE
from vitlab.units import counted

ACCURACY = METRICS["accuracy"]
FITTED = "the classifier fitted before training"
TUNED = "the fine-tuned model"


@dataclass(frozen=True, kw_only=True)
class ModelChoice:
    """Which of a run's two models is kept, and how accurate both are.

    Attributes:
        keeps_fitted: whether it is the fitted classifier; else it is the fine-tuned model
        held: number of validation images that decided; 0 where none did
        held_fitted: accuracy of the fitted classifier on these; -1 where it is not known
        held_tuned: the same of the fine-tuned model
        images: number of test images
        fitted: accuracy of the fitted classifier on these
        gain: what the fine-tuned model has more; None where the fitted classifier is kept
        ends: the interval of that difference; None of very few images
        file: of the fitted classifier
    """

    keeps_fitted: bool
    held: int
    held_fitted: float
    held_tuned: float
    images: int
    fitted: float
    gain: float | None
    ends: Interval | None
    file: Path

    @property
    def by(self) -> str:
        """What decided, as JSON has it: validation images, too few images, or too few steps."""
        if self.held:
            return "validation"
        return "few steps" if self.keeps_fitted else "few images"

    @property
    def has_scores(self) -> bool:
        """Whether the figures that decided are known; checkpoints of older versions lack them."""
        return self.held > 0 and min(self.held_fitted, self.held_tuned) >= 0

    def as_table(self) -> dict[str, Any]:
        """Return what JSON says of both models."""
        table: dict[str, Any] = {
            "kept": "fitted" if self.keeps_fitted else "fine-tuned",
            "by": self.by,
            "accuracy": self.fitted,
            "accuracy_interval": ends_of(self.fitted, self.images),
        }
        if self.has_scores:
            table |= {
                "validation_images": self.held,
                "validation_accuracy": self.held_fitted,
                "validation_accuracy_tuned": self.held_tuned,
            }
        if self.gain is not None:
            table |= {"gain": self.gain, "gain_interval": self.ends}
        return table

    def lines(self) -> list[str]:
        """Return the sentence on what is kept, and what to do where the other is better."""
        kept = self.fitted + (self.gain or 0.0)
        images = counted(self.images, "test image")
        line = f"kept: {self._reason()}; on the {images} it has {write_accuracy(kept, self.images)}"
        if self.gain is None:
            return [line]
        line += (
            f", {FITTED} {write_accuracy(self.fitted, self.images)}: "
            f"{ACCURACY.gap(self.gain, self.ends)}"
        )
        if self.ends is None or self.ends[0] <= 0 <= self.ends[1]:
            line += ", too few images to tell which is better"
        if self.gain >= 0:
            return [line]
        file = shlex.quote(str(self.file))
        return [
            line,
            f"{FITTED}, the better one on these test images, is a model of its own: vitlab predict "
            f"{file} IMAGE… uses it, vitlab evaluate {file} DATA tests it on other images",
        ]

    def _reason(self) -> str:
        """Return which is kept and by what, with the figures that decided."""
        kept = FITTED if self.keeps_fitted else TUNED
        if self.by == "few steps":
            return f"{kept}, since hardly any steps were taken"
        if self.by == "few images":
            return (
                f"{kept} (with fewer than {CHOOSABLE} training images always: none are held out to "
                "choose by)"
            )
        images = counted(self.held, "validation image")
        if not self.has_scores:
            return f"{kept}, the better on the {images}"
        equal = self.held_fitted == self.held_tuned
        better = "equally accurate, but of lower loss," if equal else "the better"
        scores = {TUNED: self.held_tuned, FITTED: self.held_fitted}
        texts = [f"{name} {write_accuracy(scores[name], self.held)}" for name in scores]
        return f"{kept}, {better} on the {images} ({', '.join(texts)})"


def ends_of(accuracy: float, images: int) -> Interval | None:
    """Return the interval of an accuracy; None of very few images."""
    return interval_of(ACCURACY, images, accuracy, np.empty(0))


def write_accuracy(accuracy: float, images: int) -> str:
    """Return an accuracy and its interval as text: `80.4% (66.8 to 89.3)`."""
    ends = ACCURACY.range(ends_of(accuracy, images))
    return f"{ACCURACY.text(accuracy)} ({ends})" if ends else ACCURACY.text(accuracy)
