"""Object detection: average precision by COCO's rules, and the objects of images as boxes.

Of each class, the detections of all images, surest first, are right if they overlap an object that
none before them has, by an IoU of at least a threshold; `ap50` is the area under precision and
recall at 0.5, `ap` the mean over 0.5, 0.55, … 0.95 (Lin et al., Microsoft COCO, 2014). Precision is
read at 101 recalls, as pycocotools does, at most 100 detections of an image count, and classes
without objects do not.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitlab.data.augment.augment import normalize
from vitlab.data.box_labels import Boxes
from vitlab.data.boxes import boxes_of, open_boxes
from vitlab.data.loading.batches import EvaluationBatches
from vitlab.data.loading.loader import choose_workers, loader
from vitlab.data.open import open_images
from vitlab.data.settings import Columns, Data
from vitlab.data.sources.source import Source
from vitlab.errors import DataError
from vitlab.evaluation.answers import Bools, Floats, Integers, finite, mean_known
from vitlab.evaluation.choosing import Split, as_held_out, as_trained, chosen
from vitlab.evaluation.compute import Compute, borrowed
from vitlab.evaluation.intervals import RESAMPLES, affordable, bootstrapped, redrawn
from vitlab.evaluation.records import EvaluationRecord, answered, recorded
from vitlab.files import staged_folder
from vitlab.models.heads.detect import Detector
from vitlab.objectives.detect import SURE, framed, overlap
from vitlab.progress import Meter
from vitlab.units import percent
from vitlab.weights.detector import load_detector

THRESHOLDS = np.linspace(0.5, 0.95, 10)  # of IoU
RECALLS = np.linspace(0, 1, 101)
MOST = 100  # detections of an image
BATCH = 32
PAIRS = 2**20  # of detections and objects that are compared at once
LEAST = 0.05  # probability of an object that `predict` names


class Detections(NamedTuple):
    """The objects found in an image, likeliest first.

    Attributes:
        classes: int64 (n,); chances: float64 (n,)
        boxes: left, top, right, bottom in shares of the image's sides, float64 (n, 4)
    """

    classes: Integers
    chances: Floats
    boxes: Floats


@torch.inference_mode()
def detect(
    detector: Detector, source: Source, compute: Compute
) -> Iterator[tuple[int, Detections | str]]:
    """Yield the number and the objects of each image; damaged images, with a message, come late."""
    spec = detector.model.config
    batches = EvaluationBatches(source, spec, BATCH)
    workers = 0 if len(source) <= BATCH else choose_workers(source, compute.workers)
    with borrowed(detector, compute.where):
        for batch in loader(batches, range(len(batches)), workers):
            if len(batch):
                images = normalize(batch.images.to(compute.where), spec)
                yield from zip(batch.indices.tolist(), detections(*detector(images)), strict=True)
            yield from batch.bad


def detections(chances: Tensor, boxes: Tensor) -> list[Detections]:
    """Return the objects of images by what a detector outputs."""
    found = []
    arrays = [each.double().cpu().numpy() for each in (chances, boxes)]
    for own, places in zip(*arrays, strict=True):
        best = own.max(-1)
        order = np.argsort(-own.max(-1), kind="stable")[:MOST]
        found.append(Detections(own.argmax(-1)[order], best[order], places[order]))
    return found


def objects_of(
    found: Detections, size: tuple[int, int], classes: Sequence[str]
) -> list[dict[str, Any]]:
    """Return class, probability and box of the objects that `predict` names.

    Args:
        found: in an image
        size: its rows and columns; boxes are in its pixels
        classes: the names of all
    """
    high, wide = size
    rows = zip(found.classes, found.chances, found.boxes * (wide, high, wide, high), strict=True)
    return [
        {"class": classes[own], "probability": float(chance), "box": box.tolist()}
        for own, chance, box in rows
        if chance >= LEAST
    ]


# Average precision


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


def table_of_boxes(
    classes: Sequence[dict[str, Any]],
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return a heading and a line for each class of `box_figures` that is there, worst first."""
    there = sorted((each for each in classes if each["objects"]), key=lambda each: each["ap50"])
    return ("class", "AP50", "AP", "objects"), [
        (each["class"], percent(each["ap50"]), percent(each["ap"]), f"{each['objects']:,}")
        for each in there
    ]


def measure_boxes(
    detector: Detector, source: Source, compute: Compute, resamples: int = RESAMPLES
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


# Commands


def evaluate_boxes(
    run: str | Path, data: str, split: Split, compute: Compute, columns: Columns | None = None
) -> EvaluationRecord:
    """Measure a run's detector on images with boxes: the figures of `vitlab evaluate --json`.

    Args:
        run: of `vitlab train --task detect`
        data: as `data.boxes.open_boxes`
        split: as `evaluation.choosing.choose`
        compute: where, and how many processes decode
        columns: which of the images' keys are their groups, and where the images are

    Raises:
        DataError: no such split, no image that can be used, classes that the run does not know.
        WeightsError: as `load_detector`.
    """
    detector = load_detector(run)
    began = time.monotonic()
    where = Data(**vars(columns or Columns()) | {"data": data})
    splits = open_boxes(where, detector.about.classes)
    splits = as_trained(detector.model, as_held_out(detector.model, splits))
    images = chosen(detector.model, splits, data, split)
    figures, bad = measure_boxes(detector, images.source, compute)
    found = figures | {"data": data} | images.about
    return recorded(detector.model, began, found, [*splits.notes, *images.notes], bad)


def find_objects(
    run: str | Path, data: Any, out: Path | None, compute: Compute, columns: Columns | None = None
) -> dict[str, Any]:
    """Find the objects of images; draw them into a copy of each.

    Args:
        run: of `vitlab train --task detect`
        data: images, as `vitlab.data.open.open_images`
        out: a new folder for the pictures, named like the images; None to draw none
        compute: where, and how many processes decode
        columns: the columns of a list

    Returns:
        model, images, damaged; detections: of each image its name, `objects` (class, probability,
        box: left, top, right, bottom in pixels) and `picture`, or the `error`.

    Raises:
        DataError: no such images.
        DiskError: the folder cannot be written.
    """
    detector = load_detector(run)
    source = open_images(data, "ignored", columns=columns).every()
    rows: dict[int, dict[str, Any]] = {}
    draft = staged_folder(out) if out else nullcontext()
    with draft as folder, Meter(len(source), title="detecting") as meter:
        for number, found in detect(detector, source, compute):
            if isinstance(found, str):
                rows[number] = {"error": found}
                continue
            image = source.image(number)
            objects = objects_of(found, image.shape()[:2], detector.about.classes)
            rows[number] = row = dict[str, Any](objects=objects)
            if folder is not None:
                name = f"{number:06d}-{Path(source.name(number)).stem}.png"
                sure = [each for each in objects if each["probability"] >= SURE]
                places, titles = ([each[key] for each in sure] for key in ("box", "class"))
                framed(image.decode(3), places, titles).save(folder / name)
                row["picture"] = f"{out}/{name}"
            meter.images(number + 1, len(source))
    return answered(detector.model, "detections", source, rows)
