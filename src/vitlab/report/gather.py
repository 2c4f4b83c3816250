"""Gather what a report shows of a trained model, from its predictions, and write the report."""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from vitlab.data.holdout import with_train_images
from vitlab.data.images import Images
from vitlab.data.loading.crops import fitted_image
from vitlab.data.splits import Splits
from vitlab.errors import ImageError, UserError
from vitlab.evaluation.evaluation import Evaluation
from vitlab.evaluation.infer import Probabilities
from vitlab.evaluation.label_errors import find_label_errors
from vitlab.evaluation.metrics import METRICS
from vitlab.evaluation.per_class import class_figures, confused_pairs, confusion, decisions
from vitlab.evaluation.reliability import bins
from vitlab.evaluation.run_predictions import reopened
from vitlab.models.config import ViTConfig
from vitlab.models.model import Model
from vitlab.report.facts import Doubts, Judged, Survey, facts_of
from vitlab.report.inside.looking import Looked, look
from vitlab.report.page import write_page
from vitlab.report.run_page import run_page
from vitlab.report.thumbnails import Pixels, in_colors
from vitlab.runs.run_folder import RunFolder

MISTAKES, TOGETHER = 60, 6  # pictures of mistakes, at most, and of one confusion
LEAST, DOUBTED = 100, 24  # images that label errors need, and doubtful labels with pictures
GLANCED = 8  # test images with which a model is looked into
CHANGED = ("intervals", "calibration", "thresholds", "classes")


def write_report(
    folder: RunFolder,
    model: Model,
    source: Images,
    predictions: Probabilities,
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
    facts = replace(
        facts_of(folder, figures, model, notes),
        classes=source.classes,
        confusion=confusion(*results),
        reliability=[] if several else bins(results[0], results[1].values),
        mistakes=mistakes(model, source, predictions),
        unlike=_unlike(predictions),
        per_class=class_figures(*results, source.classes, above),
        predicted=decisions(*results, above)[1].tolist(),
        confused=confused_pairs(*results, source.classes),
        survey=survey,
        inside=_inside(model, source, predictions),
        doubts=doubts(model, source, predictions),
    )
    return write_page(folder.report, run_page(facts))


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
    return write_report(
        folder, model, evaluation.source, results, figures, notes, _surveyed(folder)
    )


def survey(splits: Splits) -> Survey:
    """Count the images of a run's data."""
    count = len(splits.classes)
    return Survey(
        {name: part.target.counts(count) for name, part in splits.parts.items()},
        {name: len(part) for name, part in splits.parts.items()},
    )


def _surveyed(folder: RunFolder) -> Survey | None:
    """Count the images of a finished run; None if its data is no longer there, or has changed."""
    try:
        splits, left_out = reopened(folder), folder.duplicates or {}
    except UserError:
        return None
    options = folder.recipe.data
    if not options.dev_share:  # else `take_partition` has chosen them
        splits = with_train_images(splits, options.train_images)
    if left_out.get("dropped"):
        splits = replace(splits, train=splits.train.without(left_out["train"]))
    return survey(splits)


def mistakes(model: Model, source: Images, predictions: Probabilities) -> list[Judged]:
    """Return mistakes with pictures; none where images have several labels.

    First the most confident mistake of each confusion, then a second one of each, and so on.
    """
    labels, chances = predictions.labels.values, predictions.probabilities
    if predictions.labels.several:
        return []
    guesses = chances.argmax(1)
    wrong = np.flatnonzero(guesses != labels)
    order = wrong[np.argsort(-chances[wrong].max(1), kind="stable")].tolist()
    before, rank = Counter[tuple[int, int]](), dict[int, int]()  # among those of its confusion
    for place in order:
        pair = int(labels[place]), int(guesses[place])
        rank[place] = before[pair]
        before[pair] += 1
    few = (place for place in sorted(order, key=rank.__getitem__) if rank[place] < TOGETHER)

    def judged(place: int) -> Judged:
        true, guess, index = labels[place], guesses[place], int(predictions.indices[place])
        return Judged(
            source.name(index),
            source.classes[true],
            source.classes[guess],
            float(chances[place, guess]),
            float(chances[place, true]),
            _picture(source, index, model),
            pair=(int(true), int(guess)),
            unlike=bool((predictions.distances[place : place + 1] > 1).any()),
        )

    return [judged(place) for place in islice(few, MISTAKES)]


def doubts(model: Model, source: Images, predictions: Probabilities) -> Doubts | None:
    """Return the labels that are likely wrong, with pictures of the likeliest; None of few images.

    Confident learning needs some images of each class.
    """
    if len(predictions.indices) < LEAST:
        return None
    chances, several = predictions.probabilities, predictions.labels.several
    found, shown = find_label_errors(chances, predictions.labels), []
    for each in found.suspects[:DOUBTED]:
        index = int(predictions.indices[each.place])
        other = None if several else float(chances[each.place, each.better[0]])
        given, better = _names(source, each.given), _names(source, each.better)
        picture = _picture(source, index, model)
        shown.append(Judged(source.name(index), given, better, other, each.own, picture))
    return Doubts(shown, len(found.suspects), found.estimated, found.images)


def _picture(source: Images, index: int, model: Model) -> Pixels | None:
    """Return an image as the model sees it, in colors; None if it can no longer be read."""
    try:
        return in_colors(fitted_image(source.image(index), model.config))
    except ImageError:
        return None


def _inside(model: Model, source: Images, predictions: Probabilities) -> Looked | None:
    """Look inside the model, with a few test images; None where an image is a single patch."""
    config, count = model.config, len(predictions.indices)
    if not count or (isinstance(config, ViTConfig) and math.prod(config.grid) == 1):
        return None
    places = np.unique(np.linspace(0, count - 1, num=min(GLANCED, count), dtype=int))
    places = np.concatenate([places[::2], places[1::2]])  # the first ones are shown
    device, few = next(model.parameters()).device, source.take(predictions.indices[places])
    found = look(model, few, device, glance=True)
    found.images = [
        replace(each, label=_names(source, predictions.labels.classes_of(int(place))))
        for each, place in zip(found.images, places, strict=False)
    ]
    return found


def _names(source: Images, classes: Iterable[int]) -> str:
    return ", ".join(source.classes[number] for number in classes) or "none"


def _unlike(predictions: Probabilities) -> tuple[int, int] | None:
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
