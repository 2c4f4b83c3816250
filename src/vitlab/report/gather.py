"""From a run folder and a model's predictions to the report."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitlab.data.augment.augment import normalize
from vitlab.data.loading.batches import center, load_image
from vitlab.data.sources.protocol import Source
from vitlab.evaluation.calibration import SHOWN
from vitlab.evaluation.evaluation import Evaluation
from vitlab.evaluation.metrics import Bin, bins, confusion
from vitlab.evaluation.per_class import class_figures, confused_pairs
from vitlab.evaluation.predictions import Predictions
from vitlab.inspect.rollout import rollout
from vitlab.models.cost import cost
from vitlab.models.model import Model
from vitlab.report.facts import Facts, Judged, Picture, Point
from vitlab.report.page import write
from vitlab.report.table_page import Table
from vitlab.runs.run_folder import RunFolder

MISTAKES, EXAMPLES = 24, 8


def write_report(
    folder: RunFolder,
    model: Model,
    source: Source,
    predictions: Predictions,
    figures: dict[str, Any],
    notes: list[str],
) -> Path:
    """Write a run's `report.html`.

    Args:
        folder: the run's
        model: the tested model
        source: the test images
        predictions: the model's, of these images
        figures: the run's figures, the keys of the command's JSON
        notes: remarks for the reader

    Returns:
        The report's file.
    """
    tables, journal = folder.tables, folder.journal.read()
    several = predictions.labels.several  # then no class is mistaken for another
    count, results = len(source.classes), (predictions.probabilities, predictions.labels)
    facts = Facts(
        title=f"{model.config.name} on {tables['data']['data']}",
        command=tables["run"]["command"],
        figures=figures,
        classes=source.classes,
        training=_points(journal, "train"),
        testing=_points(journal, "test"),
        confusion=np.zeros((count, count), np.int64)
        if several
        else confusion(predictions.probabilities, predictions.labels.values),
        reliability=[] if several else bins(predictions.probabilities, predictions.labels.values),
        mistakes=[] if several else _mistakes(model, source, predictions),
        examples=_examples(model, source, predictions),
        cost=list(cost(model).parts),
        recipe={key: tables[key] for key in tables if key not in ("run", "versions")},
        versions=tables["versions"],
        notes=notes,
        per_class=class_figures(*results, source.classes),
        confused=confused_pairs(*results, source.classes),
        uncalibrated=_uncalibrated(predictions),
        sweep=Table(**sweep["table"]) if (sweep := folder.sweep()) else None,
    )
    return write(folder.report, facts)


def write_calibrated(folder: RunFolder, model: Model, evaluation: Evaluation) -> Path | None:
    """Write a run's report again, with what calibrating its model has changed.

    Args:
        folder: the run's
        model: its model, calibrated
        evaluation: of the calibrated model

    Returns:
        The report's file; None if these are not the images that the run was tested on.
    """
    old, new = folder.result(), evaluation.figures
    same = ("accuracy", "map", "images")
    if old is None or any(old.get(key) != new.get(key) for key in same):
        return None
    figures = old | {key: new[key] for key in (*SHOWN, "intervals", "calibration") if key in new}
    results, notes = evaluation.predictions, old.get("notes", [])
    return write_report(folder, model, evaluation.source, results, figures, notes)


def _uncalibrated(predictions: Predictions) -> list[Bin]:
    """Return the reliability without the temperature, if the logits are at hand."""
    if predictions.logits is None or predictions.labels.several:
        return []
    raw = predictions.labels.probabilities(torch.from_numpy(predictions.logits)).numpy()
    return bins(raw, predictions.labels.values)


def _points(journal: list[dict[str, Any]], kind: str) -> list[Point]:
    fields = ("step", "epoch", "loss", "accuracy", "lr", "probe")
    chosen = [line for line in journal if line["kind"] == kind]
    return [Point(**{key: line[key] for key in fields if key in line}) for line in chosen]


def _mistakes(model: Model, source: Source, predictions: Predictions) -> list[Judged]:
    """Return the most confident mistakes."""
    wrong = np.flatnonzero(predictions.probabilities.argmax(1) != predictions.labels.values)
    order = wrong[np.argsort(-predictions.probabilities[wrong].max(1), kind="stable")]
    return [_judged(model, source, predictions, int(place)) for place in order[:MISTAKES]]


def _examples(model: Model, source: Source, predictions: Predictions) -> list[Judged]:
    """Return the first image of each of a few classes, with its attention map."""
    if not model.config.blocks or math.prod(model.config.grid) == 1:
        return []
    _, firsts = np.unique(predictions.labels.values, return_index=True, axis=0)
    chosen = firsts[np.linspace(0, len(firsts) - 1, num=min(EXAMPLES, len(firsts)), dtype=int)]
    judged = [_judged(model, source, predictions, int(place)) for place in chosen]
    config, device = model.config, next(model.parameters()).device
    maps = []
    for place in chosen:  # each may have its own size
        image = load_image(source, int(predictions.indices[place]), config, center(config))
        pixels = normalize(torch.from_numpy(image)[None].to(device), config.mean, config.std)
        maps.append(rollout(model, pixels)[0].cpu().numpy())
    return [
        Judged(each.picture, each.truth, each.guess, each.confidence, attention)
        for each, attention in zip(judged, maps, strict=True)
    ]


def _judged(model: Model, source: Source, predictions: Predictions, place: int) -> Judged:
    index = int(predictions.indices[place])
    pixels = load_image(source, index, model.config, center(model.config))
    shown = pixels[..., 0] if pixels.shape[-1] == 1 else pixels[..., :3]
    guess = int(predictions.probabilities[place].argmax())
    return Judged(
        Picture(np.ascontiguousarray(shown), source.name(index)),
        ", ".join(source.classes[label] for label in predictions.labels.classes_of(place))
        or "none",
        source.classes[guess],
        float(predictions.probabilities[place, guess]),
    )
