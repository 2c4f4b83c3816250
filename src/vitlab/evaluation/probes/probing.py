"""How good features are for classification with few or all training images: `vitlab fewshot`."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vitlab.data.labels import SingleLabels
from vitlab.data.learning import open_to_learn
from vitlab.data.settings import Columns
from vitlab.data.sources.request import Given, title_of
from vitlab.data.sources.source import Source
from vitlab.distributed.launch import joined
from vitlab.distributed.world import World
from vitlab.errors import DataError
from vitlab.evaluation.choosing import unlearned
from vitlab.evaluation.compute import Compute
from vitlab.evaluation.features import described, features_of
from vitlab.evaluation.probes.logistic import swept_logistic
from vitlab.evaluation.probes.neighbors import NEIGHBORS, nearest_neighbors
from vitlab.evaluation.probes.ridge import SEEDS, SHOTS, check_shots, fewshot, sample_shots
from vitlab.evaluation.probes.wanted import Pooled
from vitlab.models.model import Model
from vitlab.progress import say


@dataclass(frozen=True)
class Probing:
    """What is measured, and where.

    Attributes:
        shots: training images per class
        seeds: how many times they are drawn: seeds 0, 1, …
        l2: penalty of the few-shot evaluation
        neighbors: the numbers k of the nearest-neighbor classifier; none to leave it out
        logistic: whether to fit the logistic regression
        taken: what of the model
        columns: which columns of a list or a table hold what
        cache: where features are kept; None for nowhere
        compute: where and how
        timeout: seconds that a process of torchrun waits for the others
    """

    shots: tuple[int, ...] = SHOTS
    seeds: int = SEEDS
    l2: float = 1024.0
    neighbors: tuple[int, ...] = NEIGHBORS
    logistic: bool = True
    taken: Pooled = Pooled()
    columns: Columns = Columns()
    cache: Path | None = None
    compute: Compute = Compute()
    timeout: float = 600.0


def probe(model: Model, data: Given, probing: Probing) -> dict[str, Any]:
    """Measure a model's features on the test split of DATA, learning from its training split.

    Under torchrun, all processes compute features; the first one has the result.

    Returns:
        In the first process: `fewshot` by number of shots (mean `accuracy`, `std` over the seeds
        and the value of each), `knn` by k and `logistic` (with the `l2` chosen), each with its
        `accuracy`; model, data, features, train_images, images, split, damaged, seconds, notes, and
        perhaps `learned_from`, as `vitlab.evaluate`. Nothing in the others.

    Raises:
        DataError: several labels per image, fewer images of a class than shots, no such data.
        OptionError: a layer that the model does not have.
    """
    begin = time.monotonic()
    with joined(str(probing.compute.device), probing.timeout) as (world, device):
        with world.agreed():
            splits = open_to_learn(data, columns=probing.columns)
            check_shots(
                classes_of(splits.train, title_of(data)), splits.classes, max(probing.shots)
            )
            asked = unlearned(splits.test, model.seen)
        compute = replace(
            probing.compute, device=device, sharing=world.local_size, measure=world.size == 1
        )
        learn, test = (
            _side(model, source, probing, name, compute, world)
            for name, source in (("training", splits.train), ("test", asked.source))
        )
        if not world.first:
            return {}
        if probing.cache is not None:
            say(described(probing.cache))
        found = _measured(learn, test, splits.classes, probing, device)
    bad = [*learn.bad, *test.bad]
    return {
        "model": model.config.name,
        "data": title_of(data),
        "features": learn.x.shape[1],
        "train_images": len(learn.x),
        "images": len(test.x),
        **found,
        **asked.about,
        "damaged": len(bad),
        "seconds": time.monotonic() - begin,
        "notes": [*splits.notes, *asked.notes, *(f"skipped: {message}" for message in bad)],
    }


def classes_of(source: Source, data: str) -> NDArray[np.int64]:
    """Return the class of each image, (n,).

    Raises:
        DataError: they have several labels each.
    """
    if not isinstance(source.labels, SingleLabels):
        raise DataError(f"{data} has several labels per image: a probe needs one class per image")
    return source.labels.values


@dataclass(frozen=True)
class Side:
    """The features x (n, width) and classes y (n,) of one split, and messages about the rest."""

    x: NDArray[np.float32]
    y: NDArray[np.int64]
    bad: list[str]


def _side(
    model: Model, source: Source, probing: Probing, name: str, compute: Compute, world: World
) -> Side:
    """Return the features of a split, with their classes."""
    how = {"world": world, "cache": probing.cache, "title": f"{name} features"}
    found = features_of(model, source, compute, probing.taken, **how)  # type: ignore[arg-type]
    return Side(found.values, classes_of(source, name)[found.indices], found.bad)


def _measured(
    learn: Side, test: Side, classes: Sequence[str], probing: Probing, device: torch.device
) -> dict[str, Any]:
    """Return the figures of each probe that is asked for."""

    def accuracy(predicted: NDArray[np.int64]) -> float:
        return float((predicted == test.y).mean())

    runs: dict[int, list[float]] = {shots: [] for shots in probing.shots}
    for seed in range(probing.seeds):
        for shots, rows in sample_shots(learn.y, classes, probing.shots, seed).items():
            rows = np.sort(rows)  # memory-mapped rows are read in their order
            predicted = fewshot(learn.x[rows], learn.y[rows], test.x, probing.l2)
            runs[shots].append(accuracy(predicted))
    figures: dict[str, Any] = {
        "l2": probing.l2,
        "fewshot": {str(shots): spread(each) for shots, each in runs.items()},
    }
    if probing.neighbors:
        found = nearest_neighbors(learn.x, learn.y, test.x, probing.neighbors, device=device)
        figures["knn"] = {str(k): {"accuracy": accuracy(each)} for k, each in found.items()}
    if probing.logistic:
        fitted = swept_logistic(learn.x, learn.y, device=device)
        figures["logistic"] = {
            "accuracy": accuracy(fitted.predict(test.x)),
            "l2": fitted.l2,
            "validation": fitted.validation,
        }
    return figures


def spread(accuracies: Sequence[float]) -> dict[str, Any]:
    """Return the mean, the standard deviation (of a sample; 0 for one), and each value."""
    values = np.array(accuracies)
    return {
        "accuracy": float(values.mean()),
        "std": float(values.std(ddof=1)) if len(values) > 1 else 0.0,
        "seeds": [float(each) for each in values],
    }
