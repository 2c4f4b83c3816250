"""What the data of a run looks like: how many images of each class, some of them, their sizes."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from vitlab.data.holdout import with_train_images, without
from vitlab.data.labels import MultiLabels, SingleLabels
from vitlab.data.sources.request import Splits
from vitlab.data.sources.source import Source
from vitlab.errors import UserError
from vitlab.evaluation.examined import reopened
from vitlab.report.album import in_colors
from vitlab.report.facts import Picture, Sizes, Survey
from vitlab.runs.run_folder import RunFolder

SAMPLES = 60  # pictures of training images, at most
OF_A_CLASS = 6
SIDE = 72  # pixels of the longer side of one
MEASURED = 60  # images whose size is read


def survey(splits: Splits, channels: int) -> Survey:
    """Look at the data of a run.

    Args:
        splits: as the run used them
        channels: that the model sees
    """
    count, source = len(splits.classes), splits.train
    each = min(OF_A_CLASS, max(1, SAMPLES // max(count, 1)))
    chosen = np.unique(np.linspace(0, count - 1, num=min(count, SAMPLES), dtype=int))
    return Survey(
        {name: part.labels.counts(count) for name, part in splits.parts.items()},
        {name: len(part) for name, part in splits.parts.items()},
        {number: _samples(source, number, each, channels) for number in chosen.tolist()},
        _sizes(source),
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


def _samples(source: Source, number: int, count: int, channels: int) -> list[Picture]:
    """Return a few images of one class, spread over all of them; damaged ones are left out."""
    own = _of_class(source, number)
    places = own[np.unique(np.linspace(0, len(own) - 1, num=min(count, len(own)), dtype=int))]
    found = (_picture(source, int(place), channels) for place in places)
    return [each for each in found if each is not None]


def _of_class(source: Source, number: int) -> NDArray[np.int64]:
    match source.labels:
        case SingleLabels(values):
            return np.flatnonzero(values == number)
        case MultiLabels(table):
            return np.flatnonzero(table[:, number])


def _picture(source: Source, index: int, channels: int) -> Picture | None:
    """Return the middle square of an image, of a little more than `SIDE` pixels."""
    try:
        pixels, box = source.image(index).decode_box(channels, _square, (SIDE, SIDE))
    except UserError:
        return None
    left, top, right, bottom = (round(edge) for edge in box)
    return in_colors(pixels[top:bottom, left:right], source.name(index))


def _square(rows: int, columns: int) -> tuple[float, float, float, float]:
    side = min(rows, columns)
    left, top = (columns - side) // 2, (rows - side) // 2
    return left, top, left + side, top + side


def _sizes(source: Source) -> Sizes | None:
    """Return the sizes of some training images; None if none can be read."""
    found = []
    for index in np.unique(np.linspace(0, len(source) - 1, num=MEASURED, dtype=int)).tolist():
        try:
            found.append(source.image(index).shape()[:2])
        except UserError:  # damaged, or no longer there: what is damaged is reported elsewhere
            continue
    if not found:
        return None
    found.sort(key=lambda size: size[0] * size[1])
    return Sizes(len(found), found[0], found[len(found) // 2], found[-1])
