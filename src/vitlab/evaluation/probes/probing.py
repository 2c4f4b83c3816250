"""How good features are for classification, by the protocols of papers: `vitlab fewshot`."""

import time
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitlab.data.learning import open_to_learn
from vitlab.data.sources.request import Given, title_of
from vitlab.data.sources.source import Source
from vitlab.distributed.launch import joined
from vitlab.distributed.world import World
from vitlab.errors import DataError
from vitlab.evaluation.choosing import unlearned
from vitlab.evaluation.features import described, features_of
from vitlab.evaluation.infer import Vectors
from vitlab.evaluation.probes.few_shot import classes_of
from vitlab.evaluation.probes.protocols import Probing, Side, judged, named_rows, validated
from vitlab.evaluation.probes.searching import feature_sets
from vitlab.models.model import Model
from vitlab.progress import say

TIMEOUT = 600.0  # seconds that a process of torchrun waits for the others


def probe(model: Model, data: Given, probing: Probing) -> dict[str, Any]:
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
    with joined(str(probing.compute.device), TIMEOUT) as (world, device):
        with world.agreed():
            splits = open_to_learn(data, columns=probing.columns)
            classes_of(splits.train, title_of(data))
            asked = unlearned(splits.test, model.seen)
        compute = replace(
            probing.compute, device=device, sharing=world.local_size, measure=world.size == 1
        )
        probing = replace(probing, compute=compute)
        compared = probing.taken.what == "all"
        vectors, kinds = feature_sets(model) if compared else (probing.taken, {})
        learn, test = (
            _side(model, source, vectors, name, probing, world)
            for name, source in (("training", splits.train), ("test", asked.source))
        )
        if not world.first:
            return {}
        figures, left_out = _measured(learn, test, kinds, probing)
    if probing.cache is not None:
        say(described(probing.cache))
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
    model: Model, source: Source, vectors: Vectors, name: str, probing: Probing, world: World
) -> Side:
    """Return the features of a split, with their classes."""
    found = features_of(
        model,
        source,
        probing.compute,
        vectors,
        world=world,
        cache=probing.cache,
        title=f"{name} features",
    )
    labels = classes_of(source, name)[found.indices]
    return Side(found.values, labels, source.classes, found.bad)


def _measured(
    learn: Side, test: Side, kinds: dict[str, NDArray[np.int64]], probing: Probing
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
        tables[kind], left_out = judged(own, asked, probing)
        lines += left_out
        for name, accuracy in validated(tables[kind], own, probing).items() if kinds else ():
            if accuracy > best.get(name, (-1.0, ""))[0]:
                best[name] = accuracy, kind
    if not any(named_rows(tables)):
        raise DataError("nothing is left to measure: " + "; ".join(lines))
    chosen = {name: kind for name, (_, kind) in best.items()}
    figures = {"by_features": tables, "best": chosen} if kinds else tables[""]
    return figures, [*dict.fromkeys(lines)]
