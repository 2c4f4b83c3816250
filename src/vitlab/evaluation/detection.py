"""Object detection: the objects of images, as boxes, classes and probabilities."""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitlab.data.augment.normalize import normalize
from vitlab.data.box_geometry import SURE, framed
from vitlab.data.images import Images
from vitlab.data.loading.batches import EvaluationBatches
from vitlab.data.loading.loader import choose_workers, loader
from vitlab.data.open import open_images
from vitlab.data.settings import Columns
from vitlab.evaluation.answers import Floats, Integers
from vitlab.evaluation.compute import Compute, borrowed
from vitlab.evaluation.records import answered
from vitlab.files import staged_folder
from vitlab.models.heads.detect import Detector
from vitlab.progress import Meter
from vitlab.weights.detector import load_detector

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
    detector: Detector, source: Images, compute: Compute
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


# Commands


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
    source = open_images(data, "none", columns=columns).every()
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
