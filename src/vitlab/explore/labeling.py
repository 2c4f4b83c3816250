"""Labeling: a person gives classes to images of the map, a linear head refits, the next are chosen.

The head is a ridge regression on standardized features, whose penalty is the best when each image
is left out: both in closed form, so that it takes milliseconds for some hundred labels. Proposed
next are images between whose two best classes the head sees the least margin, and of those some
that are unlike each other (a greedy k-center choice; Sener and Savarese, Active Learning for
Convolutional Neural Networks: A Core-Set Approach, 2018, algorithm 1).
"""

import csv
import io
import threading
from collections.abc import Sequence
from os.path import commonpath
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitlab.errors import DataError, OptionError, one_line
from vitlab.evaluation.probes.blocks import Blocks
from vitlab.evaluation.probes.ridge import best_ridge, ridge
from vitlab.evaluation.records import unicode

LONGEST = 1_000  # characters of the name of a class
NEXT = 12  # images that are proposed, among four times as many in doubt and a 16th of all


class Labeling:
    """The images of a map, and the classes that a person gave them.

    Args:
        features: of each image, float32 (n, d)
        names: what the source calls each: its path, if it is a file
        truth: int64 (n,), the class that it has to begin with; -1 where there is none
        classes: names of these classes
    """

    def __init__(
        self,
        features: NDArray[np.float32],
        names: Sequence[str],
        truth: NDArray[np.int64],
        classes: Sequence[str],
    ) -> None:
        spread = features.std(0)
        self._features = (features - features.mean(0)) / np.where(spread > 0, spread, 1)
        lengths = np.linalg.norm(self._features, axis=1, keepdims=True)
        self._unit = self._features / np.maximum(lengths, np.finfo(np.float32).tiny)
        self._paths = [Path(name).absolute() for name in names]
        self._lock = threading.Lock()
        self._folder = commonpath([path.parent for path in self._paths])
        self._labels = truth.copy()
        self._classes = list(classes)

    def give(self, places: Sequence[int], name: str) -> dict[str, Any]:
        """Give images a class, or take theirs away; return what `state` does.

        Args:
            places: numbers of the images
            name: of the class, a new one or not; empty to take the labels away

        Raises:
            OptionError: there is no such image.
        """
        name = one_line(name.strip())[:LONGEST]
        with self._lock:
            if any(not 0 <= place < len(self._labels) for place in places):
                raise OptionError(f"images are counted from 0 to {len(self._labels) - 1:,}")
            if name and name not in self._classes:
                self._classes.append(name)
            self._labels[list(places)] = self._classes.index(name) if name else -1
        return self.state()

    def state(self) -> dict[str, Any]:
        """Return what the page is told.

        Returns:
            classes; labels, of each image, -1 for none; guess and margin, what the head says of
            each image, none before two classes have labels; accuracy, the share of labeled images
            that it guesses if each is left out; next, the images to label next; folder, that the
            paths of `as_csv` are relative to.
        """
        with self._lock:
            labels = self._labels.copy()
            classes = self._classes
        known = np.flatnonzero(labels >= 0)
        found: dict[str, Any] = {"guess": [], "margin": [], "accuracy": None}
        margin = None
        if len(np.unique(labels[known])) > 1:
            x = Blocks(self._features[known], scaled=False)
            y = labels[known]
            accuracy, l2 = best_ridge(x, y, len(classes))
            outputs = ridge(x, y, len(classes), l2).logits(self._features)
            two = np.partition(outputs, -2, axis=1)[:, -2:]
            margin = two[:, 1] - two[:, 0]
            found = {
                "guess": outputs.argmax(1).tolist(),
                "margin": margin.round(4).tolist(),
                "accuracy": accuracy,
            }
        return found | {
            "classes": [unicode(name) for name in classes],
            "labels": labels.tolist(),
            "next": self._next(labels, margin),
            "folder": unicode(self._folder),
        }

    def _next(self, labels: NDArray[np.int64], margin: NDArray[np.float64] | None) -> list[int]:
        """Return the images to label next, the most doubtful first, each unlike those before it."""
        pool = np.flatnonzero(labels < 0)
        known = np.flatnonzero(labels >= 0)
        if margin is None:  # what is unlike all that has a label
            nearest = (self._unit[pool] @ self._unit[known].T).max(1, initial=-1)
        else:
            pool = pool[np.argsort(margin[pool], kind="stable")[: 4 * NEXT + len(pool) // 16]]
            nearest = np.full(len(pool), -1.0)
        chosen: list[int] = []
        for _ in range(min(NEXT, len(pool))):
            place = int(nearest.argmin())
            chosen.append(int(pool[place]))
            nearest = np.maximum(nearest, self._unit[pool] @ self._unit[pool[place]])
            nearest[place] = np.inf
        return chosen

    def as_csv(self) -> str:
        """Return the labels as a list that every command reads: a path and a class in each line.

        Raises:
            DataError: the images are not files.
        """
        found = [
            (path, self._classes[label])
            for path, label in zip(self._paths, self._labels, strict=True)
            if label >= 0
        ]
        if gone := next((path.name for path, _ in found if not path.is_file()), ""):
            raise DataError(
                f"{gone} is not a file of its own: only labels of folders and lists can be saved"
            )
        lines = io.StringIO()
        writer = csv.writer(lines, lineterminator="\n")
        writer.writerow(["path", "label"])
        writer.writerows((path.relative_to(self._folder), name) for path, name in found)
        return lines.getvalue()
