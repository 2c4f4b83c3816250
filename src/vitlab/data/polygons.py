"""Masks as COCO's polygons and run lengths: objects of a class, drawn when a mask is read.

Later objects lie over earlier ones. The pixels of a crowd (`iscrowd`) do not count where no object
lies over them; those of no object are the class `background`, number 0. The others have the numbers
1, 2, … in the order of the file's categories. Shapes are drawn by pycocotools, as COCO does.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitlab.data.boxes import (
    Annotations,
    annotated_classes,
    annotated_paths,
    annotations_in,
    check_known,
    read_annotations,
    skipped,
)
from vitlab.packages import check_installed

BACKGROUND, CROWD = "background", 2**16 - 1
LONGEST = 2**15  # pixels of a side
FAR = 1.5  # sides of the image from its center that a polygon may reach; more is slow, and wrong


@dataclass(frozen=True, eq=False)
class DrawnMask:
    """The mask of an image, drawn where NumPy asks for its numbers.

    Attributes:
        size: rows and columns
        objects: number, and polygons or (n,) run lengths; the first is the lowest
    """

    size: tuple[int, int]
    objects: tuple[tuple[int, Any], ...]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[np.uint16]:
        """Return the number of each pixel."""
        from pycocotools import mask as drawing  # of the extra `coco`

        found = np.zeros(self.size, np.uint16)
        for number, shape in self.objects:
            if isinstance(shape, list):
                inside = drawing.decode(drawing.merge(drawing.frPyObjects(shape, *self.size)))
            else:
                inside = np.repeat(np.arange(len(shape)) % 2, shape).reshape(self.size[::-1]).T
            found[inside > 0] = number
        return found


Pairs = dict[str, list[tuple[str, Any]]]


def read_polygons(
    root: Path, known: Mapping[str, int], ignored: int | None
) -> tuple[Pairs, dict[int, str], list[str]]:
    """Return images and masks by split, names by number, and remarks.

    Args:
        root: a folder, or a file of annotations, as `data.boxes` has them
        known: numbers of a model's classes by name; none for the data's own
        ignored: the number of the pixels of crowds; None to leave crowds out

    Raises:
        DataError: damaged annotations, a class that is not known, no image that is there.
        PackageError: pycocotools is missing.
    """
    check_installed("pycocotools", "masks as polygons", "draw masks as PNG files")
    files = annotations_in(root)
    found = {split: read_annotations(file, _shape) for split, file in files.items()}
    own = dict.fromkeys((BACKGROUND, *annotated_classes(found.values())))  # which may be among them
    known = known or dict(zip(own, count()))
    pairs, notes = Pairs(), list[str]()
    for split, said in found.items():
        pairs[split] = _paired(files[split], root, said, known, ignored, notes)
    return pairs, {number: name for name, number in known.items()}, notes


def _shape(said: Any) -> tuple[bool, Any]:
    """Return whether an object is a crowd, and its shape."""
    return bool(said.get("iscrowd")), said.get("segmentation")


def _paired(
    file: Path,
    root: Path,
    said: Annotations,
    known: Mapping[str, int],
    ignored: int | None,
    notes: list[str],
) -> list[tuple[str, Any]]:
    """Return the images of a file that are there, with their masks; say what is left out."""
    objects, odd = defaultdict[str, list[tuple[int, Any]]](list), list[str]()
    for image, own, (crowd, shape) in said.objects:
        if not crowd:
            check_known(file, said.names[own], known)
        _, size = said.images.get(image, ("", (0.0, 0.0)))
        if (shape := _checked(shape, size)) is None:
            odd.append(f"of image {image}")
        elif crowd and ignored is not None:
            objects[image].insert(0, (ignored, shape))
        elif not crowd:
            objects[image].append((known[said.names[own]], shape))
    kept, lost = list[tuple[str, Any]](), list[str]()
    paths = annotated_paths(file, root, said)
    for path, (image, (name, size)) in zip(paths, said.images.items(), strict=True):
        if path and all(1 <= side <= LONGEST for side in size):
            rows, columns = int(size[1]), int(size[0])
            kept.append((path, DrawnMask((rows, columns), tuple(objects[image]))))
        else:
            lost.append(name)
    what = "shapes that are empty, no polygons or run lengths, or far outside of their image"
    gone = "images that are not there, or have no size"
    notes += skipped(file, len(paths), (what, odd), (gone, lost))
    return kept


def _checked(shape: Any, size: tuple[float, float]) -> list[list[float]] | NDArray[np.int64] | None:
    """Return polygons, or run lengths, of an image of this width and height; None of others."""
    try:
        if isinstance(shape, dict):
            counts = shape["counts"]
            runs = np.array(_unpacked(counts) if isinstance(counts, str) else counts, np.int64)
            whole = runs.ndim == 1 and runs.min() >= 0 and sum(runs.tolist()) == size[0] * size[1]
            return runs if whole and shape["size"] == [*size[::-1]] else None
        parts = [np.array(own, np.float64).reshape(-1, 2) for own in shape]
    except (TypeError, ValueError, LookupError, OverflowError):
        return None
    sides = np.array(size)
    near = all(len(own) > 2 and (abs(own - sides / 2) <= FAR * sides).all() for own in parts)
    return [own.ravel().tolist() for own in parts] if near and parts else None


def _unpacked(text: str) -> list[int]:
    """Return the run lengths in a string of COCO's; pycocotools would read beyond a wrong one."""
    found, value, shift = list[int](), 0, 0
    for byte in text.encode("ascii"):
        value |= (byte - 48 & 31) << shift
        shift += 5
        if not byte - 48 & 32:  # the last of a number: its sign, and what it differs from
            value -= (byte - 48 & 16) << shift - 4
            found.append(value + (found[-2] if len(found) > 2 else 0))
            value = shift = 0
    return found
