"""From a run folder and a model's predictions to the report."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitlab.data.sources.source import Source
from vitlab.evaluation.evaluation import Evaluation
from vitlab.evaluation.metrics import METRICS
from vitlab.evaluation.per_class import class_figures, confused_pairs, confusion, decisions
from vitlab.evaluation.predictions import Predictions
from vitlab.evaluation.reliability import Bin, bins
from vitlab.models.config import ViTConfig
from vitlab.models.cost import cost
from vitlab.models.model import Model
from vitlab.report import album
from vitlab.report.atlas.gathered import atlas
from vitlab.report.facts import Facts, Point, Survey
from vitlab.report.inside.looked import Looked
from vitlab.report.inside.looking import GLANCED, look_briefly
from vitlab.report.page import write
from vitlab.report.survey import surveyed
from vitlab.report.table_page import Table
from vitlab.runs.run_folder import RunFolder

EVALUATED = ("test", "validation", "held-out")  # kinds of lines in the journal
CHANGED = ("intervals", "calibration", "thresholds", "classes")
OF_ANY_RUN = (
    "kind",
    "step",
    "epoch",
    "loss",
    "lr",
    "probe",
    "knn",
    "map",
    "seconds",
    "images_per_second",
    "images",
)  # keys of the journal's lines that are no figures of a pretext task; its accuracy is one
APART = ("run", "versions")  # tables of run.toml that have a place of their own


def write_report(
    folder: RunFolder,
    model: Model,
    source: Source,
    predictions: Predictions,
    figures: dict[str, Any],
    notes: list[str],
    survey: Survey | None = None,
) -> Path:
    """Write a run's `report.html`.

    Args:
        folder: the run's
        model: the tested model
        source: the test images
        predictions: the model's, of these images
        figures: the run's figures, the keys of the command's JSON
        notes: remarks for the reader
        survey: the data of the run, if it is at hand

    Returns:
        The report's file.
    """
    tables, journal = folder.tables, folder.journal.read()
    several = predictions.labels.several  # then no class is mistaken for another
    results, above = (predictions.probabilities, predictions.labels), np.array(model.thresholds)
    facts = Facts(
        model=model.config.name,
        run=tables["run"],
        figures=figures,
        classes=source.classes,
        training=points(journal, ("train",)),
        testing=points(journal, EVALUATED),
        confusion=confusion(*results),
        reliability=[] if several else bins(results[0], results[1].values),
        mistakes=[] if several else album.mistakes(model, source, predictions),
        examples=album.examples(model, source, predictions),
        cost=list(cost(model).parts),
        recipe={key: table for key, table in tables.items() if key not in APART},
        versions=tables["versions"],
        notes=notes,
        per_class=class_figures(*results, source.classes, above),
        predicted=decisions(*results, above)[1].tolist(),
        confused=confused_pairs(*results, source.classes),
        listed=[] if several else album.listed(source, predictions),
        uncalibrated=_uncalibrated(predictions),
        sweep=Table(**sweep["table"]) if (sweep := folder.sweep()) else None,
        survey=survey,
        inside=_inside(model, source, predictions),
        atlas=atlas(model, source, predictions),
    )
    return write(folder.report, facts)


def write_calibrated(folder: RunFolder, model: Model, evaluation: Evaluation) -> Path | None:
    """Write a run's report again, with what calibrating or choosing thresholds has changed.

    Args:
        folder: the run's
        model: its model, calibrated or with thresholds
        evaluation: of that model

    Returns:
        The report's file; None if the run has none, or was tested on other images.
    """
    old, new = folder.result(), evaluation.figures
    same = ("accuracy", "map", "images")
    if old is None or "report" not in old or any(old.get(key) != new.get(key) for key in same):
        return None
    moved = [each.name for each in METRICS.values() if each.moved_by]
    figures = old | {key: new[key] for key in (*moved, *CHANGED) if key in new}
    results, notes = evaluation.predictions, [*old.get("notes", []), *_thresholds(model)]
    seen = surveyed(folder, model.config.channels)
    return write_report(folder, model, evaluation.source, results, figures, notes, seen)


def _inside(model: Model, source: Source, predictions: Predictions) -> Looked | None:
    """Look inside the model, with a few test images; None where an image is a single patch."""
    config, count = model.config, len(predictions.indices)
    if not count or (isinstance(config, ViTConfig) and math.prod(config.grid) == 1):
        return None
    places = np.unique(np.linspace(0, count - 1, num=min(GLANCED, count), dtype=int))
    return look_briefly(model, source, predictions.indices[places].tolist())


def _thresholds(model: Model) -> list[str]:
    """Return a line about the thresholds of a model, if they were chosen."""
    about = model.provenance.get("thresholds_chosen")
    if not about:
        return []
    values, labels = model.thresholds, model.config.labels
    shown = ", ".join(f"{name} {value:.3g}" for name, value in zip(labels, values, strict=False))
    shown = f"{values[0]:.3g} for all classes" if len(set(values)) == 1 else shown
    return [f"thresholds chosen by F1 on {about['images']:,} validation images: {shown}"]


def _uncalibrated(predictions: Predictions) -> list[Bin]:
    """Return the reliability without the temperature, if the logits are at hand."""
    if predictions.logits is None or predictions.labels.several:
        return []
    raw = predictions.labels.probabilities(torch.from_numpy(predictions.logits)).numpy()
    return bins(raw, predictions.labels.values)


def points(journal: list[dict[str, Any]], kinds: tuple[str, ...]) -> list[Point]:
    """Return the points in the order of their steps; of a step that was taken again, the last."""
    fields = ("step", "epoch", "loss", "accuracy", "lr", "probe", "knn", "map", "seconds")
    chosen = {line["step"]: line for line in journal if line["kind"] in kinds}
    lines = [chosen[step] for step in sorted(chosen)]
    return [
        Point(**{key: line[key] for key in fields if key in line}, own=_own(line)) for line in lines
    ]


def _own(line: dict[str, Any]) -> dict[str, float]:
    """Return what a pretext task adds to a line of the journal."""
    return {
        key: float(value)
        for key, value in line.items()
        if key not in OF_ANY_RUN and isinstance(value, int | float)
    }
