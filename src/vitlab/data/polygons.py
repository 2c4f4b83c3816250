"""Masks as COCO's polygons and run lengths: objects of a class, drawn when a mask is read.

Later objects lie over earlier ones. The pixels of a crowd (`iscrowd`) do not count where no object
lies over them; those of no object are the class `background`, number 0. The others have the numbers
1, 2, … in the order of the file's categories. Shapes are drawn by pycocotools, as COCO does, in the
frame that the annotations are in (`data.frames`), and turned with the image.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitlab.data.annotated_images import place_images
from vitlab.data.annotations import (
    Annotations,
    annotations_in,
    check_counts,
    check_there,
    list_classes,
    number_classes,
    read_annotations,
    remark,
)
from vitlab.data.decode.headers import MAX_PIXELS
from vitlab.data.frames import Placed
from vitlab.data.settings import Columns
from vitlab.packages import check_installed

BACKGROUND = "background"
CROWD = 2**16 - 1
FAR = 1.5  # sides of the image from its center that a polygon may reach; more is slow, and wrong
MOST_POINTS = 100_000  # of an object
LONGEST = 2**22  # pixels along the outlines of an object
MOST_DRAWN = 2**32  # pixels of an image, times its objects
MOST_TEXT = 2**24  # characters of run lengths
LISTED = 4  # names for a line, one more than it shows


@dataclass(frozen=True, eq=False)
class DrawnMask:
    """The mask of an image, drawn where NumPy asks for its numbers.

    Attributes:
        size: rows and columns
        objects: number, and polygons or (n,) run lengths; the first is the lowest
    """

    size: tuple[int, int]
    objects: tuple[tuple[int, "Shape"], ...]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[np.uint16]:
        """Return the number of each pixel."""
        from pycocotools import mask as drawing  # of the extra `coco`

        found = np.zeros(self.size, np.uint16)
        for number, shape in self.objects:
            if isinstance(shape, list):
                outlines = [own.ravel().tolist() for own in shape]
                inside = drawing.decode(drawing.merge(drawing.frPyObjects(outlines, *self.size)))
            else:
                runs = (np.arange(len(shape)) % 2).astype(np.uint8)
                inside = np.repeat(runs, shape).reshape(self.size[::-1]).T
            found[inside > 0] = number
        return found


Shape = list[NDArray[np.float64]] | NDArray[np.int64]
"""Polygons, each (n, 2), or run lengths (n,)."""

Pairs = dict[str, list[tuple[str, Any]]]


@dataclass(frozen=True)
class DrawnImages:
    """Images with masks that are drawn.

    Attributes:
        pairs: paths and masks by split
        names: of the classes, by number
        turns: the EXIF orientation by which the mask of an image is turned, by its path
        groups: of images by their paths, if they are to be grouped
        notes: remarks for the user
    """

    pairs: Pairs
    names: dict[int, str]
    turns: dict[str, int]
    groups: dict[str, str]
    notes: list[str]


@dataclass(frozen=True)
class _Shapes:
    """The shapes of a file's objects, in order, and which are crowds.

    Attributes:
        shapes: polygons; run lengths with rows and columns; None of what is neither
        crowds: whether each is one
    """

    shapes: list[Any] = field(default_factory=list)
    crowds: list[bool] = field(default_factory=list)

    def keep(self, said: dict[str, Any]) -> None:
        """Keep the shape of an annotation."""
        self.crowds.append(bool(said.get("iscrowd")))
        self.shapes.append(_read_shape(said.get("segmentation")))


def read_polygons(
    root: Path, known: Mapping[str, int], ignored: int | None, columns: Columns
) -> DrawnImages:
    """Return images and masks of a folder, or of a file of annotations.

    Args:
        root: a folder, or a file of annotations, as `data.boxes` has them
        known: numbers of a model's classes by name; none for the data's own
        ignored: the number of the pixels of crowds; None to leave crowds out
        columns: how images are found, grouped and turned

    Raises:
        DataError: damaged annotations, a class that is not known, no image that is there.
        PackageError: pycocotools is missing.
    """
    check_installed("pycocotools", "masks as polygons", "draw masks as PNG files")
    found = dict[str, Annotations]()
    shapes = dict[str, _Shapes]()
    for split, file in annotations_in(root).items():
        shapes[split] = _Shapes()
        found[split] = read_annotations(file, shapes[split].keep, columns.group_column)
    own = dict.fromkeys((BACKGROUND, *list_classes(found.values())))  # which may be among them
    known = known or dict(zip(own, count()))
    drawn = DrawnImages({}, {number: name for name, number in known.items()}, {}, {}, [])
    for split, (paths, placed) in place_images(found, root, columns).items():
        said = found[split]
        masks = _draw_shape(said, shapes[split], placed, known, ignored)
        drawn.pairs[split] = _paired(said, paths, placed, masks)
        for number, path in enumerate(paths):
            drawn.turns[path] = int(placed.turns[number])
            if said.groups:
                drawn.groups[path] = said.groups[number]
        drawn.notes.extend(said.notes)
    return drawn


def _draw_shape(
    said: Annotations,
    shapes: _Shapes,
    placed: Placed,
    known: Mapping[str, int],
    ignored: int | None,
) -> list[list[tuple[int, Shape]]]:
    """Return the objects of each image, the lowest first; say which are left out."""
    crowds = np.array(shapes.crowds, bool)
    numbers = np.array([*known.values()], np.int64)[number_classes(said, known, crowds)]
    objects: list[list[tuple[int, Shape]]] = [[] for _ in said.images]
    check_counts(said, np.bincount(said.image[said.image >= 0], minlength=len(objects)))
    odd = list[int]()
    for each, (image, own) in enumerate(
        zip(said.image.tolist(), said.category.tolist(), strict=True)
    ):
        shape = shapes.shapes[each]
        crowd = crowds[each]
        shape = _place_shape(shape, placed, image) if image >= 0 else None
        if image >= 0 and not placed.turns[image]:
            continue
        if shape is None:
            odd.append(image)
        elif crowd and ignored is not None:
            objects[image].insert(0, (ignored, shape))
        elif not crowd:
            objects[image].append((int(numbers[own]), shape))
    what = "shapes that are empty, no polygons or run lengths, or far outside of their image"
    names = [said.images[n] if n >= 0 else "an image that is not listed" for n in odd[:LISTED]]
    remark(said, len(odd), what, [f"of {name}" for name in names])
    return objects


def _paired(
    said: Annotations,
    paths: Sequence[str],
    placed: Placed,
    objects: Sequence[Sequence[tuple[int, Shape]]],
) -> list[tuple[str, Any]]:
    """Return the images of a file that are there, with their masks; say what is left out."""
    kept = list[tuple[str, Any]]()
    lost = list[str]()
    large = list[str]()
    for number, (name, path) in enumerate(zip(said.images, paths, strict=True)):
        columns, rows = placed.own[number].tolist()
        if not path or not columns or not rows:
            lost.append(name)
        elif columns * rows > min(MAX_PIXELS, MOST_DRAWN / max(1, len(objects[number]))):
            large.append(name)
        elif placed.turns[number]:
            kept.append((path, DrawnMask((rows, columns), tuple(objects[number]))))
    remark(said, len(lost), "images that are not there, or have no size", lost)
    what = "images of too many pixels to draw their objects"
    remark(said, len(large), what, large)
    said.notes.extend(placed.notes)
    check_there(said, len(kept))
    return kept


def _read_shape(said: Any) -> Any:
    """Return polygons; run lengths with their rows and columns; None of others."""
    try:
        if isinstance(said, dict):
            counts, (rows, columns) = said["counts"], said["size"]
            runs = _unpacked(counts) if isinstance(counts, str) else np.array(counts, np.int64)
            whole = runs.ndim == 1 and len(runs) and runs.min() >= 0 and runs.max() <= MAX_PIXELS
            return (runs, (rows, columns)) if whole and runs.sum() == rows * columns else None
        if not said or sum(map(len, said)) > 2 * MOST_POINTS:
            return None
        parts = [np.array(own, np.float64).reshape(-1, 2) for own in said]
        return parts if all(len(own) > 2 for own in parts) else None
    except (TypeError, ValueError, LookupError, OverflowError):
        return None


def _place_shape(shape: Any, placed: Placed, image: int) -> Shape | None:
    """Return a shape on the pixels of its image; None of one that does not fit."""
    own = placed.own[image]
    stated = placed.stated[image]
    if isinstance(shape, tuple):
        runs, (rows, columns) = shape
        return runs if (columns, rows) == tuple(own.tolist()) else None
    if shape is None or not np.isfinite(stated).all():
        return None
    if (own != stated).any():  # drawn on a copy of another size
        shape = [each * (own / stated) for each in shape]
    near = all((abs(each - own / 2) <= FAR * own).all() for each in shape)
    long = sum(abs(np.diff(each, axis=0)).max(1).sum() for each in shape) if near else 0.0
    return shape if near and long <= LONGEST else None


def _unpacked(text: str) -> NDArray[np.int64]:
    """Return the run lengths in a string of COCO's; pycocotools would read beyond a wrong one.

    A number has five bits in each character, the lowest first, and a sixth that says that more
    follow; from the fourth number on it is the difference from the one before the last.

    Raises:
        ValueError: characters of no number, or a number too long.
    """
    if len(text) > MOST_TEXT:
        raise ValueError("too long")
    codes = np.frombuffer(text.encode("ascii"), np.uint8).astype(np.int64) - 48
    last = codes & 32 == 0
    if not len(codes) or not last[-1]:
        raise ValueError("a number does not end")
    starts = np.concatenate([[0], np.flatnonzero(last)[:-1] + 1])
    lengths = np.diff(np.append(starts, len(codes)))
    if lengths.max() > 7:
        raise ValueError("a number is too long")
    shifts = 5 * (np.arange(len(codes)) - np.repeat(starts, lengths))
    values = np.add.reduceat((codes & 31) << shifts, starts)
    negative = codes[last] & 16 > 0
    values -= negative * (np.int64(1) << 5 * lengths)
    values[1::2] = values[1::2].cumsum()
    values[2::2] = values[2::2].cumsum()
    return values
