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
from vitlab.data.boxes import Boxes, boxes_of, open_boxes
from vitlab.data.loading.batches import EvaluationBatches
from vitlab.data.loading.loader import choose_workers, loader
from vitlab.data.open import open_images
from vitlab.data.settings import Columns, Data
from vitlab.data.sources.source import Source
from vitlab.errors import DataError
from vitlab.evaluation.answers import Bools, Floats, Integers, finite, mean_known
from vitlab.evaluation.choosing import Split, as_held_out, as_trained, chosen
from vitlab.evaluation.compute import Compute, borrowed
from vitlab.evaluation.intervals import affordable, bootstrapped, redrawn
from vitlab.evaluation.records import EvaluationRecord, answered, recorded
from vitlab.files import staged_folder
from vitlab.objectives.detect import SURE, framed, overlap
from vitlab.progress import Meter
from vitlab.units import percent
from vitlab.weights.detector import Detector, load_detector

THRESHOLDS = np.linspace(0.5, 0.95, 10)  # of IoU
RECALLS = np.linspace(0, 1, 101)
MOST = 100  # detections of an image
BATCH = 32
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
    found, arrays = [], [each.double().cpu().numpy() for each in (chances, boxes)]
    for own, places in zip(*arrays, strict=True):
        best, order = own.max(-1), np.argsort(-own.max(-1), kind="stable")[:MOST]
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


def right(found: Floats, truth: Floats) -> Bools:
    """Return which of an image's detections of a class, likeliest first, are right.

    Each takes the object that it overlaps most among those that are left, of equals the last.

    Returns:
        (thresholds, n).
    """
    each = torch.from_numpy(found)[:, None], torch.from_numpy(truth)[None]
    shares = overlap(*each)[0].numpy()
    hits = np.zeros((len(THRESHOLDS), len(found)), bool)
    for row, threshold in enumerate(THRESHOLDS):
        left = np.ones(len(truth), bool)
        for number, own in enumerate(shares):
            free = np.where(left & (own >= threshold), own, -1.0)[::-1]
            if len(free) and free.max() >= 0:
                left[len(free) - 1 - free.argmax()], hits[row, number] = False, True
    return hits


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
    for name in range(classes):
        hits, chances, counts = list[Bools](), list[Floats](), list[int]()
        for own, objects in zip(found, truth.astype(np.float64), strict=True):
            mine, there = own.classes == name, objects[objects[:, 0] == name, 1:]
            counts.append(len(there))
            hits.append(right(own.boxes[mine], there))
            chances.append(own.chances[mine])
        order = np.argsort(-np.concatenate(chances), kind="stable")
        image = np.repeat(np.arange(len(found)), [len(own) for own in chances])[order]
        every = np.concatenate(hits, 1)[:, order]
        for row, own_weights in enumerate(weights):
            if count := own_weights @ counts:
                table[row, name] = _areas(every, own_weights[image], count)
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
    found: Sequence[Detections], truth: Boxes, classes: Sequence[str], resamples: int | None = None
) -> dict[str, Any]:
    """Return `ap50`, `ap`, 95% intervals over images and a table of the classes.

    All is given as `average_precision` takes it; without resamples (0) there are no intervals.
    With few objects a class, an envelope of precision is above that of many: of made scenes by 2
    points with 80 objects a class.
    """
    size, once = len(THRESHOLDS) * sum(len(each.classes) for each in found), np.ones(len(found))
    drawn = redrawn(len(found), affordable(size) if resamples is None else resamples)
    weights = np.vstack([once, *drawn])
    table = average_precision(found, truth, len(classes), weights)
    counts = [int((truth[..., 0] == number).sum()) for number in range(len(classes))]
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
    detector: Detector, source: Source, compute: Compute, resamples: int | None = None
) -> tuple[dict[str, Any], list[str]]:
    """Return `box_figures` of a detector on images with boxes, and messages about damaged ones.

    Raises:
        DataError: no image can be read.
    """
    found, bad = dict[int, Detections](), list[str]()
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
    detector, began = load_detector(run), time.monotonic()
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
