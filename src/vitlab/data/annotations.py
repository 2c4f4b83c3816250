"""COCO's annotations: a JSON file of images, of objects in them, and of categories.

Files come from strangers. Objects are read one at a time, so that memory is that of what is kept;
how many there may be, in a file and in an image, is limited.
"""

import json
import math
import re
import unicodedata
from array import array
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from vitlab.data.class_index import check_class_names
from vitlab.data.frames import Sides
from vitlab.data.settings import AnnotationFrame
from vitlab.data.sources.folders import json_files
from vitlab.data.sources.memory import told
from vitlab.data.sources.paths import read_text, some
from vitlab.data.sources.request import split_of
from vitlab.data.split_words import SPLIT_OF
from vitlab.data.target import Classes, Integers
from vitlab.errors import DataError

LARGEST = 2**30  # bytes of annotations
MOST_OBJECTS = 4_000_000  # in a file; COCO's largest has 900,000
MOST_IN_IMAGE = 10_000  # objects
MOST_CLASSES = 20_000  # in a file; V3Det has 13,204
LONGEST_PATH, SHOWN_OF_PATH = 4096, 100  # characters
UPRIGHT = ("Label Studio",)  # show photos upright, and state the sides of the stored pixels
SPACE = re.compile(r"[ \t\n\r]*")


def annotations_in(root: Path) -> dict[str, Path]:
    """Return the file of annotations of each split; a split alone is `train`."""
    if root.is_file():
        files = [root] if root.suffix == ".json" else []
    else:
        others = "captions", "person_", "."
        files = [file for file in json_files(root) if not file.name.startswith(others)]
    groups = defaultdict[str, list[Path]](list)
    for file in files:  # COCO's own folder has files of other things, too
        groups[split_of_file(file)].append(file)
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


def split_of_file(file: Path) -> str:
    """Return the split that a file of annotations is of, by its folder or its name."""
    words = "".join(letter if letter.isalpha() else " " for letter in file.stem)
    return SPLIT_OF.get(file.parent.name.lower(), "") or split_of(words)


# What a file says


@dataclass(frozen=True)
class Annotations:
    """What a file of annotations says.

    Attributes:
        file: its path
        images: names of their files
        sides: width and height of each; None where none are stated
        groups: what each has under the key that `group_column` names; empty without one
        classes: names of the categories, in the file's order, each once
        image: of each object the number of its image; -1 for one that is not listed, (m,)
        category: of each object the number of its class, (m,)
        frame: on what the program that wrote the file lets its users draw, whatever sides it
            states; `auto` of other programs
        notes: remarks for the user
    """

    file: Path
    images: list[str]
    sides: list[Sides | None]
    groups: list[str]
    classes: list[str]
    image: Integers
    category: Integers
    frame: AnnotationFrame
    notes: list[str]


class _Ids(dict[str, int]):
    """Numbers of ids, in the order in which they are seen."""

    def number(self, said: Any) -> int:
        """Return the number of an id: a whole number, or a text."""
        return self.setdefault(_id(said), len(self))


def read_annotations(
    file: Path, keep: Callable[[dict[str, Any]], None], group_column: str = ""
) -> Annotations:
    """Return what a file of annotations says, of the right types.

    Args:
        file: COCO's JSON
        keep: takes each annotation, in order: what else of it is wanted
        group_column: a key of images

    Raises:
        DataError: it is not there, has another format, or too many objects.
    """
    text = read_text(file, LARGEST)
    images = list[Any]()
    categories = list[Any]()
    ids = array("q")
    of_image = _Ids()
    of_category = _Ids()
    frame: AnnotationFrame = "auto"
    too_many = f"{file} has more than {MOST_OBJECTS:,} objects: split it"
    if text.count('"image_id"') > MOST_OBJECTS:  # known at once
        raise DataError(too_many)
    try:
        for key, each in items_of(text):
            if key == "images":
                images.append(each)
            elif key == "categories":
                categories.append(each)
            elif key == "info" and isinstance(each, dict):
                frame = "upright" if each.get("contributor") in UPRIGHT else frame
            elif key == "annotations":
                ids.append(of_image.number(each["image_id"]))
                ids.append(of_category.number(each["category_id"]))
                keep(each)
                if len(ids) > 2 * MOST_OBJECTS:
                    raise DataError(too_many)
        named = _read_categories(file, categories)
        listed = _listed(file, images, group_column)
        if unknown := of_category.keys() - named.by_id.keys():
            raise ValueError(f"category_id {min(unknown)} is not among the categories")
    except DataError:
        raise
    except (ValueError, LookupError, TypeError, ArithmeticError, RecursionError) as error:
        raise DataError(
            f"{file} is not COCO's format, images (id, file_name, width, height), annotations "
            "(image_id, category_id, bbox or segmentation) and categories (id, name): "
            f"{told(error)[:200]}"
        ) from None
    numbers = np.array(ids, np.int64).reshape(-1, 2)
    image = _renumber(numbers[:, 0], of_image, listed.by_id)
    category = _renumber(numbers[:, 1], of_category, named.by_id)
    notes = [*listed.notes, *named.notes]
    return Annotations(
        file,
        listed.names,
        listed.sides,
        listed.groups,
        named.names,
        image,
        category,
        frame,
        notes,
    )


def items_of(text: str) -> Iterator[tuple[str, Any]]:
    """Yield the key and each item of the lists in a JSON object, one decoded at a time; and `info`.

    Raises:
        ValueError: it is no JSON object.
        RecursionError: it is nested too deep.
    """
    decode = json.JSONDecoder().raw_decode
    at = _after(text, 0)
    if text[at : at + 1] != "{":
        raise ValueError("it is no JSON object")
    at = _after(text, at + 1)
    while text[at : at + 1] != "}":
        key, at = decode(text, at)
        at = _after(text, at)
        if not isinstance(key, str) or text[at : at + 1] != ":":
            raise ValueError(f"no JSON at character {at:,}")
        at = _after(text, at + 1)
        if text[at : at + 1] != "[":
            value, at = decode(text, at)
            if key in ("images", "annotations", "categories"):
                raise ValueError(f"{key} is no list")
            if key == "info":
                yield key, value
        else:
            at = _after(text, at + 1)
            while text[at : at + 1] != "]":
                value, at = decode(text, at)
                yield key, value
                at = _next(text, at, "]")
            at += 1
        at = _next(text, at, "}")


def _after(text: str, at: int) -> int:
    """Return where the space ends that begins at a place, if any."""
    match = SPACE.match(text, at)
    return at if match is None else match.end()


def _next(text: str, at: int, end: str) -> int:
    """Return where the next item begins, or the sign that ends all."""
    at = _after(text, at)
    if text[at : at + 1] == ",":
        at = _after(text, at + 1)
        if text[at : at + 1] != end:
            return at
    elif text[at : at + 1] == end:
        return at
    raise ValueError(f"no JSON at character {at:,}")


def _id(said: Any) -> str:
    """Return an id as a text: 7, 7.0 and "7" are the same."""
    if isinstance(said, float) and said.is_integer():
        said = int(said)
    if isinstance(said, bool) or not isinstance(said, int | str):
        raise ValueError(f"an id is {json.dumps(said)[:50]}, no whole number and no text")
    return str(said)


def _renumber(seen: Integers, ids: Mapping[str, int], known: Mapping[str, int]) -> Integers:
    """Return the numbers that ids are known by in place of those by which they were seen."""
    table = np.array([known.get(own, -1) for own in ids], np.int64)
    return table[seen] if len(seen) else seen


@dataclass(frozen=True)
class _Listed:
    """Images or categories, each name once.

    Attributes:
        names: of all
        by_id: their numbers
        notes: remarks for the user
        sides: of images: width and height, None where none are stated
        groups: of images, if they are to be grouped
    """

    names: list[str]
    by_id: dict[str, int]
    notes: list[str] = field(default_factory=list)
    sides: list[Sides | None] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)


def _listed(file: Path, listed: Sequence[Any], group_column: str) -> _Listed:
    """Return the images that are listed; those of one file are one image."""
    found = _Listed([], {})
    by_name = dict[str, int]()
    twice = list[str]()
    for each in listed:
        own = _id(each["id"])
        name = str(each["file_name"])
        if len(name) > LONGEST_PATH:  # no file has it, and no line needs it
            name = f"{name[:SHOWN_OF_PATH]}…"
        sides = _side(each.get("width")), _side(each.get("height"))
        said = sides if sides[0] and sides[1] else None
        if (number := by_name.get(name)) is None:
            number = by_name[name] = len(found.names)
            found.names.append(name)
            found.sides.append(said)
            if group_column:
                found.groups.append(_group(each.get(group_column), own))
        elif found.sides[number] != said:
            raise ValueError(f"{name} is listed twice, with other sides")
        elif own not in found.by_id:
            twice.append(name)
        if found.by_id.setdefault(own, number) != number:
            raise ValueError(f"id {own} is given twice")
    if twice:
        found.notes.append(
            f"{file}: {len(twice):,} images are listed under several ids; the objects of all are "
            f"theirs: {some(twice)}"
        )
    if group_column and not any(group_column in each for each in listed):
        raise DataError(f"no image of {file} has {group_column!r}, by which they are to be grouped")
    return found


def _group(said: Any, own: str) -> str:
    """Return the group of an image; one that is in none is alone."""
    return f"image {own}" if said in (None, "") else f"group {said}"


def _side(said: Any) -> float:
    """Return a side in pixels; 0 for what is none."""
    try:
        side = 0.0 if isinstance(said, bool) else float(said)
    except (TypeError, ValueError, OverflowError):
        return 0.0
    return side if math.isfinite(side) and side > 0 else 0.0


def _read_categories(file: Path, listed: Sequence[Any]) -> _Listed:
    """Return the categories; those of one name are one class."""
    found = _Listed([], {})
    by_name = dict[str, int]()
    twice = list[str]()
    for each in listed:
        own = _id(each["id"])
        name = unicodedata.normalize("NFC", str(each["name"]))
        check_class_names([name], str(file))
        if name in by_name and own not in found.by_id:
            twice.append(name)
        number = by_name.setdefault(name, len(by_name))
        if found.by_id.setdefault(own, number) != number:
            raise ValueError(f"id {own} is given twice")
    found.names.extend(by_name)
    if len(by_name) > MOST_CLASSES:
        raise DataError(f"{file} has {len(by_name):,} categories, more than {MOST_CLASSES:,}")
    if twice:
        found.notes.append(
            f"{file}: {len(twice):,} categories have the name of another one, and are the same "
            f"class: {some(twice)}"
        )
    return found


def list_classes(found: Iterable[Annotations]) -> Classes:
    """Return the names of the classes of all files that objects have, in the files' order."""
    order = dict[str, None]()
    for each in found:
        used = np.bincount(each.category, minlength=len(each.classes))
        order |= {name: None for name, count in zip(each.classes, used, strict=True) if count}
    return tuple(order)


def number_classes(found: Annotations, known: Collection[str], left_out: Any = ()) -> Integers:
    """Return the number among known classes of each of a file's classes; -1 for unused ones.

    Args:
        found: names the classes
        known: names, compared as Unicode composes them (NFC)
        left_out: objects whose classes play no part, bool (m,)

    Raises:
        DataError: an object of a class that is not known.
    """
    place = {unicodedata.normalize("NFC", name): number for number, name in enumerate(known)}
    own = found.category[~left_out] if len(left_out) else found.category
    used = np.bincount(own, minlength=len(found.classes))
    for name, count in zip(found.classes, used, strict=True):
        if count and name not in place:
            raise DataError(
                f"{found.file} has an object of class {name!r}, which is not among those known, "
                f"{some([*known])}: leave it out"
            )
    return np.array([place.get(name, -1) for name in found.classes], np.int64)


def check_counts(found: Annotations, counts: Integers) -> None:
    """Refuse more objects in an image than can be learned.

    Raises:
        DataError: an image with too many.
    """
    if len(counts) and (most := int(counts.max())) > MOST_IN_IMAGE:
        name = found.images[int(counts.argmax())]
        raise DataError(
            f"{found.file}: {name} has {most:,} objects, more than {MOST_IN_IMAGE:,}: cut it into "
            "several images"
        )


def check_there(found: Annotations, kept: int) -> None:
    """Refuse a file of annotations of which no image is left.

    Raises:
        DataError: it has none.
    """
    if not kept:
        notes = "; ".join(found.notes)
        raise DataError(
            f"{found.file} has no image that is there: put them beside it, or into images/, or "
            f"name their folder with --images{f' ({notes})' if notes else ''}"
        )


def remark(found: Annotations, count: int, what: str, names: Sequence[str]) -> None:
    """Note what is skipped, if anything: how many, and the first names."""
    if count:
        found.notes.append(f"{found.file}: skipped {count:,} {what}: {some(names)}")
