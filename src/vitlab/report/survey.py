"""Survey of a run's data: how many images of each class, and some of them."""

from dataclasses import replace

import numpy as np

from vitlab.data.holdout import with_train_images, without
from vitlab.data.sources.request import Splits
from vitlab.data.sources.source import Source
from vitlab.errors import UserError
from vitlab.evaluation.run_predictions import reopened
from vitlab.report.facts import Survey
from vitlab.report.thumbnails import Pixels, in_colors
from vitlab.runs.run_folder import RunFolder

SAMPLES = 60  # pictures of training images, at most
OF_A_CLASS = 6
SIDE = 72  # pixels of the longer side of one


def survey(splits: Splits, channels: int) -> Survey:
    """Look at the data of a run.

    Args:
        splits: as the run used them
        channels: that the model sees
    """
    count, source = len(splits.classes), splits.train
    each = min(OF_A_CLASS, max(1, SAMPLES // max(count, 1)))
    values, samples = source.labels.values, {}
    for number in _spread(count, SAMPLES):
        own = np.flatnonzero(values[:, number] if values.ndim == 2 else values == number)
        found = (_picture(source, int(own[n]), channels) for n in _spread(len(own), each))
        samples[number] = [one for one in found if one is not None]
    return Survey(
        {name: part.labels.counts(count) for name, part in splits.parts.items()},
        {name: len(part) for name, part in splits.parts.items()},
        samples,
    )


def surveyed(folder: RunFolder, channels: int) -> Survey | None:
    """Look at the data of a finished run; None if it is no longer there, or has changed."""
    try:
        splits, left_out = reopened(folder), folder.duplicates or {}
    except UserError:
        return None
    options = folder.recipe.data
    if not options.dev_share:  # else `partitioned` has chosen them
        splits = with_train_images(splits, options.train_images)
    if left_out.get("dropped"):
        splits = replace(splits, train=without(splits.train, left_out["train"]))
    return survey(splits, channels)


def _spread(count: int, most: int) -> list[int]:
    """Return at most so many of the numbers from 0, evenly spread."""
    return np.unique(np.linspace(0, count - 1, num=min(count, most), dtype=int)).tolist()


def _picture(source: Source, index: int, channels: int) -> Pixels | None:
    """Return the middle square of an image, of a little more than `SIDE` pixels."""
    try:
        pixels, box = source.image(index).decode_box(channels, _square, (SIDE, SIDE))
    except UserError:
        return None
    left, top, right, bottom = (round(edge) for edge in box)
    return in_colors(pixels[top:bottom, left:right])


def _square(rows: int, columns: int) -> tuple[float, float, float, float]:
    side = min(rows, columns)
    left, top = (columns - side) // 2, (rows - side) // 2
    return left, top, left + side, top + side
