"""Protocols by which papers judge frozen features: `vitlab fewshot`, and `--probe` of a run."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import numpy as np
import torch

from vitlab.data.images import Images
from vitlab.data.loading.cache import cached
from vitlab.data.open_splits import open_to_learn
from vitlab.data.sources.request import Given, title_of
from vitlab.data.splits import Splits
from vitlab.distributed.launch import joined
from vitlab.distributed.reading import read_in_order
from vitlab.distributed.world import World
from vitlab.errors import DataError
from vitlab.evaluation.answers import Float32s, Integers, check_numbers, sample
from vitlab.evaluation.choosing import Chosen, unlearned
from vitlab.evaluation.compute import Compute
from vitlab.evaluation.feature_cache import cache_of, described, features_of
from vitlab.evaluation.features import ImageFeatures, features_in_memory
from vitlab.evaluation.metrics import METRICS
from vitlab.evaluation.near_ends import of_share, wilson
from vitlab.evaluation.probes.blocks import Blocks
from vitlab.evaluation.probes.feature_options import Probing, ProtocolName
from vitlab.evaluation.probes.few_shot import (
    L2,
    NEIGHBORS,
    SEEDS,
    classes_of,
    fewshot,
    nearest_neighbors,
    sample_shots,
    smallest,
)
from vitlab.evaluation.probes.heads import means, swept_logistic
from vitlab.models.model import Model
from vitlab.models.seen import NOTHING, Seen
from vitlab.progress import say
from vitlab.units import counted

TIMEOUT = 600.0  # seconds that a process of torchrun waits for the others
GRID = np.logspace(-6, 5, 45)  # of DINOv2, after SimCLR: the inverses of 45 penalties


@dataclass(frozen=True)
class Side:
    """Features of one split.

    Attributes:
        x: float32 (n, width)
        y: the class of each image, int64 (n,)
        classes: their names
        bad: messages about damaged images
        device: where to compute
    """

    x: Float32s
    y: Integers
    classes: tuple[str, ...]
    bad: list[str]
    device: torch.device


Found = tuple[dict[str, Any], list[str]]
"""Figures as JSON has them, each row with its `name`; and lines about what is left out."""


def few_shots(learn: Side, test: Side, how: Probing) -> Found:
    """Fit least squares in closed form to few images of each class, drawn several times.

    Source: big_vision's evaluators/fewshot_lsr.py (`fewshot`, `sample_shots`).
    """
    have, reason = smallest(learn.y, learn.classes)
    asked = sorted({*how.shots})
    shots = [each for each in asked if each <= have]
    left = [counted(each, "shot") for each in asked if each > have]
    numbers = range(how.seeds if shots else 0)
    drawn = [sample_shots(learn.y, learn.classes, shots, seed) for seed in numbers]
    paper = L2 if how.l2 == "auto" else how.l2
    rows: dict[str, Any] = {"fewshot": {}} | ({"fewshot_auto": {}} if how.l2 == "auto" else {})
    for count in shots:
        own = [np.sort(each[count]) for each in drawn]  # rows of a file in their order
        for key, l2 in zip(rows, (paper, how.l2), strict=False):
            seeds = [
                _right(fewshot(learn.x[each], learn.y[each], test.x, l2), test) for each in own
            ]
            name = f"{counted(count, 'shot')}, l2 {l2 if l2 == 'auto' else f'{l2:g}'}"
            std = float(np.std(seeds, ddof=1)) if len(seeds) > 1 else 0.0
            row = _row(name, test, float(np.mean(seeds)))
            rows[key][str(count)] = row | {"std": std, "seeds": seeds}
    return rows, [f"left out: {', '.join(left)}, since {reason}"] if left else []


def nearest(learn: Side, test: Side, how: Probing) -> Found:
    """Let the k training images of highest cosine similarity vote, for each k that there are.

    Source: dinov2/eval/knn.py (`nearest_neighbors`).
    """
    count = len(learn.y)
    fit = [k for k in NEIGHBORS if k <= count] or [count]
    voted = nearest_neighbors(learn.x, learn.y, test.x, fit, device=learn.device)
    return {
        "knn": {
            str(k): _row(f"{k} neighbors", test, _right(each, test)) for k, each in voted.items()
        }
    }, []


def class_means(learn: Side, test: Side, how: Probing) -> Found:
    """Take the class whose mean of standardized features is the nearest."""
    head = means(Blocks(learn.x), learn.y, len(learn.classes))
    return {"means": _row("class means", test, _right(head.predict(test.x), test))}, []


def logistic(learn: Side, test: Side, how: Probing) -> Found:
    """Fit a logistic regression to features as they are, C the best of 45 on a tenth of the images.

    Source: dinov2/eval/log_regression.py (Oquab et al., 2023): the tenth is drawn with seed 0, C is
    from 1e-6 to 1e5 and multiplies the sum of the losses, and the last fit is to all images.
    """
    name = "logistic regression, DINOv2"
    count = len(learn.y)
    held = torch.randperm(count, generator=torch.Generator().manual_seed(0))[: count // 10]
    if not len(held):
        return {}, [f"left out: {name}, since there are too few training images to hold some out"]
    blocks = Blocks(learn.x, learn.device, scaled=False)
    classes = len(learn.classes)
    penalties = (1 / GRID).tolist()
    head, accuracy = swept_logistic(blocks, learn.y, classes, held.numpy(), penalties)
    about = {"l2": head.l2, "validation": accuracy}
    return {"logistic": _row(name, test, _right(head.predict(test.x), test)) | about}, []


def _right(guess: Integers, test: Side) -> float:
    """Return the share of the test images that a guess is right about."""
    return float((guess == test.y).mean())


def _row(name: str, test: Side, accuracy: float) -> dict[str, Any]:
    """Return the figures of a fit; `interval` is that of a share of the test images."""
    return {"name": name, "accuracy": accuracy, "interval": list(of_share(accuracy, len(test.y)))}


PROTOCOLS: dict[ProtocolName, Callable[[Side, Side, Probing], Found]] = {
    "fewshot": few_shots,
    "knn": nearest,
    "means": class_means,
    "logistic": logistic,
}


def probe(model: Model, data: Given, how: Probing, compute: Compute) -> dict[str, Any]:
    """Measure a model's features on the test split of DATA, learning from its training split.

    Under torchrun, all processes compute features; the first one has the result.

    Returns:
        In the first process: `fewshot` by number of shots (mean `accuracy`, `std` over the seeds
        and the value of each), with `l2="auto"` also `fewshot_auto`, `knn` by k, `means`, and
        `logistic` (with the `l2` chosen), each with its `accuracy` and `interval`. Also model,
        data, features, train_images, images, split, damaged, seconds, notes, and perhaps
        `learned_from`, as `vitlab.evaluate`. What there are too few images for is left out, and
        named in the notes. Nothing in the others.

    Raises:
        DataError: several labels per image, no such data, a feature that is no number, or nothing
            is left to measure.
        OptionError: a layer that the model does not have.
    """
    begin = time.monotonic()
    cache = cache_of(how.cache)
    with joined(str(compute.device), TIMEOUT, resumes=False, option="") as (world, device):

        def open_splits() -> tuple[Splits, Chosen]:
            splits = open_to_learn(data, options=how.columns)
            classes_of(splits.train, title_of(data))
            return splits, unlearned(splits.test, model.seen)

        splits, asked = read_in_order(world, open_splits)
        alone = world.size == 1
        sides = []
        compute = replace(compute, device=device, sharing=world.local_size, measure=alone)
        for name, source in (("training", splits.train), ("test", asked.source)):
            what = (model, source, compute, how.features)
            title = f"{name} features"
            found = features_of(*what, world=world, cache=cache, title=title)
            labels = classes_of(source, name)[found.indices]
            cache = cache if found.cached else None  # a cache is refused once
            sides.append(Side(found.values, labels, source.classes, found.bad, compute.where))
        if not world.first:
            return {}
        for each in sides:
            check_numbers(each.x, "images a feature")
        learn, test = sides
        figures = dict[str, Any]()
        left_out = list[str]()
        for protocol in how.protocol:
            rows, lines = PROTOCOLS[protocol](learn, test, how)
            figures |= rows
            left_out += lines
    if not any(figures.values()):
        raise DataError("nothing is left to measure: " + "; ".join(left_out))
    if cache is not None:
        say(described(cache))
    bad = [*learn.bad, *test.bad]
    notes = [*splits.notes, *asked.notes, *left_out, *(f"skipped: {message}" for message in bad)]
    return {
        "model": model.config.name,
        "data": title_of(data),
        "features": learn.x.shape[1],
        "train_images": len(learn.x),
        "images": len(test.x),
        **figures,
        **asked.about,
        "damaged": len(bad),
        "seconds": time.monotonic() - begin,
        "notes": notes,
    }


# While a model is trained: `--probe`


SHOTS, VOTERS = 10, 20  # images of a class, and neighbors
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
    learn: Images
    draws: tuple[Integers, ...]
    test: Images
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
        labels = classes_of(splits.train, data)
        asked = unlearned(splits.test, seen)
        for note in asked.notes:
            say(f"probe on {data}: {note}")
        if by == "knn":
            learn, test = (
                cached(part.take(sample(len(part), MOST, 0)), channels)
                for part in (splits.train, asked.source)
            )
            return cls(data, learn, (), test, by)
        drawn = _shots(data, labels, splits.classes)
        every = np.unique(np.concatenate(drawn))
        return cls(
            data,
            cached(splits.train.take(every), channels),
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
        with world.agreed():
            if not world.first or not len(test.values) or not len(learn.values):
                return float("nan"), bad
            return self._accuracy(learn, test, device), bad

    def _accuracy(self, learn: ImageFeatures, test: ImageFeatures, device: torch.device) -> float:
        """Return the accuracy on some features of what is learned from others."""
        labels, answers = (
            classes_of(source, self.title)[own.indices]
            for source, own in ((self.learn, learn), (self.test, test))
        )
        if self.by == "knn":
            voted = nearest_neighbors(learn.values, labels, test.values, (VOTERS,), device=device)
            return float((voted[VOTERS] == answers).mean())
        each = []
        for draw in self.draws:
            rows = np.flatnonzero(np.isin(learn.indices, draw))
            guess = fewshot(learn.values[rows], labels[rows], test.values)
            each.append((guess == answers).mean())
        return float(np.mean(each))


def _shots(data: str, labels: Integers, classes: tuple[str, ...]) -> list[Integers]:
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
