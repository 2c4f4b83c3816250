"""`--probe`: the few-shot or k-NN accuracy of a model while it is being trained."""

from dataclasses import dataclass
from typing import Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray

from vitlab.data.learning import open_to_learn
from vitlab.data.loading.cache import cached
from vitlab.data.sources.source import Source, Subset
from vitlab.distributed.world import World
from vitlab.errors import DataError
from vitlab.evaluation.choosing import unlearned
from vitlab.evaluation.compute import Compute
from vitlab.evaluation.embedding_map import sample
from vitlab.evaluation.features import features_in_memory
from vitlab.evaluation.intervals import wilson
from vitlab.evaluation.metrics import METRICS
from vitlab.evaluation.probes.few_shot import (
    SEEDS,
    classes_of,
    fewshot,
    nearest_neighbors,
    sample_shots,
    smallest,
)
from vitlab.models.model import Model
from vitlab.models.seen import NOTHING, Seen
from vitlab.progress import say

SHOTS = 10
NEIGHBORS = 20
MOST = 5000  # images of a split, of the nearest-neighbor probe

By = Literal["fewshot", "knn"]
KEYS: dict[By, str] = {"fewshot": "probe", "knn": "knn"}  # in the lines of the journal


@dataclass(frozen=True)
class Probe:
    """The images of a probe, and how features of them are judged.

    `fewshot` is what `vitlab fewshot --shots 10` measures. `knn` is the weighted nearest-neighbor
    classifier of DINO (k = 20, temperature 0.07), which fits nothing: at most 5,000 training images
    vote on at most 5,000 test images, both drawn at random with seed 0.

    Attributes:
        title: the data as the user wrote it
        learn: the training images that any of the seeds draws, or that vote
        draws: for each seed, the images in `learn` that it draws, (10 * classes,); none for `knn`
        test: the test images
        by: what is measured
    """

    title: str
    learn: Source
    draws: tuple[NDArray[np.int64], ...]
    test: Source
    by: By = "fewshot"

    @property
    def key(self) -> str:
        """The name of the figure in the lines of the journal."""
        return KEYS[self.by]

    @property
    def name(self) -> str:
        """The name of the figure for the reader."""
        return METRICS[self.key].title

    @classmethod
    def of(cls, data: str, channels: int, by: By = "fewshot", seen: Seen = NOTHING) -> Self:
        """Open the data and draw the images.

        Args:
            data: any DATA of `vitlab train`
            channels: of the model's images
            by: what is measured
            seen: images that the model learns from, which are not tested on if there are others

        Raises:
            DataError: no such data, several labels per image, or a class with too few images.
        """
        splits = open_to_learn(data)
        labels, asked = classes_of(splits.train, data), unlearned(splits.test, seen)
        for note in asked.notes:
            say(f"probe on {data}: {note}")
        if by == "knn":
            learn, test = (
                cached(Subset(part, sample(len(part), MOST, 0)), channels)
                for part in (splits.train, asked.source)
            )
            return cls(data, learn, (), test, by)
        drawn = _shots(data, labels, splits.classes)
        every = np.unique(np.concatenate(drawn))
        return cls(
            data,
            cached(Subset(splits.train, every), channels),
            tuple(np.searchsorted(every, own) for own in drawn),
            cached(asked.source, channels),
            by,
        )

    def least(self, accuracy: float) -> float:
        """Return the lower end of an accuracy's 95% interval: what is below it is no chance."""
        return wilson(accuracy, len(self.test))[0]

    def measure(
        self, model: Model, world: World, *, device: torch.device, workers: int | None
    ) -> tuple[float, list[str]]:
        """Return the accuracy (the mean over the seeds), and messages about damaged images.

        All processes compute features; the first one has the accuracy, the others get NaN, as it
        does if not one test image can be decoded.

        Args:
            model: the same in all processes; it stays as it is
            world: the processes
            device: where to compute
            workers: processes that decode; None to choose
        """
        compute = Compute(device, engine="plain", workers=workers, sharing=world.local_size)
        learn, test = (
            features_in_memory(model, source, compute, world=world)
            for source in (self.learn, self.test)
        )
        bad = [*learn.bad, *test.bad]
        if not world.first or not len(test.values) or not len(learn.values):
            return float("nan"), bad
        labels, answers = (
            classes_of(source, self.title)[own.indices]
            for source, own in ((self.learn, learn), (self.test, test))
        )
        if self.by == "knn":
            voted = nearest_neighbors(
                learn.values, labels, test.values, (NEIGHBORS,), device=device
            )
            return float((voted[NEIGHBORS] == answers).mean()), bad
        each = []
        for draw in self.draws:
            rows = np.flatnonzero(np.isin(learn.indices, draw))
            guess = fewshot(learn.values[rows], labels[rows], test.values)
            each.append((guess == answers).mean())
        return float(np.mean(each)), bad


def _shots(
    data: str, labels: NDArray[np.int64], classes: tuple[str, ...]
) -> list[NDArray[np.int64]]:
    """Draw the images of each seed.

    Raises:
        DataError: a class has too few.
    """
    have, line = smallest(labels, classes)
    if have < SHOTS:
        raise DataError(
            f"{data}: {line}, and the probe needs {SHOTS} of each class: add images, use "
            "--probe-by knn, or other data for --probe"
        )
    return [sample_shots(labels, classes, [SHOTS], seed)[SHOTS] for seed in range(SEEDS)]
