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

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitlab.data.decode.crop import crop_resize, whole_box
from vitlab.data.decode.pixels import Box, Pixels
from vitlab.data.holdout import in_splits, refuse_groups, without
from vitlab.data.labels import Classes, Indices, PlacedLabels
from vitlab.data.rules import SPLIT_OF
from vitlab.data.settings import Columns, Data
from vitlab.data.sources.cell_table import check_known_columns
from vitlab.data.sources.folders import LabeledFiles, json_files
from vitlab.data.sources.memory import Arrays, digits, split_digits, told
from vitlab.data.sources.paths import Inside, Names, read_text, some
from vitlab.data.sources.request import Found, Part, Request, Splits, blank, split_of
from vitlab.data.sources.source import Relabeled, Source, numbered
from vitlab.data.sources.yolo import YoloData, read_yolo
from vitlab.errors import DataError

SCENES = "digit-scenes"
SIDE, SMALL, LARGE, INK = 48, 10, 16, 32  # pixels: a scene, a digit; the gray where a digit begins
DIGITS = (2, 6)  # least and most in a scene
COUNTS = {"train": 20_000, "test": 1_000}
TRIES = 200  # places for a scene's digits
LARGEST = 2**30  # bytes of annotations
SLACK = 1.0  # pixels that a box may reach beyond its image: other people's rounding
Boxes = NDArray[np.float32]
"""(n, most, 5): class, left, top, right, bottom of each object; class -1 where there is none."""
Sides = tuple[float, float]
Drawn = tuple[Pixels, tuple[int, int, int, int]]


@dataclass(frozen=True, eq=False)
class BoxLabels(PlacedLabels):
    """The objects of images: a class and a box each. As labels they are the classes there are.

    Attributes:
        boxes: of each image
    """

    boxes: Boxes

    @classmethod
    def of(cls, objects: Sequence[Any], classes: int) -> Self:
        """Return the labels of images from the rows of `Boxes` of each."""
        most = max((len(own) for own in objects), default=0)
        boxes = np.zeros((len(objects), max(most, 1), 5), np.float32)
        boxes[..., 0] = -1
        values = np.zeros((len(objects), classes), np.uint8)
        for number, own in enumerate(objects):
            if len(own):
                boxes[number, : len(own)] = own
                values[number, boxes[number, : len(own), 0].astype(np.int64)] = 1
        return cls(values, boxes)

    def take(self, indices: Indices) -> Self:
        """Return the labels of some of the images."""
        chosen = np.asarray(indices, np.int64)
        return type(self)(self.values[chosen], self.boxes[chosen])

    def targets(self) -> Boxes:
        """Return the targets of a batch, float32 (n, most, 5)."""
        return self.boxes

    def content(self) -> bytes:
        """Return what a fingerprint has of them."""
        return super().content() + self.boxes.tobytes()

    def inside(self, index: int, size: tuple[int, int], shape: tuple[int, int], box: Box) -> Boxes:
        """Return the objects within a box, (most, 5), those that are not there at the end.

        Boxes end where the crop does; objects whose center is outside are left out (SSD: Liu et
        al., 2016, section 2.2), where DETR keeps every sliver.
        """
        low, high = np.reshape(np.divide(box, (*shape[::-1], *shape[::-1])), (2, 2))
        edges = (self.boxes[index, :, 1:].astype(np.float64).reshape(-1, 2, 2) - low) / (high - low)
        centers = edges.mean(1)
        names = np.where(((centers >= 0) & (centers < 1)).all(-1), self.boxes[index, :, 0], -1)
        found = np.concatenate([names[:, None], edges.clip(0, 1).reshape(-1, 4)], -1)
        return found[np.argsort(names < 0, kind="stable")].astype(np.float32)

    @staticmethod
    def mirrored(targets: Tensor) -> Tensor:
        """Return objects with left and right exchanged."""
        name, left, top, right, bottom = targets.unbind(-1)
        return torch.stack([name, 1 - right, top, 1 - left, bottom], -1)


def boxes_of(source: Source) -> Boxes:
    """Return the objects of a source of `open_boxes`."""
    assert isinstance(source.labels, BoxLabels)
    return source.labels.boxes


def open_boxes(options: Data, classes: Sequence[str] = ()) -> Splits:
    """Open images with boxes, to learn from and to be tested on.

    Args:
        options: names the data; what of unsplit data is held out
        classes: those of a model, in its order; none for the data's own

    Raises:
        DataError: no annotations, damaged ones, a class that is not among `classes`, groups.
    """
    if options.data == SCENES:
        return Splits(scenes("train"), scenes("test"))
    if not options.data:
        raise DataError(f"no data given: name a folder with COCO annotations, or {SCENES}")
    if drawn := read_yolo(Path(options.data).expanduser(), classes):
        return _of_yolo(drawn, options)
    refuse_groups(options)
    root, notes = Path(options.data).expanduser(), list[str]()
    files = annotations_in(root)
    found = {split: read_annotations(file) for split, file in files.items()}
    order = tuple(classes) or annotated_classes(found.values())
    if not order:
        raise DataError(f"{options.data} has no boxes: annotations, each with a bbox, say where")
    opened = {name: _opened(files[name], root, found[name], order, notes) for name in found}
    return in_splits(opened, options.test_fraction, notes)


# Digit scenes


@lru_cache(maxsize=2)
def scenes(split: str) -> Arrays:
    """Return the scenes of a split, `train` or `test`: image k is a function of the split and k.

    Those of the test split show digits that no training scene has.
    """
    own = split_digits(digits()).parts[split]
    kept = [own.image(number).decode(1) for number in range(len(own))]
    drawn: list[dict[int, Drawn]] = [{} for _ in kept]
    seed, count = [*COUNTS].index(split), COUNTS[split]
    images, objects = np.zeros((count, SIDE, SIDE, 1), np.uint8), list[list[Any]]()
    for number, image in enumerate(images):
        generator, mine = np.random.default_rng([seed, number]), list[Any]()
        free, wanted = np.ones((SIDE, SIDE), bool), int(generator.integers(*DIGITS, endpoint=True))
        for which, side, across, down in generator.random((TRIES, 4)).tolist():
            if len(mine) == wanted:
                break
            digit, size = int(which * len(kept)), SMALL + int(side * (LARGE - SMALL + 1))
            left, top = (int(each * (SIDE - size + 1)) for each in (across, down))
            place = slice(top, top + size), slice(left, left + size)
            if not free[place].all():
                continue
            if size not in drawn[digit]:
                drawn[digit][size] = _enlarged(kept[digit], size)
            free[place], (image[place], ink) = False, drawn[digit][size]
            box = [edge + start for edge, start in zip(ink, (left, top) * 2, strict=True)]
            mine.append((*own.labels.classes_of(digit), *(edge / SIDE for edge in box)))
        objects.append(mine)
    return Arrays(images, BoxLabels.of(objects, len(own.classes)), own.classes, f"{split} scene")


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
    if request.labels == "numbers":
        return Found([Part(_counted(scenes(name), request.columns), name) for name in COUNTS])
    lacks = f"{SCENES} has boxes, not classes of images: pass --task detect"
    bare = {name: Relabeled(scenes(name), blank(count), ()) for name, count in COUNTS.items()}
    return Found([Part(source, name, lacks) for name, source in bare.items()])


def _counted(source: Source, columns: Columns) -> Source:
    """Return scenes with what can be counted in them."""
    names, classes = columns.label_column, boxes_of(source)[..., 0]
    known = {"digits": (classes >= 0).sum(1), "sum": np.maximum(classes, 0).sum(1)}
    check_known_columns(known, SCENES, names)
    return numbered(source, np.stack([known[name] for name in names], 1), names)


# YOLO


def _of_yolo(said: YoloData, options: Data) -> Splits:
    """Return the images of YOLO's layout, split, with their boxes."""
    if options.group_column:
        raise DataError(f"{options.data} has no columns, so that group_column means nothing")
    opened = dict[str, Source]()
    for split, own in said.splits.items():
        labels = BoxLabels.of(own.objects, len(said.classes))
        opened[split] = LabeledFiles(Path(), Names.of(own.paths), labels, said.classes)
    return in_splits(opened, options.test_fraction, said.notes)


# COCO


def annotations_in(root: Path) -> dict[str, Path]:
    """Return the file of annotations of each split; a split alone is `train`."""
    if root.is_file():
        files = [root] if root.suffix == ".json" else []
    else:
        others = "captions", "person_", "."
        files = [file for file in json_files(root) if not file.name.startswith(others)]
    groups = defaultdict[str, list[Path]](list)
    for file in files:  # COCO's own folder has files of other things, too
        folder = SPLIT_OF.get(file.parent.name.lower(), "")
        words = "".join(letter if letter.isalpha() else " " for letter in file.stem)
        groups[folder or split_of(words)].append(file)
    if not groups:
        raise DataError(
            f"{root} has no annotations: put COCO's .json beside the images, or into annotations/"
        )
    if several := next((own for own in groups.values() if len(own) > 1), []):
        names = some([str(each) for each in several])
        raise DataError(
            f"several files of annotations for one split, {names}: leave one there, or name it"
        )
    if len(groups) > 1 and "train" not in groups:
        raise DataError(
            f"{root} has annotations of {' and '.join(groups)}, not of train: name one file, such "
            f"as {files[0]}"
        )
    return {split if "train" in groups else "train": own for split, (own,) in groups.items()}


class Annotations(NamedTuple):
    """What a file of annotations says.

    Attributes:
        images: name of the file, and width and height in pixels, by id
        names: of the classes, by id
        objects: ids of image and class, and what `read_annotations` makes of the rest
    """

    images: dict[str, tuple[str, Sides]]
    names: dict[str, str]
    objects: list[tuple[str, str, Any]]


def _box(said: Any) -> list[float] | None:
    """Return left, top, width and height of an object; None of a crowd."""
    if said.get("iscrowd"):
        return None
    box = [float(edge) for edge in said["bbox"]]
    if len(box) != 4:
        raise ValueError("a bbox is left, top, width, height")
    return box


def read_annotations(file: Path, shape: Callable[[Any], Any] = _box) -> Annotations:
    """Return what a file of annotations says, of the right types.

    Args:
        file: COCO's JSON
        shape: what is made of an annotation, beside the ids of its image and class

    Raises:
        DataError: it is not there, or has another format.
    """
    text = read_text(file, LARGEST)
    try:
        said = json.loads(text)
        images, names = dict[str, tuple[str, Sides]](), dict[str, str]()
        for each in said["images"]:
            size = float(each["width"]), float(each["height"])
            _note(images, each, (str(each["file_name"]), size))
        for each in said["categories"]:
            _note(names, each, str(each["name"]))
        objects = [
            (str(each["image_id"]), str(each["category_id"]), shape(each))
            for each in said["annotations"]
        ]
        if unknown := {own for _, own, _ in objects} - names.keys():
            raise ValueError(f"category_id {min(unknown)} is not among the categories")
        return Annotations(images, names, objects)
    except (ValueError, LookupError, TypeError, ArithmeticError, RecursionError) as error:
        raise DataError(
            f"{file} is not COCO's format, images (id, file_name, width, height), annotations "
            "(image_id, category_id, bbox or segmentation) and categories (id, name): "
            f"{told(error)[:200]}"
        ) from None


def _note(known: dict[str, Any], said: Any, value: object) -> None:
    """Note what an id stands for: files that were merged as they are give one to several things."""
    if known.setdefault(number := str(said["id"]), value) != value:
        raise ValueError(f"id {number} is given twice")


def annotated_classes(found: Iterable[Annotations]) -> Classes:
    """Return the names of the classes of all files that objects have, in the files' order."""
    order = dict[str, None]()
    for each in found:
        used = {own for _, own, _ in each.objects}
        order |= {name: None for own, name in each.names.items() if own in used}
    return tuple(order)


def _opened(file: Path, root: Path, found: Annotations, order: Classes, notes: list[str]) -> Source:
    """Return the images of a file of annotations, which are all there, with their boxes."""
    place = {name: number for number, name in enumerate(order)}
    objects: dict[str, list[Any]] = {image: [] for image in found.images}
    odd = list[str]()
    for image, own, given in found.objects:
        check_known(file, name := found.names[own], order)
        if image in objects and given and (box := _inside(given, found.images[image][1])):
            objects[image].append((place[name], *box))
        else:
            odd.append(f"{given or 'a crowd'} of image {image}")
    paths = annotated_paths(file, root, found)
    gone = [number for number, path in enumerate(paths) if not path]
    lost = [name for path, (name, _) in zip(paths, found.images.values(), strict=True) if not path]
    what = "boxes that are empty, outside of their image or around a crowd"
    notes += skipped(file, len(paths), (what, odd), ("images that are not there", lost))
    labels = BoxLabels.of([*objects.values()], len(order))
    return without(LabeledFiles(Path(), Names.of(paths), labels, order), gone)


def _inside(box: list[float], size: Sides) -> list[float]:
    """Return left, top, right, bottom in shares of the sides; nothing outside of the image."""
    low, high = np.array(box[:2]), np.array(box[:2]) + box[2:]
    inside = (low >= -SLACK).all() and (high <= np.array(size) + SLACK).all()  # NaN is not
    if not inside or min(size) <= 0 or not np.isfinite([*box, *size]).all():
        return []
    low, high = (np.clip(each / size, 0, 1) for each in (low, high))
    return [*low.tolist(), *high.tolist()] if (low < high).all() else []


def check_known(file: Path, name: str, known: Collection[str]) -> None:
    """Refuse an object of a class that is not known."""
    if name not in known:
        raise DataError(
            f"{file} has an object of class {name!r}, which is not among those known, "
            f"{some([*known])}: leave it out"
        )


def skipped(file: Path, images: int, *kinds: tuple[str, Sequence[str]]) -> list[str]:
    """Return remarks on what is skipped: a description and the names; images are the last kind.

    Raises:
        DataError: all the images of the file are.
    """
    if len(kinds[-1][1]) == images:
        raise DataError(f"{file} has no image that is there: put them beside it, or into images/")
    return [f"{file}: skipped {len(own):,} {what}: {some(own)}" for what, own in kinds if own]


def annotated_paths(file: Path, root: Path, said: Annotations) -> list[str]:
    """Return where the images of a file of annotations are, empty where they are not.

    Args:
        file: of the annotations
        root: what the user named: that file, or a folder around it
        said: names the images, which are in that folder, or beside the file or its `annotations/`
    """
    home = root if root.is_dir() else file.parent
    if file.parent.name == "annotations":
        home = file.parents[1]
    stem = file.stem.split("_")[-1]
    folders = [file.parent, file.parent / "images", *(home / sub for sub in ("", "images", stem))]
    folders += [home / "images" / stem]
    inside, found = Inside((home,)), list[str]()
    for name, _ in said.images.values():
        places = [each for folder in folders if inside.holds(each := folder / name)]
        found.append(next((str(each) for each in places if each.is_file()), ""))
    return found
