"""Segmentation by a run: its figures on images with masks, and masks written for any images."""

import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vitlab.data.holdout import learned
from vitlab.data.masks import MaskClasses, MaskedImages, MaskSplits, Truth, open_masks
from vitlab.data.open import open_images
from vitlab.data.settings import Columns
from vitlab.errors import DataError
from vitlab.evaluation.choosing import Split
from vitlab.evaluation.compute import Compute
from vitlab.evaluation.records import EvaluationRecord
from vitlab.evaluation.segmentation import Segmented, check_spec, measure, segment
from vitlab.files import staged_folder
from vitlab.models.cost import cost
from vitlab.progress import Meter
from vitlab.weights.segmenter import load_segmenter

DEEP = 256  # numbers from which a mask has 16 bits, and no palette


def evaluate_masks(
    run: str | Path, data: Any, split: Split, compute: Compute, columns: Columns | None = None
) -> EvaluationRecord:
    """Measure a run's segmenter on images with masks: the figures of `vitlab evaluate --json`.

    Args:
        run: of `vitlab probe --task segment`
        data: as `data.masks.open_masks`; its masks are read by the run's classes
        split: `auto` is the test split of the data, else its validation split, without images that
            the segmenter has learned from; of unsplit data all that it has not learned from
        compute: where, and how many processes decode
        columns: which columns of a list hold what

    Raises:
        DataError: no such split, a number in a mask that is no class, no image that can be used.
        WeightsError: as `load_segmenter`.
    """
    segmenter, began = load_segmenter(run), time.monotonic()
    opened = open_masks(data, columns=columns, like=segmenter.about)
    name, source = _chosen(opened, split)
    notes, known = [*opened.notes], learned(source.whole, segmenter.model.seen)
    rest = np.setdiff1d(np.arange(len(source)), known)
    if len(known) and len(rest) and split in ("auto", "test"):
        source = source.take(rest)
        notes.append(f"left out {len(known):,} images that the segmenter has learned from")
        known = known[:0]
    if len(known):
        notes.append(f"the segmenter has learned from {len(known):,} of these images")
    tested = measure(segmenter, source, compute)
    price = cost(segmenter.model)
    return EvaluationRecord(
        tested.figures
        | {"data": opened.title, "split": name, "model": segmenter.model.config.name}
        | {"params": price.params, "macs": price.macs, "seconds": time.monotonic() - began}
        | {"notes": [*notes, *(f"skipped: {text}" for _, text in tested.bad)]}
        | ({"learned_from": len(known)} if len(known) else {})
    )


def _chosen(opened: MaskSplits, split: Split) -> tuple[str, MaskedImages]:
    """Return the name and the images of a split."""
    names = ["all", "test", "validation", "train"] if split == "auto" else [split]
    for name in names:
        if name in opened.parts:
            return name, opened.parts[name]
    there = ", ".join(opened.parts)
    raise DataError(f"{opened.title} has no split {split}: choose from auto, {there}")


def write_masks(
    run: str | Path,
    data: Any,
    out: Path | None,
    compute: Compute,
    columns: Columns | None = None,
) -> dict[str, Any]:
    """Segment images; write a mask for each, a PNG of the numbers that the training masks have.

    Args:
        run: of `vitlab probe --task segment`
        data: images, as `vitlab.data.open.open_images`
        out: a new folder for the masks, named like the images; None to write none
        compute: where, and how many processes decode
        columns: which columns of a list hold what

    Returns:
        model, images, damaged; masks: of each image its name, `mask` (the file) and the share of
        each class there is, or the `error`.

    Raises:
        DataError: no such images.
        DiskError: the folder cannot be written.
    """
    segmenter = load_segmenter(run)
    check_spec(segmenter.model.config.images)
    source = open_images(data, "ignored", columns=columns).every()
    names = [Path(source.name(number)).stem for number in range(len(source))]
    if len(set(names)) < len(names):  # of images in several folders
        names = [f"{number:06d}-{name}" for number, name in enumerate(names)]
    rows: list[dict[str, Any]] = []
    draft = staged_folder(out) if out else nullcontext()
    with draft as folder, Meter(len(source), title="segmenting") as meter:
        for number, found in enumerate(segment(segmenter, source, compute)):
            row: dict[str, Any] = {"image": source.name(number)}
            if not isinstance(found, Segmented):
                row["error"] = found[1]
            else:
                if folder is not None:
                    row["mask"] = f"{out}/{names[number]}.png"
                    mask_image(found.predicted, segmenter.about).save(
                        folder / f"{names[number]}.png"
                    )
                row["shares"] = shares(found.predicted, segmenter.about)
            rows.append(row)
            meter.images(number + 1, len(source))
    damaged = sum("error" in row for row in rows)
    about = {"model": segmenter.model.config.name, "images": len(rows) - damaged}
    return about | {"damaged": damaged, "masks": rows}


def shares(predicted: Truth, known: MaskClasses) -> dict[str, float]:
    """Return the share of the pixels that each class has, the largest first."""
    classes = known.classes
    counts = np.bincount(predicted.ravel(), minlength=len(classes)) / predicted.size
    return {classes[n]: float(counts[n]) for n in np.argsort(-counts, kind="stable") if counts[n]}


def mask_image(labels: Truth, known: MaskClasses) -> Image.Image:
    """Return classes (rows, columns) as an image of the numbers that masks have.

    Of numbers below 256 it has VOC's palette, so that a viewer shows the classes apart.
    """
    numbers = np.array(known.values, np.uint16)[labels]
    if max(known.values) >= DEEP:
        return Image.fromarray(numbers)
    made = Image.fromarray(numbers.astype(np.uint8))
    made.putpalette(voc_palette().ravel().tolist())
    return made


def voc_palette() -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return VOC's colors of 256 numbers, (256, 3): each bit of a color is one of the number."""
    numbers, colors = np.arange(DEEP), np.zeros((DEEP, 3), np.uint8)
    for bit in range(8):
        for channel in range(3):
            colors[:, channel] |= ((numbers >> (3 * bit + channel) & 1) << (7 - bit)).astype(
                np.uint8
            )
    return colors
