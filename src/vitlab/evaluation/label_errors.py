"""Label errors by confident learning: which labels are likely wrong, and the table of them.

Source: Northcutt, Jiang & Chuang, Confident Learning: Estimating Uncertainty in Dataset Labels,
Journal of Artificial Intelligence Research 70, 2021, sections 3.1 and 3.2.

The labels that are likely wrong, as a table: a row per image, likeliest error first.

| column | content |
| --- | --- |
| image | the file's path, or the source's name for the image |
| label, labels | the class or classes it is labeled with |
| likely | the class or classes it likely has |
| p_label | probability of the label |
| p_likely | probability of the likely class |
| margin | probability of the label minus the largest of another class, from -1 to 0 |

Where images have several labels, p_label and margin are those of the class most in doubt, and
there is no p_likely.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitlab.data.labels import Labels, MultiLabels, SingleLabels
from vitlab.evaluation.answers import Floats, Integers, check_labels, check_numbers
from vitlab.evaluation.rows import Kinds, Row, table_to

ROUNDING = 1e-6  # a mean of equal probabilities may come out a little above each of them
ROWS = 65_536  # images at once, so that a copy of all probabilities is never needed


@dataclass(frozen=True)
class Suspect:
    """An image whose label is likely wrong.

    Attributes:
        place: its row among the probabilities
        given: the classes it is labeled with, in ascending order; one of single labels
        better: the classes it likely has
        own: the self-confidence, the probability of the label; where images have several labels,
            that a class in question is as labeled, the least of them. The lower, the likelier the
            label is wrong
        margin: the normalized margin, `own` minus the largest probability of another class, from
            -1 to 0
        likely: the probability of the class it likely has, of single labels
    """

    place: int
    given: tuple[int, ...]
    better: tuple[int, ...]
    own: float
    margin: float
    likely: float = 0.0


@dataclass(frozen=True, eq=False)
class LabelErrors:
    """The labels that are likely wrong.

    Attributes:
        suspects: the images, likeliest error first
        estimated: how many of all labels are estimated to be wrong, by the joint distribution
            of given and true labels (equation 3); of images with several labels, how many of
            the decisions
        images: how many there are
        several: whether images have several labels
    """

    suspects: list[Suspect]
    estimated: float
    images: int
    several: bool = False

    @property
    def kinds(self) -> Kinds:
        """The columns of the table."""
        if self.several:
            return {
                "image": "text", "labels": "texts", "likely": "texts", "p_label": "number",
                "margin": "number",
            }  # fmt: skip
        return {
            "image": "text", "label": "text", "likely": "text", "p_label": "number",
            "p_likely": "number", "margin": "number",
        }  # fmt: skip

    def rows(self, classes: Sequence[str], name: Callable[[int], str]) -> list[Row]:
        """Return the rows of the table.

        Args:
            classes: their names
            name: what to call the image of a row of probabilities
        """
        found = []
        for each in self.suspects:
            given, better = ([classes[n] for n in own] for own in (each.given, each.better))
            if self.several:
                row: Row = {"labels": given, "likely": better}
            else:
                row = {"label": given[0], "likely": better[0], "p_likely": each.likely}
            own = {"p_label": each.own, "margin": each.margin}
            found.append({"image": name(each.place)} | row | own)
        return found


def find_label_errors(probabilities: Floats, labels: Labels) -> LabelErrors:
    """Find the images whose labels are likely wrong, from a model that has not learned from them.

    The threshold of a class is the mean probability that its images have for it. An image counts
    as confidently of the likeliest class whose threshold it reaches; one that is labeled
    otherwise, and whose label is not the likeliest class of all, is a suspect (the off-diagonals
    of the confident joint). Suspects are ranked by self-confidence, which found more of the wrong
    labels first than the normalized margin where the model was weak, and as many where it was
    good (docs/evaluation.md).

    Where images have several labels, each class is a question of its own, with the two answers
    yes and no.

    Args:
        probabilities: (n, classes), of images that the model was not trained on: test images, or
            out-of-fold predictions. Of images it has learned from it repeats the wrong labels
        labels: of the same n images, as they were given

    Raises:
        DataError: a probability is NaN, or the shapes do not fit.
    """
    check_numbers(probabilities)
    if len(probabilities) or len(labels):
        check_labels(probabilities, labels)
    match labels:
        case SingleLabels(truth):
            return _of_one(probabilities, truth)
        case MultiLabels():
            return _of_several(probabilities, labels.values)


def confident_joint(probabilities: Floats, truth: Integers) -> tuple[Integers, Integers]:
    """Count the images of each given class that are confidently of each class (equation 1).

    Args:
        probabilities: (n, classes)
        truth: the given classes, (n,)

    Returns:
        The joint, (classes, classes): rows are given classes, columns likely ones. And the likely
        class of each image, (n,): -1 where no class reaches its threshold.
    """
    classes = probabilities.shape[1]
    own = probabilities[np.arange(len(truth)), truth]
    counts = np.bincount(truth, minlength=classes)
    sums = np.bincount(truth, own, minlength=classes)
    # A class that no image is labeled with has no threshold, and none can reach it.
    limits = np.where(counts > 0, sums / np.maximum(counts, 1), np.inf) - ROUNDING
    likely = np.empty(len(truth), np.int64)
    for first in range(0, len(truth), ROWS):
        part = probabilities[first : first + ROWS]
        reached = np.where(part >= limits, part, -1.0)
        best = reached.argmax(1)
        there = reached[np.arange(len(part)), best] >= 0
        likely[first : first + ROWS] = np.where(there, best, -1)
    known = likely >= 0
    joint = np.bincount(truth[known] * classes + likely[known], minlength=classes * classes)
    return joint.reshape(classes, classes), likely


def expected_errors(joint: Integers, counts: Integers) -> float:
    """Return how many labels the joint distribution says are wrong (equation 3).

    Each row of the confident joint is scaled to the number of images with that label.

    Args:
        joint: (classes, classes), from `confident_joint`
        counts: images with each label, (classes,)
    """
    sums = joint.sum(1)
    share = 1 - joint.diagonal() / np.maximum(sums, 1)
    return float((counts * np.where(sums > 0, share, 0.0)).sum())


def _of_one(probabilities: Floats, truth: Integers) -> LabelErrors:
    joint, likely = confident_joint(probabilities, truth)
    doubtful = np.flatnonzero((likely >= 0) & (likely != truth))
    rows = probabilities[doubtful]
    places = np.arange(len(doubtful))
    own = rows[places, truth[doubtful]]
    rows[places, truth[doubtful]] = -1.0  # fancy indexing above has made a copy
    margins = own - rows.max(1, initial=-1.0)
    chances = probabilities[doubtful, likely[doubtful]]
    found = zip(*(each.tolist() for each in (doubtful, own, margins, chances)), strict=True)
    suspects = [
        Suspect(place, (int(truth[place]),), (int(likely[place]),), chance, margin, better)
        for place, chance, margin, better in found
        if margin < 0  # else the model itself thinks that the label is right
    ]
    counts = np.bincount(truth, minlength=len(joint))
    return LabelErrors(_ranked(suspects), expected_errors(joint, counts), len(truth))


def _of_several(probabilities: Floats, table: NDArray[np.uint8]) -> LabelErrors:
    """Ask about each class alone, and put together what is doubtful about an image."""
    found: dict[int, dict[int, Suspect]] = {}
    wrong = 0.0
    for number in range(table.shape[1]):
        yes = probabilities[:, number]
        asked = _of_one(np.stack([1 - yes, yes], 1), table[:, number].astype(np.int64))
        wrong += asked.estimated
        for each in asked.suspects:
            found.setdefault(each.place, {})[number] = each
    suspects = []
    for place, doubts in found.items():
        worst = min(doubts.values(), key=lambda each: each.own)
        given = set(np.flatnonzero(table[place]).tolist())
        better = given ^ doubts.keys()
        suspects.append(
            Suspect(place, tuple(sorted(given)), tuple(sorted(better)), worst.own, worst.margin)
        )
    return LabelErrors(_ranked(suspects), wrong, len(table), several=True)


def _ranked(suspects: list[Suspect]) -> list[Suspect]:
    return sorted(suspects, key=lambda each: (each.own, each.place))


LEARNED = (
    "a model repeats the wrong labels that it has learned: of training images, vitlab train DATA "
    "--folds 5 finds more label errors"
)


def write_suspects(file: Path, found: LabelErrors, rows: list[Row]) -> dict[str, Any]:
    """Write the table, and return its summary.

    Args:
        file: that `check_file` accepted
        found: the labels that are likely wrong
        rows: of the table

    Returns:
        `file`, `listed` (its rows) and `expected` (how many labels are estimated to be wrong in
        all).

    Raises:
        DiskError: the file cannot be written.
    """
    with table_to(file, found.kinds) as write:
        write(rows)
    return {"file": str(file), "listed": len(rows), "expected": found.estimated}
