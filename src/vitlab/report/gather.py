"""Facts of a report, gathered from a run folder and a model's predictions."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitlab.data.sources.source import Source
from vitlab.evaluation.evaluation import Evaluation
from vitlab.evaluation.infer import Predictions
from vitlab.evaluation.label_errors import find_label_errors
from vitlab.evaluation.metrics import METRICS
from vitlab.evaluation.per_class import class_figures, confused_pairs, confusion, decisions
from vitlab.evaluation.reliability import Bin, bins
from vitlab.models.config import ViTConfig
from vitlab.models.cost import cost
from vitlab.models.model import Model
from vitlab.report import album, image_map
from vitlab.report.facts import Facts, Point, Survey
from vitlab.report.inside.looked import Looked
from vitlab.report.inside.looking import GLANCED, look_briefly
from vitlab.report.page import Table, write_page
from vitlab.report.run_page import run_page
from vitlab.report.survey import surveyed
from vitlab.runs.run_folder import RunFolder

EVALUATED = ("test", "validation", "held-out")  # kinds of lines in the journal
CHANGED = ("intervals", "calibration", "thresholds", "classes")
OF_POINTS = ("step", "epoch", "loss", "accuracy", "lr", "probe", "knn", "map", "seconds")
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
    several = predictions.labels.several  # then no class is mistaken for another
    results, above = (predictions.probabilities, predictions.labels), np.array(model.thresholds)
    facts = Facts(
        **of_folder(folder, model, figures, notes),
        classes=source.classes,
        confusion=confusion(*results),
        reliability=[] if several else bins(results[0], results[1].values),
        uncalibrated=_uncalibrated(predictions),
        mistakes=album.mistakes(model, source, predictions),
        listed=album.listed(source, predictions),
        examples=album.examples(model, source, predictions),
        unlike=_unlike(predictions),
        per_class=class_figures(*results, source.classes, above),
        predicted=decisions(*results, above)[1].tolist(),
        confused=confused_pairs(*results, source.classes),
        survey=survey,
        inside=_inside(model, source, predictions),
        **_plotted(model, source, predictions),
    )
    return write_page(folder.report, run_page(facts))


def of_folder(
    folder: RunFolder, model: Model, figures: dict[str, Any], notes: list[str]
) -> dict[str, Any]:
    """Return the facts that a run of any kind has, by their names."""
    tables, journal = folder.tables, folder.journal.read()
    evaluated = [line["kind"] for line in journal if line["kind"] in EVALUATED]
    return {
        "model": model.config.name,
        "run": tables["run"],
        "figures": figures,
        "training": points(journal, ("train",)),
        "testing": points(journal, EVALUATED),
        "held_out": evaluated[-1] if evaluated else "test",
        "cost": [part for part in cost(model).parts if part.params or part.macs],
        "recipe": {key: table for key, table in tables.items() if key not in APART},
        "versions": tables["versions"],
        "notes": notes,
        "sweep": Table(**sweep["table"]) if (sweep := folder.sweep()) else None,
    }


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


def points(journal: list[dict[str, Any]], kinds: tuple[str, ...]) -> list[Point]:
    """Return the points in the order of their steps; of a step that was taken again, the last."""
    apart = {"kind", "images_per_second", "images", *OF_POINTS} - {"accuracy"}
    chosen = {line["step"]: line for line in journal if line["kind"] in kinds}
    found = []
    for _, line in sorted(chosen.items()):
        own = {
            key: float(value)
            for key, value in line.items()
            if key not in apart and isinstance(value, int | float)
        }
        found.append(Point(**{key: line[key] for key in OF_POINTS if key in line}, own=own))
    return found


def _inside(model: Model, source: Source, predictions: Predictions) -> Looked | None:
    """Look inside the model, with a few test images; None where an image is a single patch."""
    config, count = model.config, len(predictions.indices)
    if not count or (isinstance(config, ViTConfig) and math.prod(config.grid) == 1):
        return None
    places = np.unique(np.linspace(0, count - 1, num=min(GLANCED, count), dtype=int))
    return look_briefly(model, source, predictions.indices[places].tolist())


def _plotted(model: Model, source: Source, predictions: Predictions) -> dict[str, Any]:
    """Return the doubtful labels and the map; nothing of few images."""
    if len(predictions.indices) < image_map.LEAST:
        return {}
    found = find_label_errors(predictions.probabilities, predictions.labels)
    doubted = {each.place for each in found.suspects[: album.DOUBTED]}
    return {
        "doubts": album.doubts(model, source, predictions, found),
        "image_map": image_map.image_map(model, source, predictions, doubted),
    }


def _unlike(predictions: Predictions) -> tuple[int, int] | None:
    """Count the images unlike the training images, and those right; None where it is not known."""
    if not len(predictions.distances) or predictions.labels.several:
        return None
    far = predictions.distances > 1
    right = predictions.probabilities.argmax(1) == predictions.labels.values
    return int(far.sum()), int((far & right).sum())


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
