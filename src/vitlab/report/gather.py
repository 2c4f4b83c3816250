"""From a run folder and the model's predictions to the report's facts."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitlab.data.augment.augment import normalize
from vitlab.data.loading.batches import center, load_image
from vitlab.data.sources.protocol import Source
from vitlab.evaluation.metrics import bins, confusion
from vitlab.evaluation.predictions import Predictions
from vitlab.inspect.rollout import rollout
from vitlab.models.cost import cost
from vitlab.models.model import Model
from vitlab.report.facts import Facts, Judged, Picture, Point
from vitlab.report.page import write
from vitlab.runs import RunFolder

MISTAKES, EXAMPLES = 24, 8


def write_report(
    folder: RunFolder,
    model: Model,
    source: Source,
    seen: Predictions,
    figures: dict[str, Any],
    notes: list[str],
) -> Path:
    """Write a run's `report.html`.

    Args:
        folder: the run's
        model: what was tested
        source: the test images
        seen: what the model said of them
        figures: the run's JSON
        notes: what the reader should know beside the figures
    """
    tables, journal = folder.tables, folder.journal.read()
    several = seen.labels.several  # then no class is mistaken for another
    kinds = len(source.classes)
    facts = Facts(
        title=f"{model.config.name} on {tables['data']['data']}",
        command=tables["run"]["command"],
        figures=figures,
        classes=source.classes,
        training=_points(journal, "train"),
        testing=_points(journal, "test"),
        confusion=np.zeros((kinds, kinds), np.int64)
        if several
        else confusion(seen.probabilities, seen.labels.values),
        reliability=[] if several else bins(seen.probabilities, seen.labels.values),
        mistakes=[] if several else _mistakes(model, source, seen),
        examples=_examples(model, source, seen),
        cost=list(cost(model).parts),
        recipe={key: tables[key] for key in tables if key not in ("run", "versions")},
        versions=tables["versions"],
        notes=notes,
    )
    return write(folder.report, facts)


def _points(journal: list[dict[str, Any]], kind: str) -> list[Point]:
    fields = ("step", "epoch", "loss", "accuracy", "lr")
    chosen = [line for line in journal if line["kind"] == kind]
    return [Point(**{key: line[key] for key in fields if key in line}) for line in chosen]


def _mistakes(model: Model, source: Source, seen: Predictions) -> list[Judged]:
    """The wrong answers given with the most confidence."""
    wrong = np.flatnonzero(seen.probabilities.argmax(1) != seen.labels.values)
    order = wrong[np.argsort(-seen.probabilities[wrong].max(1), kind="stable")]
    return [_judged(model, source, seen, int(place)) for place in order[:MISTAKES]]


def _examples(model: Model, source: Source, seen: Predictions) -> list[Judged]:
    """The first image of each of a few classes, with what the model looked at."""
    if not model.config.blocks or math.prod(model.config.grid) == 1:
        return []
    _, firsts = np.unique(seen.labels.values, return_index=True, axis=0)
    chosen = firsts[np.linspace(0, len(firsts) - 1, num=min(EXAMPLES, len(firsts)), dtype=int)]
    judged = [_judged(model, source, seen, int(place)) for place in chosen]
    config, device = model.config, next(model.parameters()).device
    images = [
        load_image(source, int(seen.indices[place]), config, center(config)) for place in chosen
    ]
    pixels = normalize(torch.from_numpy(np.stack(images)).to(device), config.mean, config.std)
    maps = rollout(model, pixels).cpu().numpy()
    return [
        Judged(each.picture, each.truth, each.guess, each.confidence, attention)
        for each, attention in zip(judged, maps, strict=True)
    ]


def _judged(model: Model, source: Source, seen: Predictions, place: int) -> Judged:
    index = int(seen.indices[place])
    pixels = load_image(source, index, model.config, center(model.config))
    shown = pixels[..., 0] if pixels.shape[-1] == 1 else pixels[..., :3]
    guess = int(seen.probabilities[place].argmax())
    return Judged(
        Picture(np.ascontiguousarray(shown), source.name(index)),
        ", ".join(source.classes[label] for label in seen.labels.classes_of(place)) or "none",
        source.classes[guess],
        float(seen.probabilities[place, guess]),
    )
