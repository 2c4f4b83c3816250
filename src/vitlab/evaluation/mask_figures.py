"""Figures of segmentation, mIoU and boundary IoU: of counts of pixels, summed over images."""

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from vitlab.data.holdout import learned
from vitlab.data.images import Images
from vitlab.data.open import Opened, open_images
from vitlab.data.settings import Columns
from vitlab.data.sources.request import MaskReading
from vitlab.data.target import IGNORED
from vitlab.errors import DataError
from vitlab.evaluation.answers import Bools, Floats, Integers, finite, mean_known, ratio
from vitlab.evaluation.choosing import Split
from vitlab.evaluation.compute import Compute
from vitlab.evaluation.intervals import RESAMPLES, bootstrapped, redrawn
from vitlab.evaluation.records import EvaluationRecord, recorded
from vitlab.evaluation.segmentation import Bad, Segmented, segment
from vitlab.models.heads.mask_classes import Truth
from vitlab.models.heads.segment import Segmenter
from vitlab.weights.segmenter import load_segmenter

REACH = 0.02  # of an image's diagonal: how wide a boundary is (Cheng et al., 2021)


Counts = Integers
"""(images, classes, 6): right, predicted and true pixels, of whole images and of boundaries."""


def boundary(labels: Truth, reach: int) -> Bools:
    """Return which pixels are within a distance of another class, or of the image's edge.

    Those of a class are its mask less its erosion by so many steps of 3x3, as in boundary IoU.
    """
    from scipy.ndimage import maximum_filter, minimum_filter  # slow to import

    side = 2 * reach + 1
    outside = -2
    low = minimum_filter(labels, side, mode="constant", cval=outside)
    high = maximum_filter(labels, side, mode="constant", cval=outside)
    found: Bools = low != high
    return found


def counts_of(predicted: Truth, truth: Truth, classes: int) -> Integers:
    """Count the pixels of an image that are right, predicted and true, also of boundaries alone.

    Pixels that do not count are of no class in either.

    Returns:
        (classes, 6).
    """
    given = np.where(truth == IGNORED, np.int16(IGNORED), predicted)
    reach = max(1, round(REACH * math.hypot(*truth.shape)))
    near, edge = (boundary(each, reach) for each in (given, truth))
    right = given == truth
    there = truth != IGNORED
    whole = (truth, right), (given, there), (truth, there)
    edges = (truth, right & near & edge), (given, near), (truth, edge)
    counts = [np.bincount(own[at & there], minlength=classes) for own, at in (*whole, *edges)]
    return np.stack(counts, 1).astype(np.int64)


def iou(counts: Floats) -> Floats:
    """Return the intersection over union of classes, (…, classes, 3) -> (…, classes), or NaN."""
    right, predicted, true = np.moveaxis(counts, -1, 0)
    return ratio(right, predicted + true - right, np.nan)


FIGURES: dict[str, Callable[[Floats], Floats]] = {
    "miou": lambda counts: mean_known(iou(counts[..., :3])),
    "pixel_accuracy": lambda counts: ratio(counts[..., 0].sum(-1), counts[..., 2].sum(-1), np.nan),
    "boundary_iou": lambda counts: mean_known(iou(counts[..., 3:])),
}
"""Of counts (b, classes, 6): (b,). Their names and units are in `METRICS`."""


def mask_figures(
    counts: Counts, classes: Sequence[str], resamples: int = RESAMPLES
) -> dict[str, Any]:
    """Return the figures of images, 95% intervals over images, and a table of the classes.

    Resampled are images, as `evaluation.intervals` does.

    Args:
        counts: of n images
        classes: their names
        resamples: how many
    """
    images = len(counts)
    weights = np.vstack([np.ones(images), *redrawn(images, resamples)])
    total = np.tensordot(weights, counts.astype(np.float64), 1)
    values = {name: each(total) for name, each in FIGURES.items()}
    whole = iou(total[0, :, :3])
    edges = iou(total[0, :, 3:])
    table = [
        {
            "class": name,
            "iou": finite(whole[row]),
            "boundary_iou": finite(edges[row]),
            "pixels": int(total[0, row, 2]),
            "images": int((counts[:, row, 2] > 0).sum()),
        }
        for row, name in enumerate(classes)
    ]
    return bootstrapped(values, images) | {"images": images, "classes": table}


class Tested(NamedTuple):
    """A segmenter on images with masks: figures, counts and numbers of the images, and damage."""

    figures: dict[str, Any]
    counts: Counts
    indices: list[int]
    bad: list[Bad]


def measure(
    segmenter: Segmenter, source: Images, compute: Compute, resamples: int = RESAMPLES
) -> Tested:
    """Measure a segmenter on images with masks.

    Raises:
        DataError: no image can be used, or as `segment`.
    """
    classes = segmenter.about.classes
    counts = []
    indices: list[int] = []
    bad: list[Bad] = []
    for found in segment(segmenter, source, compute):
        if isinstance(found, Segmented):
            assert found.scene.truth is not None
            counts.append(counts_of(found.predicted, found.scene.truth, len(classes)))
            indices.append(found.scene.index)
        else:
            bad.append(found)
    if not counts:
        raise DataError(f"no image can be used: {bad[0][1] if bad else 'there is none'}")
    every = np.stack(counts)
    figures = mask_figures(every, classes, resamples)
    return Tested(figures | {"damaged": len(bad)}, every, indices, bad)


def evaluate_masks(
    run: str | Path, data: Any, split: Split, compute: Compute, columns: Columns | None = None
) -> EvaluationRecord:
    """Measure a run's segmenter on images with masks: the figures of `vitlab evaluate --json`.

    Args:
        run: of `vitlab probe --task segment`
        data: as `data.masks`; its masks are read by the run's classes
        split: `auto` is the test split of the data, else its validation split, without images that
            the segmenter has learned from; of unsplit data all that it has not learned from
        compute: where, and how many processes decode
        columns: the columns of a list

    Raises:
        DataError: no such split, a number in a mask that is no class, no image that can be used.
        WeightsError: as `load_segmenter`.
    """
    segmenter = load_segmenter(run)
    began = time.monotonic()
    opened = open_images(data, "mask", columns=columns, masks=MaskReading(like=segmenter.about))
    name, source = _chosen(opened, split)
    notes = [*opened.notes]
    known = learned(source, segmenter.model.seen)
    rest = np.setdiff1d(np.arange(len(source)), known)
    if len(known) and len(rest) and split in ("auto", "test"):
        source = source.take(rest)
        notes.append(f"left out {len(known):,} images that the segmenter has learned from")
        known = known[:0]
    if len(known):
        notes.append(f"the segmenter has learned from {len(known):,} of these images")
    tested = measure(segmenter, source, compute)
    found = tested.figures | {"data": opened.title, "split": name}
    found |= {"learned_from": len(known)} if len(known) else {}
    return recorded(segmenter.model, began, found, notes, [text for _, text in tested.bad])


def _chosen(opened: Opened, split: Split) -> tuple[str, Images]:
    """Return the name and the images of a split."""
    names = ["all", "test", "validation", "train"] if split == "auto" else [split]
    for name in names:
        if name in opened.parts:
            return name, opened.parts[name]
    there = ", ".join(opened.parts)
    raise DataError(f"{opened.title} has no split {split}: choose from auto, {there}")
