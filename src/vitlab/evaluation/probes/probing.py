"""Protocols by which papers judge frozen features, and `vitlab fewshot`, which follows them."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vitlab.data.labels import SingleLabels
from vitlab.data.learning import open_to_learn
from vitlab.data.sources.request import Given, title_of
from vitlab.data.sources.source import Source
from vitlab.distributed.launch import joined
from vitlab.distributed.world import World
from vitlab.errors import DataError
from vitlab.evaluation.choosing import unlearned
from vitlab.evaluation.compute import Compute
from vitlab.evaluation.features import cache_of, described, features_of
from vitlab.evaluation.infer import Vectors
from vitlab.evaluation.intervals import wilson
from vitlab.evaluation.probes.feature_options import Probing, ProtocolName
from vitlab.evaluation.probes.few_shot import (
    L2,
    classes_of,
    fewshot,
    sample_shots,
    smallest,
)
from vitlab.evaluation.probes.heads import Blocks, means, swept_logistic
from vitlab.evaluation.probes.neighbors import NEIGHBORS, nearest_neighbors
from vitlab.evaluation.probes.searching import feature_sets
from vitlab.models.model import Model
from vitlab.progress import say
from vitlab.units import counted

TIMEOUT = 600.0  # seconds that a process of torchrun waits for the others
HELD_OUT = 0.2  # of each class
GRID = np.logspace(-6, 5, 45)  # of DINOv2, after SimCLR: 45 penalties or their inverses


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

    x: NDArray[np.float32]
    y: NDArray[np.int64]
    classes: Sequence[str]
    bad: Sequence[str]
    device: torch.device

    def some(self, rows: NDArray[Any]) -> "Side":
        """Return those of some images, by their numbers or a mask."""
        return replace(self, x=self.x[rows], y=self.y[rows])


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
    seeds = range(how.seeds if shots else 0)
    drawn = [sample_shots(learn.y, learn.classes, shots, seed) for seed in seeds]
    paper = L2 if how.l2 == "auto" else how.l2
    rows: dict[str, Any] = {"fewshot": {}} | ({"fewshot_auto": {}} if how.l2 == "auto" else {})
    for count in shots:
        own = [learn.some(np.sort(each[count])) for each in drawn]  # rows of a file in their order
        for key, l2 in zip(rows, (paper, how.l2), strict=False):
            guesses = [fewshot(each.x, each.y, test.x, l2) for each in own]
            name = f"{counted(count, 'shot')}, l2 {l2 if l2 == 'auto' else f'{l2:g}'}"
            rows[key][str(count)] = _row(name, test, *guesses, several=True)
    return rows, [f"left out: {', '.join(left)}, since {reason}"] if left else []


def nearest(learn: Side, test: Side, how: Probing) -> Found:
    """Let the k training images of highest cosine similarity vote, for each k that there are.

    Source: dinov2/eval/knn.py (`nearest_neighbors`).
    """
    count = len(learn.y)
    fit = [k for k in NEIGHBORS if k <= count] or [count]
    voted = nearest_neighbors(learn.x, learn.y, test.x, fit, device=learn.device)
    return {"knn": {str(k): _row(f"{k} neighbors", test, each) for k, each in voted.items()}}, []


def class_means(learn: Side, test: Side, how: Probing) -> Found:
    """Take the class whose mean of standardized features is the nearest."""
    head = means(Blocks(learn.x), learn.y, len(learn.classes))
    return {"means": _row("class means", test, head.predict(test.x))}, []


def dinov2_logistic(learn: Side, test: Side, how: Probing) -> Found:
    """Fit a logistic regression to features as they are, C the best of 45 on a tenth of the images.

    Source: dinov2/eval/log_regression.py (Oquab et al., 2023): the tenth is drawn with seed 0, C is
    from 1e-6 to 1e5 and multiplies the sum of the losses, and the last fit is to all images.
    """
    count = len(learn.y)
    held = torch.randperm(count, generator=torch.Generator().manual_seed(0))[: count // 10]
    return _logistic("logistic", "DINOv2", learn, test, how, held.numpy())


def simclr_logistic(learn: Side, test: Side, how: Probing) -> Found:
    """Fit a logistic regression to features as they are, l2 the best of 45 on validation images.

    Source: SimCLR (Chen et al., 2020), B.8: l2 is from 1e-6 to 1e5, here beside the mean loss; the
    validation images are a fifth of each class here, and the last fit is to all images.
    """
    return _logistic("simclr", "SimCLR", learn, test, how, held_out(learn))


def _logistic(
    key: str, source: str, learn: Side, test: Side, how: Probing, held: NDArray[np.int64]
) -> Found:
    """Return the row of a logistic regression, unless no image is held out."""
    name, summed = f"logistic regression, {source}", key == "logistic"
    if not len(held):
        return {}, [f"left out: {name}, since there are too few training images to hold some out"]
    penalties = (1 / GRID if summed else GRID[::-1]).tolist()
    blocks = Blocks(learn.x, learn.device, scaled=False)
    head, accuracy = swept_logistic(blocks, learn.y, len(learn.classes), held, penalties, summed)
    about = {"l2": head.l2, "validation": accuracy}
    return {key: _row(name, test, head.predict(test.x)) | about}, []


def _row(
    name: str, test: Side, *guesses: NDArray[np.int64], several: bool = False
) -> dict[str, Any]:
    """Return the figures of one or several fits; `interval` is Wilson's, for the test images."""
    seeds = [float((each == test.y).mean()) for each in guesses]
    accuracy = float(np.mean(seeds))
    found = {"name": name, "accuracy": accuracy, "interval": list(wilson(accuracy, len(test.y)))}
    if several:
        found |= {"std": float(np.std(seeds, ddof=1)) if len(seeds) > 1 else 0.0, "seeds": seeds}
    return found


PROTOCOLS: dict[ProtocolName, Callable[[Side, Side, Probing], Found]] = {
    "fewshot": few_shots,
    "knn": nearest,
    "means": class_means,
    "logistic": dinov2_logistic,
    "simclr": simclr_logistic,
}


def judged(learn: Side, test: Side, how: Probing) -> Found:
    """Return the figures of all protocols that are asked for, and lines about what is left out."""
    found = [PROTOCOLS[name](learn, test, how) for name in how.protocol]
    figures = {key: each for rows, _ in found for key, each in rows.items()}
    return figures, [line for _, lines in found for line in lines]


def named_rows(figures: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each row of figures with its name."""
    for each in figures.values():
        if isinstance(each, dict):
            yield from [(each["name"], each)] if "name" in each else named_rows(each)


def validated(figures: dict[str, Any], learn: Side, how: Probing) -> dict[str, float]:
    """Return the accuracy of each row, by its name, on validation images.

    They are what its protocol holds out itself, or a fifth of each class of the training images.

    Args:
        figures: of the protocols, which have learned from all training images
        learn: these
        how: as for the figures
    """
    held = held_out(learn)
    rest = [name for name in how.protocol if name not in ("logistic", "simclr")]
    kept, how = np.setdiff1d(np.arange(len(learn.y)), held), replace(how, protocol=tuple(rest))
    inner = judged(learn.some(kept), learn.some(held), how)[0] if len(held) else {}
    own = {name: row["validation"] for name, row in named_rows(figures) if "validation" in row}
    return own | {name: row["accuracy"] for name, row in named_rows(inner)}


def held_out(learn: Side) -> NDArray[np.int64]:
    """Return the numbers of a fifth of each class, the same ones each time."""
    return SingleLabels(learn.y).held_out(HELD_OUT, np.random.default_rng(0))


def probe(model: Model, data: Given, how: Probing, compute: Compute) -> dict[str, Any]:
    """Measure a model's features on the test split of DATA, learning from its training split.

    Under torchrun, all processes compute features; the first one has the result.

    Returns:
        In the first process: `fewshot` by number of shots (mean `accuracy`, `std` over the seeds
        and the value of each), with `l2="auto"` also `fewshot_auto`, `knn` by k, `means`, and
        `logistic` and `simclr` (with the `l2` chosen), each with its `accuracy` and `interval`;
        where features are compared, `by_features` has these for each kind of features, and `best`
        the kind that is the best on validation images, by row. Also model, data, features,
        train_images, images, split, damaged, seconds, notes, and perhaps `learned_from`, as
        `vitlab.evaluate`. What there are too few images for is left out, and named in the notes.
        Nothing in the others.

    Raises:
        DataError: several labels per image, no such data, or nothing is left to measure.
        OptionError: a layer that the model does not have.
    """
    begin = time.monotonic()
    with joined(str(compute.device), TIMEOUT) as (world, device):
        with world.agreed():
            splits = open_to_learn(data, columns=how.columns)
            classes_of(splits.train, title_of(data))
            asked = unlearned(splits.test, model.seen)
        alone = world.size == 1
        compute = replace(compute, device=device, sharing=world.local_size, measure=alone)
        cache, compared = cache_of(how.cache), how.features.what == "all"
        vectors, kinds = feature_sets(model) if compared else (how.features, {})
        learn, test = (
            _side(model, source, vectors, name, compute, world, cache)
            for name, source in (("training", splits.train), ("test", asked.source))
        )
        if not world.first:
            return {}
        figures, left_out = _measured(learn, test, kinds, how)
    if cache is not None:
        say(described(cache))
    bad = [*learn.bad, *test.bad]
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
        "notes": [
            *splits.notes,
            *asked.notes,
            *left_out,
            *(f"skipped: {message}" for message in bad),
        ],
    }


def _side(
    model: Model,
    source: Source,
    vectors: Vectors,
    name: str,
    compute: Compute,
    world: World,
    cache: Path | None,
) -> Side:
    """Return the features of a split, with their classes."""
    title = f"{name} features"
    found = features_of(model, source, compute, vectors, world=world, cache=cache, title=title)
    labels = classes_of(source, name)[found.indices]
    return Side(found.values, labels, source.classes, found.bad, compute.where)


def _measured(
    learn: Side, test: Side, kinds: dict[str, NDArray[np.int64]], how: Probing
) -> tuple[dict[str, Any], list[str]]:
    """Return the figures of all protocols, of each kind of features, and what is left out.

    Raises:
        DataError: that is all.
    """
    tables: dict[str, Any] = {}
    best: dict[str, tuple[float, str]] = {}
    lines: list[str] = []
    every: dict[str, Any] = kinds or {"": slice(None)}
    for kind, columns in every.items():
        own, asked = (replace(each, x=each.x[:, columns]) for each in (learn, test))
        tables[kind], left_out = judged(own, asked, how)
        lines += left_out
        for name, accuracy in validated(tables[kind], own, how).items() if kinds else ():
            if accuracy > best.get(name, (-1.0, ""))[0]:
                best[name] = accuracy, kind
    if not any(named_rows(tables)):
        raise DataError("nothing is left to measure: " + "; ".join(lines))
    chosen = {name: kind for name, (_, kind) in best.items()}
    figures = {"by_features": tables, "best": chosen} if kinds else tables[""]
    return figures, [*dict.fromkeys(lines)]
