"""Average precision of object detection, by COCO's rules.

Of each class, the detections of all images, surest first, are right if they overlap an object that
none before them has, by an IoU of at least a threshold; `ap50` is the area under precision and
recall at 0.5, `ap` the mean over 0.5, 0.55, … 0.95 (Lin et al., Microsoft COCO, 2014). Precision is
read at 101 recalls, as pycocotools does, at most 100 detections of an image count, and classes
without objects do not.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from vitlab.data.box_geometry import overlap
from vitlab.data.box_targets import Boxes, boxes_of
from vitlab.data.images import Images
from vitlab.data.open import open_images
from vitlab.data.open_splits import split_opened
from vitlab.data.settings import Columns
from vitlab.errors import DataError
from vitlab.evaluation.answers import Bools, Floats, Integers, finite, mean_known
from vitlab.evaluation.choosing import Split, as_held_out, as_trained, chosen
from vitlab.evaluation.compute import Compute
from vitlab.evaluation.detection import Detections, detect
from vitlab.evaluation.intervals import RESAMPLES, affordable, bootstrapped, redrawn
from vitlab.evaluation.records import EvaluationRecord, recorded
from vitlab.models.heads.detect import Detector
from vitlab.weights.detector import load_detector

THRESHOLDS = np.linspace(0.5, 0.95, 10)  # of IoU


RECALLS = np.linspace(0, 1, 101)


PAIRS = 2**20  # of detections and objects that are compared at once


class Together(NamedTuple):
    """Boxes of all images one after another.

    Attributes:
        groups: a number that those of one image and class have in common, int64 (n,)
        boxes: float64 (n, 4)
    """

    groups: Integers
    boxes: Floats


def right(found: Together, truth: Together) -> Bools:
    """Return which detections are right, of each image likeliest first.

    Each takes the object of its image and class that it overlaps most among those that are left, of
    equals the last. The first detections of all groups choose at once, then the second, and so on.

    Returns:
        (thresholds, n).
    """
    hits = np.zeros((len(THRESHOLDS), len(found.groups)), bool)
    left = np.ones((len(THRESHOLDS), len(truth.groups)), bool)
    which, objects, shares = overlapping(found, truth)
    choosing, begins = np.unique(which, return_index=True)
    counts = np.diff(begins, append=len(which))
    turns = _turns(found.groups[choosing])
    for turn in range(turns.max(initial=-1) + 1):
        own = np.flatnonzero(turns == turn)
        rows, starts = _runs(begins[own], counts[own])
        free = left[:, objects[rows]] & (shares[rows] >= THRESHOLDS[:, None])
        values = np.where(free, shares[rows], -1.0)
        most = np.maximum.reduceat(values, starts, 1)
        is_most = values == np.repeat(most, counts[own], 1)
        last = np.maximum.reduceat(np.where(is_most, np.arange(len(rows)), -1), starts, 1)
        threshold, place = np.nonzero(most >= 0)
        hits[threshold, choosing[own[place]]] = True
        left[threshold, objects[rows[last[threshold, place]]]] = False
    return hits


def overlapping(found: Together, truth: Together) -> tuple[Integers, Integers, Floats]:
    """Return detections and objects of their group that they overlap enough, and their IoU.

    Returns:
        Numbers of detections, rising, and of objects, rising for each; IoU: (pairs,) each.
    """
    order = np.argsort(truth.groups, kind="stable")
    ordered = truth.groups[order]
    first, end = (np.searchsorted(ordered, found.groups, side) for side in ("left", "right"))
    counts = end - first
    blocks = np.cumsum(counts) // PAIRS  # so that so many pairs, or few more, are in memory
    parts = [(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))]
    for some in np.split(np.arange(len(counts)), np.flatnonzero(np.diff(blocks)) + 1):
        rows, _ = _runs(first[some], counts[some])
        which = np.repeat(some, counts[some])
        objects = order[rows]
        detected = torch.from_numpy(found.boxes[which])
        shares = overlap(detected, torch.from_numpy(truth.boxes[objects]))[0].numpy()
        enough = shares >= THRESHOLDS[0]
        parts.append((which[enough], objects[enough], shares[enough]))
    which, objects, shares = (np.concatenate(each) for each in zip(*parts, strict=True))
    return which, objects, shares


def _runs(begins: Integers, counts: Integers) -> tuple[Integers, Integers]:
    """Numbers from each beginning on, so many, one run after another; where each run starts."""
    starts = np.cumsum(counts) - counts
    return np.repeat(begins - starts, counts) + np.arange(counts.sum()), starts


def _turns(groups: Integers) -> Integers:
    """How many of its group are before each, (n,)."""
    order = np.argsort(groups, kind="stable")
    _, counts = np.unique(groups, return_counts=True)
    turns = np.empty(len(groups), np.int64)
    turns[order], _ = _runs(np.zeros(len(counts), np.int64), counts)
    return turns


def average_precision(
    found: Sequence[Detections], truth: Boxes, classes: int, weights: Floats
) -> Floats:
    """Return the average precision of each class at each threshold, NaN of one without objects.

    Args:
        found: of each image
        truth: the objects of each image
        classes: how many
        weights: how often each of b resamples has each image, (b, images)

    Returns:
        (b, classes, thresholds).
    """
    table = np.full((len(weights), classes, len(THRESHOLDS)), np.nan)
    there = (truth[..., 0] >= 0) & (truth[..., 0] < classes)
    home = np.nonzero(there)[0]
    objects = truth[there].astype(np.float64)
    kinds = objects[:, 0].astype(np.int64)
    names, chances, boxes = (np.concatenate(each) for each in zip(*found, strict=True))
    image = np.repeat(np.arange(len(found)), [len(each.classes) for each in found])
    many = max(classes, 1 + names.max(initial=0))
    hits = right(
        Together(image * many + names, boxes), Together(home * many + kinds, objects[:, 1:])
    )
    order = np.lexsort((-chances, names))  # of each class likeliest first, of equals the earlier
    homes = np.split(home[np.argsort(kinds)], np.bincount(kinds, minlength=classes).cumsum())
    numbers = np.split(order, np.bincount(names, minlength=classes).cumsum())
    for name, own in enumerate(numbers[:classes]):
        every = hits[:, own]
        for row, own_weights in enumerate(weights):
            if count := own_weights[homes[name]].sum():
                table[row, name] = _areas(every, own_weights[image[own]], count)
    return table


def _areas(hits: Bools, times: Floats, count: float) -> Floats:
    """Return the area under precision and recall at each threshold, (thresholds,).

    Args:
        hits: as `right`, of all images, likeliest first
        times: how often each detection is there, (n,)
        count: objects
    """
    good = np.cumsum(hits * times, 1)
    precision = good / np.maximum(np.cumsum(times), 1)
    envelope = np.maximum.accumulate(precision[:, ::-1], 1)[:, ::-1]
    places = np.stack([np.searchsorted(own, RECALLS) for own in good / count])
    found: Floats = np.take_along_axis(np.pad(envelope, ((0, 0), (0, 1))), places, 1).mean(1)
    return found


def box_figures(
    found: Sequence[Detections],
    truth: Boxes,
    classes: Sequence[str],
    resamples: int = RESAMPLES,
) -> dict[str, Any]:
    """Return `ap50`, `ap`, 95% intervals over images and a table of the classes.

    All is given as `average_precision` takes it; there are at most so many resamples, and without
    (0) no intervals.
    With few objects a class, an envelope of precision is above that of many: of made scenes by 2
    points with 80 objects a class.
    """
    size = len(THRESHOLDS) * sum(len(each.classes) for each in found)
    once = np.ones(len(found))
    drawn = redrawn(len(found), affordable(size, resamples))
    weights = np.vstack([once, *drawn])
    table = average_precision(found, truth, len(classes), weights)
    kinds = truth[..., 0][truth[..., 0] >= 0].astype(np.int64)
    counts = np.bincount(kinds, minlength=len(classes))[: len(classes)].tolist()
    rows = [
        {"class": name, "ap50": finite(own[0]), "ap": finite(own.mean()), "objects": count}
        for name, own, count in zip(classes, table[0], counts, strict=True)
    ]
    means = {"ap50": mean_known(table[..., 0]), "ap": mean_known(table.mean(-1))}
    return bootstrapped(means, len(found), biased=True) | {
        "images": len(found),
        "objects": sum(counts),
        "classes": rows,
    }


def measure_boxes(
    detector: Detector, source: Images, compute: Compute, resamples: int = RESAMPLES
) -> tuple[dict[str, Any], list[str]]:
    """Return `box_figures` of a detector on images with boxes, and messages about damaged ones.

    Raises:
        DataError: no image can be read.
    """
    found = dict[int, Detections]()
    bad = list[str]()
    for number, each in detect(detector, source, compute):
        if isinstance(each, Detections):
            found[number] = each
        else:
            bad.append(each)
    if not found:
        raise DataError(f"no image can be used: {bad[0]}")
    truth = boxes_of(source)[[*found]]
    figures = box_figures([*found.values()], truth, detector.about.classes, resamples)
    return figures | {"damaged": len(bad)}, bad


def evaluate_boxes(
    run: str | Path, data: str, split: Split, compute: Compute, columns: Columns | None = None
) -> EvaluationRecord:
    """Measure a run's detector on images with boxes: the figures of `vitlab evaluate --json`.

    Args:
        run: of `vitlab train --task detect`
        data: as `data.boxes`
        split: as `evaluation.choosing.choose`
        compute: where, and how many processes decode
        columns: which of the images' keys are their groups, and where the images are

    Raises:
        DataError: no such split, no image that can be used, classes that the run does not know.
        WeightsError: as `load_detector`.
    """
    detector = load_detector(run)
    began = time.monotonic()
    opened = open_images(data, "boxes", classes=detector.about.classes, columns=columns)
    splits = split_opened(opened)
    splits = as_trained(detector.model, as_held_out(detector.model, splits))
    images = chosen(detector.model, splits, data, split)
    figures, bad = measure_boxes(detector, images.source, compute)
    found = figures | {"data": data} | images.about
    return recorded(detector.model, began, found, [*splits.notes, *images.notes], bad)
