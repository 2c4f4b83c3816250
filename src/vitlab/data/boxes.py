"""Boxes: images whose objects have a class and a box, as COCO annotations or as digit scenes.

    photos/annotations.json                       with the images beside it or in photos/images/;
                                                  a fifth is held out for testing
    photos/annotations/instances_train2017.json   with photos/train2017/ (COCO)
    photos/train/_annotations.coco.json           beside the images of the split (Roboflow)
    one.json                                      such a file alone
    images/ + labels/, data.yaml                  YOLO's layout, as data/sources/yolo.py
    digit-scenes                                  2 to 6 embedded digits in 48x48 pixels

A box is left, top, right, bottom in shares of the image's sides, so that it stays as it is where
the whole image is resized.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
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
from vitlab.data.box_targets import BoxTargets, boxes_of
from vitlab.data.decode.crop import crop_resize
from vitlab.data.decode.crop_box import whole_box
from vitlab.data.decode.pixels import Pixels
from vitlab.data.exists import SCENES
from vitlab.data.frames import Placed, turn_shares
from vitlab.data.images import Images
from vitlab.data.number_targets import NumberTargets
from vitlab.data.settings import Columns
from vitlab.data.sources.cell_table import check_known_columns
from vitlab.data.sources.image_files import image_paths
from vitlab.data.sources.memory import Arrays, digits, split_digits
from vitlab.data.sources.paths import some
from vitlab.data.sources.request import Found, Part, Request
from vitlab.data.sources.yolo import YoloData, read_yolo
from vitlab.data.target import Classes, Integers
from vitlab.errors import DataError, OptionError

SIDE, SMALL, LARGE, INK = 48, 10, 16, 32  # pixels: a scene, a digit; the gray where a digit begins
DIGITS = (2, 6)  # least and most in a scene
COUNTS = {"train": 20_000, "test": 1_000}
TRIES = 200  # places for a scene's digits
SLACK = 1.0  # pixels that a box may reach beyond its image unsaid: other people's rounding
CROWD = (np.nan,) * 4
LISTED = 4  # boxes that are described for a line, one more than it names
Drawn = tuple[Pixels, tuple[int, int, int, int]]


# Digit scenes


@lru_cache(maxsize=2)
def scenes(split: str) -> Images:
    """Return the scenes of a split, `train` or `test`: image k is a function of the split and k.

    Those of the test split show digits that no training scene has.
    """
    own = split_digits(digits()).parts[split]
    kept = [own.image(number).decode(1) for number in range(len(own))]
    drawn: list[dict[int, Drawn]] = [{} for _ in kept]
    seed = [*COUNTS].index(split)
    count = COUNTS[split]
    images = np.zeros((count, SIDE, SIDE, 1), np.uint8)
    objects = list[list[Any]]()
    for number, image in enumerate(images):
        generator = np.random.default_rng([seed, number])
        mine = list[Any]()
        free = np.ones((SIDE, SIDE), bool)
        wanted = int(generator.integers(*DIGITS, endpoint=True))
        for which, side, across, down in generator.random((TRIES, 4)).tolist():
            if len(mine) == wanted:
                break
            digit = int(which * len(kept))
            size = SMALL + int(side * (LARGE - SMALL + 1))
            left, top = (int(each * (SIDE - size + 1)) for each in (across, down))
            place = slice(top, top + size), slice(left, left + size)
            if not free[place].all():
                continue
            if size not in drawn[digit]:
                drawn[digit][size] = _enlarged(kept[digit], size)
            free[place], (image[place], ink) = False, drawn[digit][size]
            box = [edge + start for edge, start in zip(ink, (left, top) * 2, strict=True)]
            mine.append((*own.target.classes_of(digit), *(edge / SIDE for edge in box)))
        objects.append(mine)
    target = BoxTargets.of(objects, len(own.classes))
    return Images.of(Arrays(images, f"{split} scene"), target, own.classes)


def _enlarged(digit: Pixels, side: int) -> Drawn:
    """Return a digit at another size, and where its ink is: left, top, right, bottom."""
    pixels = crop_resize(digit, whole_box(*digit.shape[:2]), side, side)
    ink = pixels[..., 0] >= INK
    down, across = (np.flatnonzero(ink.any(axis)) for axis in (1, 0))
    return pixels, (int(across[0]), int(down[0]), int(across[-1]) + 1, int(down[-1]) + 1)


def open_scenes(request: Request) -> Found | None:
    """Open the images of `digit-scenes`, which have no class of their own; None for other names."""
    if request.data != SCENES:
        return None
    if request.target == "numbers":
        return Found([Part(_counted(scenes(name), request.columns), name) for name in COUNTS])
    lacks = f"{SCENES} has boxes, not classes of images: pass --task detect"
    bare = {name: scenes(name).without_labels() for name in COUNTS}
    return Found([Part(source, name, lacks) for name, source in bare.items()])


def _counted(source: Images, columns: Columns) -> Images:
    """Return scenes with what can be counted in them."""
    names = columns.label_column
    classes = boxes_of(source)[..., 0]
    known = {"digits": (classes >= 0).sum(1), "sum": np.maximum(classes, 0).sum(1)}
    check_known_columns(known, SCENES, names)
    numbers = np.stack([known[name] for name in names], 1)
    return source.with_target(NumberTargets.of(numbers), names)


# YOLO


def _of_yolo(said: YoloData, request: Request) -> Found:
    """Return the images of YOLO's layout by split, with their boxes."""
    if request.columns.group_column:
        raise DataError(f"{request.data} has no columns, so that group_column means nothing")
    parts = list[Part]()
    for split, own in said.splits.items():
        labels = BoxTargets.of(own.objects, len(said.classes))
        parts.append(Part(image_paths(own.paths).with_target(labels, said.classes), split))
    return Found(parts, said.notes)


# COCO


@dataclass(frozen=True)
class _Edges:
    """Left, top, width and height of each object of a file; NaN of a crowd."""

    numbers: "array[float]" = field(default_factory=lambda: array("d"))

    def keep(self, said: dict[str, Any]) -> None:
        """Keep the box of an annotation."""
        if said.get("iscrowd"):
            self.numbers.extend(CROWD)
            return
        box = [float(edge) for edge in said["bbox"]]
        if len(box) != 4:
            raise ValueError("a bbox is left, top, width, height")
        self.numbers.extend(box)

    def table(self) -> NDArray[np.float64]:
        """Return them, (m, 4)."""
        return np.array(self.numbers, np.float64).reshape(-1, 4)


def open_boxes(request: Request) -> Found:
    """Open images with the boxes of their objects.

    Args:
        request: names the data, and the classes of a model, in its order, if there is one

    Raises:
        OptionError: images in memory.
        DataError: no annotations, damaged ones, a class that is not among those of the model.
    """
    if not isinstance(request.given, str | Path):
        raise OptionError(
            "task=detect learns from a folder with COCO annotations: name one as data"
        )
    columns = request.columns
    if request.data == SCENES:
        if columns.group_column:
            raise DataError(f"{SCENES} has no columns, so that group_column means nothing")
        return Found([Part(scenes(name), name) for name in COUNTS])
    if not request.data:
        raise DataError(f"no data given: name a folder with COCO annotations, or {SCENES}")
    root = Path(request.data).expanduser()
    if drawn := read_yolo(root, request.classes):
        return _of_yolo(drawn, request)
    edges = dict[str, _Edges]()
    found = dict[str, Annotations]()
    for split, file in annotations_in(root).items():
        edges[split] = _Edges()
        found[split] = read_annotations(file, edges[split].keep, columns.group_column)
    order = request.classes or list_classes(found.values())
    if not order:
        raise DataError(f"{request.data} has no boxes: annotations, each with a bbox, say where")
    places = place_images(found, root, columns)
    parts = list[Part]()
    for split, said in found.items():
        paths, placed = places[split]
        objects = _objects(said, edges[split].table(), placed, order)
        parts.append(Part(_with_boxes(said, paths, placed, objects, order), split))
    notes = [note for said in found.values() for note in said.notes]
    return Found(parts, notes)


def _objects(
    said: Annotations, edges: NDArray[np.float64], placed: Placed, order: Classes
) -> tuple[Integers, NDArray[np.float64]]:
    """Return the number of each object's image, and its class and box in shares of the sides."""
    numbers = number_classes(said, order)
    listed = said.image >= 0
    sides = placed.stated[said.image]
    turns = placed.turns[said.image]
    with np.errstate(over="ignore", invalid="ignore"):
        low = edges[:, :2]
        high = edges[:, :2] + edges[:, 2:]
        inside = np.concatenate([np.clip(each, 0, sides) for each in (low, high)], 1)
        beyond = ((low < -SLACK) | (high > sides + SLACK)).any(1)
        there = listed & (inside[:, :2] < inside[:, 2:]).all(1)  # NaN is not
        there &= np.isfinite(edges).all(1)
        shares = inside / np.concatenate([sides, sides], 1)
    left_out = listed & (turns == 0)
    odd = np.flatnonzero(~there & ~left_out)
    cut = np.flatnonzero(there & beyond & ~left_out)
    what = "boxes that are empty, outside of their image or around a crowd"
    remark(said, len(odd), what, [_describe(said, edges, each) for each in odd[:LISTED].tolist()])
    if len(cut):
        first = [_describe(said, edges, each) for each in cut[:LISTED].tolist()]
        said.notes.append(
            f"{said.file}: cut {len(cut):,} boxes at the edge of their image: {some(first)}"
        )
    chosen = np.flatnonzero(there & ~left_out)
    boxes = turn_shares(shares[chosen], turns[chosen])
    names = numbers[said.category[chosen]]
    return said.image[chosen], np.concatenate([names[:, None], boxes], 1)


def _describe(said: Annotations, edges: NDArray[np.float64], number: int) -> str:
    """Return an object for a message."""
    image = int(said.image[number])
    name = said.images[image] if image >= 0 else "an image that is not listed"
    box = edges[number].tolist()
    return f"{'a crowd' if np.isnan(box).all() else box} of {name}"


def _with_boxes(
    said: Annotations,
    paths: Sequence[str],
    placed: Placed,
    objects: tuple[Integers, NDArray[np.float64]],
    order: Classes,
) -> Images:
    """Return the images of a file of annotations that are there, with their objects."""
    lost = [name for name, path in zip(said.images, paths, strict=True) if not path]
    remark(said, len(lost), "images that are not there", lost)
    said.notes.extend(placed.notes)
    there = np.array([bool(path) for path in paths], bool)
    there &= placed.turns > 0
    check_there(said, int(there.sum()))
    check_counts(said, np.bincount(objects[0], minlength=len(paths)))
    labels = BoxTargets.from_objects(len(paths), objects[0], objects[1], len(order))
    images = image_paths(paths).with_target(labels, order)
    if said.groups:
        images = images.in_groups(said.groups)
    return images.without(np.flatnonzero(~there))
