"""The map of a data set: its images as points, with thumbnails and the labels that are in doubt."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vitlab.data.labels import SingleLabels
from vitlab.data.open import open_images, stripped
from vitlab.data.sources.request import Given
from vitlab.data.sources.source import Joined, Relabeled, Source
from vitlab.errors import DataError, ImageError
from vitlab.evaluation.choosing import Split, choose
from vitlab.evaluation.compute import Compute
from vitlab.evaluation.embedding_map import Sampled, embedding_map, look_at, sample
from vitlab.evaluation.label_errors import Suspect, find_label_errors
from vitlab.evaluation.rows import unicode
from vitlab.explore.gallery import as_png
from vitlab.explore.labeling import Labeling
from vitlab.models.model import Model

MOST = 10_000  # images of a map
UNKNOWN = -1  # the class of an image without a label beside labeled ones
SUSPECTS = 200  # that are listed
SIDES = ((1_000, 64), (2_500, 48), (MOST, 32))  # pixels of a thumbnail, by images at most
OPENED, QUALITY = 1_024, 95  # of a file that the page opens
PASS, PLACED = 0.6, 0.95  # share of the work that is done after the model, and after t-SNE

Progress = Callable[[float, str], None]


@dataclass(frozen=True, eq=False)
class DatasetMap:
    """A map, ready to be shown.

    Attributes:
        points: float32 (n, 2), x and y from 0 to 1
        truth: int64 (n,), the class of each image; -1 where it is unknown or there are several
        guess: int64 (n,), the likeliest class; -1 where the model has no such classes
        confidence: float64 (n,), its probability
        names: what the source calls each image
        classes: names of the classes
        suspects: the labels that are likely wrong, likeliest error first; `place` is the point
        sheet: the thumbnails in raster order, a PNG
        side: pixels of a thumbnail
        columns: thumbnails in a row of the sheet
        of: images that the data has
        note: what the reader must know, in sentences; empty if there is nothing
        labeling: the labels that a person gives
    """

    points: NDArray[np.float32]
    truth: NDArray[np.int64]
    guess: NDArray[np.int64]
    confidence: NDArray[np.float64]
    names: tuple[str, ...]
    classes: tuple[str, ...]
    suspects: tuple[Suspect, ...]
    sheet: bytes = field(repr=False)
    side: int
    columns: int
    of: int
    note: str
    labeling: Labeling = field(repr=False)
    _source: Source = field(repr=False)
    _indices: NDArray[np.int64] = field(repr=False)

    def as_dict(self) -> dict[str, Any]:
        """Return the map as JSON holds it."""
        return {
            "points": self.points.astype(np.float64).round(4).tolist(),
            "truth": self.truth.tolist(),
            "guess": self.guess.tolist(),
            "confidence": self.confidence.round(4).tolist(),
            "names": [unicode(name) for name in self.names],
            "classes": [unicode(name) for name in self.classes],
            "suspects": [
                {
                    "index": each.place,
                    "truth": each.given[0],
                    "better": each.better[0],
                    "score": round(each.own, 4),
                }
                for each in self.suspects
            ],
            "sheet": {"side": self.side, "columns": self.columns},
            "images": len(self.points),
            "of": self.of,
            "note": self.note,
        }

    def content(self, place: int) -> tuple[str, bytes]:
        """Return the name of an image and a file of it that every decoder takes.

        It is the file itself if that is a JPEG, PNG or WebP file of at most `OPENED` pixels for
        the shorter side; else a smaller JPEG, or a PNG of pixels in memory.

        Args:
            place: number of the point, from 0

        Raises:
            ImageError: the image is no longer there, damaged, or not of 1, 3 or 4 channels.
        """
        name, stored = unicode(self.names[place]), self._source.image(int(self._indices[place]))
        if stored.shape()[2] not in (1, 3, 4):
            raise ImageError(f"{name} has {stored.shape()[2]} channels and cannot be shown")
        return name, stored.compact(OPENED, QUALITY)[0]


@dataclass(frozen=True)
class _LookedAt:
    """Images, whether their labels mean anything, and whether they are of the model's classes."""

    source: Source
    labeled: bool
    matched: bool
    note: str = ""


def dataset_map(
    model: Model,
    data: Given,
    *,
    split: Split = "auto",
    most: int = MOST,
    seed: int = 0,
    device: torch.device | None = None,
    workers: int | None = 0,
    progress: Progress = lambda share, what: None,
) -> DatasetMap:
    """Make the map of a data set as a model sees it.

    Each image goes through the model once. Data whose classes are not the model's, or that has no
    labels, has a map too: without guesses, and the note says why.

    Args:
        model: any; its device and mode are the same afterwards
        data: as for training, or images without labels: a folder, a file, a glob pattern
        split: `auto`: the test split if there is one
        most: images, chosen at random if there are more
        seed: of that choice, and of the places
        device: where to compute; None for where the model is
        workers: processes that decode; None to choose
        progress: called with the share of the work that is done, from 0 to 1, and what is being
            done; what it raises ends the work

    Raises:
        DataError: no such data, no image that can be decoded, or a model whose answers are not
            numbers.
    """
    opened = _looked_at(model, data, split)
    source, chosen = opened.source, sample(len(opened.source), most, seed)
    side = next((side for limit, side in SIDES if len(chosen) <= limit), SIDES[-1][1])
    what = f"looking at {len(chosen):,} images"
    progress(0.0, what)
    seen = look_at(
        model,
        source,
        chosen,
        side,
        Compute(device or next(model.parameters()).device, workers=workers),
        lambda done, total: progress(PASS * done / max(total, 1), what),
    )
    if not len(seen.indices):
        raise DataError(next(iter(seen.bad.values()), "there are no images"))
    progress(PASS, f"arranging {len(seen.indices):,} images by what the model sees in them")
    points = embedding_map(seen.features, seed)
    progress(PLACED, "drawing the thumbnails")
    return _made(opened, seen, points, _note(opened, seen, len(chosen), seed))


def _made(opened: _LookedAt, seen: Sampled, points: NDArray[np.float32], note: str) -> DatasetMap:
    """Put together what the page is told."""
    source, count = opened.source, len(seen.indices)
    labels, nothing = source.labels.take(seen.indices), np.full(count, -1)
    single = isinstance(labels, SingleLabels) and opened.labeled
    suspects: tuple[Suspect, ...] = ()
    if single and opened.matched:
        known = np.flatnonzero(labels.values != UNKNOWN)
        errors = find_label_errors(seen.probabilities[known], labels.take(known)).suspects
        places = known.tolist()
        suspects = tuple(replace(each, place=places[each.place]) for each in errors[:SUSPECTS])
    guessed = opened.matched and seen.probabilities.shape[1] > 0
    sheet, columns = sheet_of(seen.thumbnails)
    truth = labels.values if isinstance(labels, SingleLabels) and single else nothing
    names = tuple(source.name(index) for index in seen.indices.tolist())
    return DatasetMap(
        points,
        truth,
        seen.probabilities.argmax(1) if guessed else nothing,
        seen.probabilities.max(1) if guessed else np.zeros(count),
        names,
        source.classes,
        suspects,
        as_png(sheet),
        seen.thumbnails.shape[1],
        columns,
        len(source),
        note,
        Labeling(seen.features, names, truth, source.classes if single else ()),
        source,
        seen.indices,
    )


def sheet_of(thumbnails: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], int]:
    """Return thumbnails in raster order in one nearly square picture, and how many are in a row.

    Args:
        thumbnails: uint8 (n, side, side, 3)
    """
    count, side = thumbnails.shape[:2]
    columns = max(1, math.ceil(math.sqrt(count)))
    rows = max(1, -(-count // columns))
    grid = np.zeros((rows * columns, side, side, 3), np.uint8)
    grid[:count] = thumbnails
    table = grid.reshape(rows, columns, side, side, 3).swapaxes(1, 2)
    return table.reshape(rows * side, columns * side, 3), columns


def _looked_at(model: Model, data: Given, split: Split) -> _LookedAt:
    """Open labeled images of the model's classes; else all images, with or without labels."""
    reason = f"{model.config.name} has no classifier"
    opened = open_images(data, "optional")
    if model.config.classes and not opened.lacks:
        try:
            source = choose(model, data, split).source
            if opened.loose is not None and isinstance(source.labels, SingleLabels):
                unknown = SingleLabels(np.full(len(opened.loose), UNKNOWN))
                source = Joined((source, Relabeled(opened.loose, unknown, source.classes)))
            return _LookedAt(source, labeled=True, matched=True)
        except DataError as error:
            reason = str(error)
    if opened.lacks or opened.loose is not None:
        matched, note = model.config.classes > 0, "the images have no labels"
        return _LookedAt(stripped(opened.every()), labeled=False, matched=matched, note=note)
    source = opened.every() if split == "auto" and opened.unsplit else opened.splits().test
    return _LookedAt(source, labeled=True, matched=False, note=f"no predictions: {reason}")


def _note(opened: _LookedAt, seen: Sampled, chosen: int, seed: int) -> str:
    """Return what the reader must know, in sentences."""
    notes = []
    if chosen < len(opened.source):
        notes.append(f"{chosen:,} of {len(opened.source):,} images, chosen at random (seed {seed})")
    if seen.bad:
        count, damaged = len(seen.bad), next(iter(seen.bad.values()))
        left = "damaged image is left out" if count == 1 else "damaged images are left out"
        notes.append(f"{count:,} {left} ({damaged})")
    if opened.note:
        notes.append(opened.note)
    if opened.labeled and opened.source.labels.several:
        notes.append("the images have several labels each, so that no color stands for a class")
    return " ".join(f"{each[:1].upper()}{each[1:]}." for each in notes)
