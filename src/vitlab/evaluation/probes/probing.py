"""How good features are for classification with few or all training images: `vitlab fewshot`."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

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
from vitlab.evaluation.probes.few_shot import L2, SEEDS, SHOTS, fewshot, sample_shots, smallest
from vitlab.evaluation.probes.heads import Blocks, means, swept_logistic
from vitlab.evaluation.probes.neighbors import NEIGHBORS, nearest_neighbors
from vitlab.evaluation.probes.wanted import Pooled
from vitlab.models.model import Model
from vitlab.progress import say


@dataclass(frozen=True)
class Probing:
    """What is measured, and where.

    Attributes:
        shots: training images per class
        seeds: how many times they are drawn: seeds 0, 1, …
        l2: penalty of the few-shot evaluation; auto: the paper's, and beside it the best by
            leave-one-out
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
    l2: float | Literal["auto"] = L2
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
        and the value of each), with `l2="auto"` also `fewshot_auto`, `knn` by k, `means` and
        `logistic` (with the `l2` chosen), each with its `accuracy`; model, data, features,
        train_images, images, split, damaged, seconds, notes, and perhaps `learned_from`, as
        `vitlab.evaluate`. What a class has too few images for is left out, and named in the notes.
        Nothing in the others.

    Raises:
        DataError: several labels per image, no such data.
        OptionError: a layer that the model does not have.
    """
    begin = time.monotonic()
    with joined(str(probing.compute.device), probing.timeout) as (world, device):
        with world.agreed():
            splits = open_to_learn(data, columns=probing.columns)
            classes_of(splits.train, title_of(data))
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
        found, left_out = _measured(learn, test, splits.classes, probing, device)
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
        "notes": [
            *splits.notes,
            *asked.notes,
            *left_out,
            *(f"skipped: {message}" for message in bad),
        ],
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
) -> tuple[dict[str, Any], list[str]]:
    """Return the figures of each probe that is asked for, and a line about each left out."""

    def accuracy(predicted: NDArray[np.int64]) -> float:
        return float((predicted == test.y).mean())

    shots, notes = _enough(learn.y, classes, probing.shots)
    runs: dict[tuple[int, float | str], list[float]] = {}
    paper = L2 if probing.l2 == "auto" else probing.l2
    for seed in range(probing.seeds if shots else 0):
        for count, rows in sample_shots(learn.y, classes, shots, seed).items():
            rows = np.sort(rows)  # memory-mapped rows are read in their order
            for l2 in dict.fromkeys([paper, probing.l2]):
                predicted = fewshot(learn.x[rows], learn.y[rows], test.x, l2)
                runs.setdefault((count, l2), []).append(accuracy(predicted))
    figures: dict[str, Any] = {"l2": paper}
    for name, l2 in {"fewshot": paper, "fewshot_auto": probing.l2}.items():
        if name == "fewshot" or l2 == "auto":
            own = {str(count): spread(each) for (count, mine), each in runs.items() if mine == l2}
            figures[name] = own
    if probing.neighbors:
        found = nearest_neighbors(learn.x, learn.y, test.x, probing.neighbors, device=device)
        figures["knn"] = {str(k): {"accuracy": accuracy(each)} for k, each in found.items()}
    centers = means(Blocks(learn.x), learn.y, len(classes))
    figures["means"] = {"accuracy": accuracy(centers.predict(test.x))}
    if probing.logistic:
        try:
            fitted = swept_logistic(learn.x, learn.y, device=device)
        except DataError as error:
            return figures, [*notes, f"left out: {error}"]
        figures["logistic"] = {
            "accuracy": accuracy(fitted.predict(test.x)),
            "l2": fitted.l2,
            "validation": fitted.validation,
        }
    return figures, notes


def _enough(
    y: NDArray[np.int64], classes: Sequence[str], shots: Sequence[int]
) -> tuple[list[int], list[str]]:
    """Return the shots that every class has images for, and a line about the others."""
    have, reason = smallest(y, classes)
    left = [f"{each} shot{'s' * (each != 1)}" for each in shots if each > have]
    notes = [f"left out: {', '.join(left)}, since {reason}"] if left else []
    return [each for each in shots if each <= have], notes


def spread(accuracies: Sequence[float]) -> dict[str, Any]:
    """Return the mean, the standard deviation (of a sample; 0 for one), and each value."""
    values = np.array(accuracies)
    return {
        "accuracy": float(values.mean()),
        "std": float(values.std(ddof=1)) if len(values) > 1 else 0.0,
        "seeds": [float(each) for each in values],
    }
