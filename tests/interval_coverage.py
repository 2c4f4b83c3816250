"""How often intervals hold the truth: simulated test sets of models whose truth is known.

A model's logits are drawn, and the labels from their softmax, so that its probabilities are
calibrated; an overconfident model multiplies them by 1.8. With several labels each class has a
logit and a decision of its own. The truth is the figure of very many images.
"""

from collections import defaultdict
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from vitlab.data.labels import Labels, MultiLabels, SingleLabels
from vitlab.evaluation.answers import Weighted, answers_of
from vitlab.evaluation.intervals import with_intervals
from vitlab.evaluation.metrics import METRICS, values_of

SCALES = {2: 3.0, 3: 2.6, 10: 3.0}  # of the logits: accuracies of 88%, 79%, 66%
BATCHES, IMAGES = 4, 50_000  # of which the truth is made
COUNTS = (20, 50, 100, 400)  # images of a test set
NAMES = [name for name, metric in METRICS.items() if metric.interval and metric.fn]


@dataclass(frozen=True)
class Setting:
    """Test sets of one kind."""

    classes: int
    overconfident: bool
    several: bool = False

    def drawn(
        self, generator: np.random.Generator, images: int
    ) -> tuple[NDArray[np.float64], Labels]:
        """Probabilities and labels of a test set."""
        logits = SCALES[self.classes] * generator.normal(size=(images, self.classes))
        factor = 1.8 if self.overconfident else 1.0
        if self.several:
            table = generator.random(logits.shape) < 1 / (1 + np.exp(1 - logits))
            return 1 / (1 + np.exp(factor * (1 - logits))), MultiLabels.of_table(
                table.astype(np.uint8)
            )
        logits -= logits.max(1, keepdims=True)
        true, shown = (np.exp(each) / np.exp(each).sum(1, keepdims=True)
                       for each in (logits, factor * logits))  # fmt: skip
        labels = (true.cumsum(1) > generator.random((images, 1))).argmax(1)
        return shown, SingleLabels(labels)


@cache
def truth_of(setting: Setting) -> dict[str, float]:
    """The figures of very many images; the calibration error of a calibrated model is 0."""
    generator, found = np.random.default_rng(9), defaultdict(list)
    for _ in range(BATCHES):
        shown, labels = setting.drawn(generator, IMAGES)
        answers = answers_of(shown, labels)
        for name, value in values_of(Weighted(answers, np.ones((1, IMAGES)), shown)).items():
            found[name].append(value[0])
    values = {name: float(np.mean(each)) for name, each in found.items()}
    calibrated = not setting.overconfident and not setting.several
    return values | {"calibration_error": 0.0} if calibrated else values


def covered(setting: Setting, images: int, sets: int, resamples: int) -> dict[str, tuple[int, int]]:
    """Count the intervals that hold the truth, and all: of each figure that has intervals."""
    seed = (images, setting.classes, setting.overconfident, setting.several)
    truth, generator = truth_of(setting), np.random.default_rng(list(map(int, seed)))
    hits: dict[str, list[bool]] = defaultdict(list)
    for _ in range(sets):
        shown, labels = setting.drawn(generator, images)
        found = with_intervals(shown, labels, resamples)["intervals"]
        for name, (low, high) in found.items():
            hits[name].append(low <= truth[name] <= high)
    return {name: (sum(each), len(each)) for name, each in hits.items()}


SETTINGS = [Setting(classes, over, several) for several in (False, True) for classes in SCALES
            for over in (False, True)]  # fmt: skip


def shares(setting: Setting, sets: int, resamples: int) -> dict[str, dict[int, float]]:
    """The share of intervals that hold the truth: by figure, and by images of a test set."""
    found: dict[str, dict[int, float]] = defaultdict(dict)
    for images in COUNTS:
        for name, (hits, given) in covered(setting, images, sets, resamples).items():
            found[name][images] = hits / given
    return found


def table(found: list[dict[str, dict[int, float]]]) -> str:
    """The table of evaluation/coverage.md: the lowest and the highest share over all settings."""
    rows = []
    for name in NAMES:
        cells = [f"| `{name}`"]
        for images in COUNTS:
            known = [each[name][images] for each in found if images in each.get(name, {})]
            cells.append(f"{min(known):.1%} to {max(known):.1%}" if known else "–")
        rows.append(" | ".join(cells) + " |")
    return "\n".join(rows) + "\n"
