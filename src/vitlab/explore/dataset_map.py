"""The map of a data set: images as points, thumbnails, doubtful labels, and how it is made."""

import logging
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitlab.data.images import Images, concat
from vitlab.data.labels import SingleLabels, labels_of
from vitlab.data.open import open_images
from vitlab.data.open_splits import split_opened
from vitlab.data.sources.request import Given
from vitlab.errors import DataError, ImageError, UserError
from vitlab.evaluation.answers import sample
from vitlab.evaluation.choosing import choose
from vitlab.evaluation.compute import Compute
from vitlab.evaluation.embedding_map import Sampled, embedding_map, look_at
from vitlab.evaluation.label_errors import find_label_errors
from vitlab.evaluation.records import unicode
from vitlab.explore.gallery import as_png
from vitlab.explore.labeling import Labeling
from vitlab.models.model import Model
from vitlab.units import counted

MOST = 10_000  # images of a map
SEED = 0  # of a sample, and of the places
UNKNOWN = -1  # the class of an image without a label beside labeled ones
SUSPECTS = 200  # that are listed
SIDES = ((1_000, 64), (2_500, 48), (math.inf, 32))  # pixels of a thumbnail, by images at most
OPENED, QUALITY = 1_024, 95  # of a file that the page opens
PASS, PLACED = 0.6, 0.95  # share of the work that is done after the model, and after t-SNE

Progress = Callable[[float, str], None]


@dataclass(frozen=True, eq=False)
class DatasetMap:
    """A map, ready to be shown.

    Attributes:
        about: what the page is told. `points`, x and y of each image, from 0 to 1; its class,
            `truth`, -1 where it is unknown or there are several; `guess`, the likeliest class, -1
            where the model has no such classes, and its `confidence`; the `names` of the images and
            of the `classes`; `suspects`, the labels that are likely wrong, likeliest error first,
            each with the `index` of its point; of the `sheet` the `side` of a thumbnail in pixels
            and the `columns`; how many `images` there are `of` all that the data has; and a `note`
            in sentences, empty if there is nothing to know
        sheet: the thumbnails in raster order, a PNG
        labeling: the labels that a person gives
        images: those of the points
    """

    about: dict[str, Any]
    sheet: bytes
    labeling: Labeling
    images: Images

    def content(self, place: int) -> tuple[str, bytes]:
        """Return the name of an image and a file of it that every decoder takes.

        It is the file itself if that is a JPEG, PNG or WebP file of at most `OPENED` pixels for
        the shorter side; else a smaller JPEG, or a PNG of pixels in memory.

        Args:
            place: number of the point, from 0

        Raises:
            ImageError: the image is no longer there, damaged, or not of 1, 3 or 4 channels.
        """
        name = unicode(self.images.name(place))
        stored = self.images.image(place)
        if stored.shape()[2] not in (1, 3, 4):
            raise ImageError(f"{name} has {stored.shape()[2]} channels and cannot be shown")
        return name, stored.compact(OPENED, QUALITY)[0]


@dataclass(frozen=True)
class _LookedAt:
    """Images, whether their labels mean anything, and whether they are of the model's classes."""

    source: Images
    labeled: bool
    matched: bool
    note: str = ""


def dataset_map(
    model: Model, data: Given, *, most: int = MOST, progress: Progress = lambda share, what: None
) -> DatasetMap:
    """Make the map of a data set as a model sees it.

    Each image goes through the model once. Data whose classes are not the model's, or that has no
    labels, has a map too: without guesses, and the note says why.

    Args:
        model: any; its device and mode are the same afterwards
        data: as for training, or images without labels: a folder, a file, a glob pattern
        most: images, chosen at random if there are more
        progress: called with the share of the work that is done, from 0 to 1, and what is being
            done; what it raises ends the work

    Raises:
        DataError: no such data, no image that can be decoded, or a model whose answers are not
            numbers.
    """
    opened = _looked_at(model, data)
    source, chosen = opened.source, sample(len(opened.source), most, SEED)
    side = next(side for limit, side in SIDES if len(chosen) <= limit)
    what = f"looking at {len(chosen):,} images"
    progress(0.0, what)
    seen = look_at(
        model,
        source,
        chosen,
        side,
        Compute(next(model.parameters()).device, workers=0),
        lambda done, total: progress(PASS * done / max(total, 1), what),
    )
    if not len(seen.indices):
        raise DataError(next(iter(seen.bad.values()), "there are no images"))
    progress(PASS, f"arranging {len(seen.indices):,} images by what the model sees in them")
    points = embedding_map(seen.features, SEED)
    progress(PLACED, "drawing the thumbnails")
    return _made(opened, seen, points, _note(opened, seen, len(chosen)))


def _made(opened: _LookedAt, seen: Sampled, points: NDArray[np.float32], note: str) -> DatasetMap:
    """Put together what the page is told."""
    images = opened.source.take(seen.indices)
    classes = opened.source.classes
    labels = labels_of(images.target)
    count = len(images)
    chances = seen.probabilities
    single = isinstance(labels, SingleLabels) and opened.labeled
    suspects = []
    nothing = np.full(count, UNKNOWN)
    truth = labels.values if isinstance(labels, SingleLabels) and single else nothing
    if single and opened.matched:
        known = np.flatnonzero(truth != UNKNOWN)
        suspects = [
            {
                "index": int(known[each.place]),
                "truth": each.given[0],
                "better": each.better[0],
                "score": round(each.own, 4),
            }
            for each in find_label_errors(chances[known], labels.take(known)).suspects[:SUSPECTS]
        ]
    guessed = opened.matched and chances.shape[1] > 0
    sheet, columns = sheet_of(seen.thumbnails)
    names = [images.name(place) for place in range(count)]
    about = {
        "points": points.astype(np.float64).round(4).tolist(),
        "truth": truth.tolist(),
        "guess": (chances.argmax(1) if guessed else nothing).tolist(),
        "confidence": (chances.max(1) if guessed else np.zeros(count)).round(4).tolist(),
        "names": [unicode(name) for name in names],
        "classes": [unicode(name) for name in classes],
        "suspects": suspects,
        "sheet": {"side": seen.thumbnails.shape[1], "columns": columns},
        "images": count,
        "of": len(opened.source),
        "note": note,
    }
    labeling = Labeling(seen.features, names, truth, classes if single else ())
    return DatasetMap(about, as_png(sheet), labeling, images)


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


def _looked_at(model: Model, data: Given) -> _LookedAt:
    """Open labeled images of the model's classes; else all images, with or without labels."""
    reason = f"{model.config.name} has no classifier"
    opened = open_images(data, "optional")
    if model.config.classes and not opened.lacks:
        try:
            source = choose(model, data, "auto").source
            if opened.loose is not None and isinstance(source.target, SingleLabels):
                unknown = SingleLabels(np.full(len(opened.loose), UNKNOWN))
                source = concat((source, opened.loose.with_target(unknown, source.classes)))
            return _LookedAt(source, labeled=True, matched=True)
        except DataError as error:
            reason = str(error)
    if opened.lacks or opened.loose is not None:
        matched = model.config.classes > 0
        note = "the images have no labels"
        return _LookedAt(opened.every().without_labels(), labeled=False, matched=matched, note=note)
    source = opened.every() if opened.unsplit else split_opened(opened).test
    return _LookedAt(source, labeled=True, matched=False, note=f"no predictions: {reason}")


def _note(opened: _LookedAt, seen: Sampled, chosen: int) -> str:
    """Return what the reader must know, in sentences."""
    notes = []
    if chosen < len(opened.source):
        notes.append(f"{chosen:,} of {len(opened.source):,} images, chosen at random (seed {SEED})")
    if seen.bad:
        damaged = counted(len(seen.bad), "damaged image")
        reason = next(iter(seen.bad.values()))
        notes.append(f"{damaged} {'is' if len(seen.bad) == 1 else 'are'} left out ({reason})")
    if opened.note:
        notes.append(opened.note)
    if opened.labeled and opened.source.target.several:
        notes.append("the images have several labels each, so that no color stands for a class")
    return " ".join(f"{each[:1].upper()}{each[1:]}." for each in notes)


class MapJob(threading.Thread):
    """A thread of its own that makes one map, while the page shows how far it is.

    Args:
        make: makes it, and calls its argument with the share of the work that is done and what is
            being done; it must share no modules with what else computes at the same time
        say: tells a person that there will be no map
    """

    def __init__(
        self, make: Callable[[Progress], DatasetMap], say: Callable[[str], None] = lambda text: None
    ) -> None:
        super().__init__(name="vitlab-map", daemon=True)
        self._make = make
        self._say = say
        self._state: tuple[DatasetMap | None, float, str] = (None, 0.0, "beginning")
        self._error, self._given_up = "", False

    def stop(self) -> None:
        """Give up at the next step."""
        self._given_up = True

    def state(self) -> tuple[DatasetMap | None, float, str]:
        """Return the map if it is made, the share of the work done, and what is being done.

        Raises:
            DataError: there will be no map.
        """
        if self._error:
            raise DataError(self._error)
        return self._state

    def run(self) -> None:
        """Make the map."""
        try:
            made = self._make(self._progress)
            self._state = (made, 1.0, "")
        except _StoppedError:
            pass
        except UserError as error:
            self._error = str(error)
            self._say(f"no map: {error}")
        except Exception as error:  # a bug: the page goes on without a map
            self._error = f"the map cannot be made ({type(error).__name__})"
            logging.getLogger("vitlab").exception("no map")

    def _progress(self, share: float, what: str) -> None:
        if self._given_up:
            raise _StoppedError
        self._state = (None, share, what)


class _StoppedError(Exception):
    """The explorer ends."""
