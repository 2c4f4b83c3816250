"""YOLO's layout of boxes: a text of `class x y width height` shares beside, or for, each image.

    images/train/1.jpg   labels/train/1.txt    and images/val/, labels/val/ (Ultralytics)
    train/images/1.jpg   train/labels/1.txt    and valid/, test/ (Roboflow)
    images/1.jpg         labels/1.txt          (Label Studio)
    1.jpg                1.txt                 in one folder (Darknet), with classes.txt
    data.yaml                                  names the splits' folders and the classes

Shares are those of the upright image. An image without a text, or with an empty one, has no
objects. Names of classes are in data.yaml, classes.txt or obj.names; without them they are numbers.
"""

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vitlab.data.class_names import spell_name
from vitlab.data.sources.file_tree import FileTree, suffix_of
from vitlab.data.sources.folders import tree_of
from vitlab.data.sources.paths import read_text, some
from vitlab.data.split_words import SPLIT_OF, SPLIT_WORDS
from vitlab.data.target import Classes
from vitlab.errors import DataError

IMAGES = "images"
LABELS = "labels"
NAME_FILES = ("classes.txt", "obj.names", "_darknet.labels", "classes.names")
YAML_ENDINGS = (".yaml", ".yml")
LARGEST_YAML = 2**18  # bytes: its parser is slow
LARGEST_TEXT = 2**20  # bytes of the objects of one image
LARGEST_LIST = 2**28  # bytes of a list of images
MOST_OBJECTS = 10_000  # in one image
MOST_CLASSES = 20_000
MOST_PLACES = 50_000_000  # images times the most objects in one of them: 1 GB of boxes
SLACK = 0.01  # of a side that a box may reach beyond it: other people's rounding

Object = tuple[int, float, float, float, float]
"""Class, and left, top, right, bottom in shares of the image's sides."""


@dataclass(frozen=True)
class YoloSplit:
    """The images of a split: their paths, and the objects in each."""

    paths: list[str]
    objects: list[list[Object]]


@dataclass(frozen=True)
class YoloData:
    """What a folder in YOLO's layout says.

    Attributes:
        splits: by name; `train` alone where the data comes unsplit
        classes: names of those that objects have, or of a model; the classes of objects index them
        notes: remarks for the user
    """

    splits: dict[str, YoloSplit]
    classes: Classes
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class YoloFile:
    """What a data.yaml says.

    Attributes:
        title: of the file
        splits: the places of the images of each split
        classes: names; empty where it has none
        base: folder that places are relative to, as it is written
        has_points: whether objects have key points behind their boxes
    """

    title: str = ""
    splits: dict[str, list[str]] = field(default_factory=dict)
    classes: Classes = ()
    base: str = ""
    has_points: bool = False


def read_yolo(path: Path, classes: Sequence[str] = ()) -> YoloData | None:
    """Return what a folder in YOLO's layout, or its data.yaml, says; None for others.

    Args:
        path: of the folder or the file
        classes: those of a model, in its order; none for the data's own

    Raises:
        DataError: a damaged file, an object of an unknown class, no images, or paths elsewhere.
    """
    if path.is_file() and path.suffix.lower() in YAML_ENDINGS:
        root = path.parent
        named = path.name
    elif path.is_dir():
        root = path
        named = ""
    else:
        return None
    tree = tree_of(root)
    while not _is_yolo(tree) and not named:
        inner = [each for each in tree.folders() if each.has_pictures_below()]
        if len(inner) != 1 or tree.listing.has_pictures:
            return None
        tree = inner[0]
    file = _read_yaml(tree, named)
    notes = list[str]()
    folders = _find_folders(tree, file, root, notes) or _usual_folders(tree)
    if not folders:
        raise DataError(
            f"{tree.title} has no images in YOLO's layout: put them into images/train and "
            "images/val, and a .txt of each into labels/train and labels/val"
        )
    if len(folders) > 1 and "train" not in folders:
        raise DataError(f"{tree.title} has images of {' and '.join(folders)}, not of train")
    reader = LabelReader(_read_names(tree, file), file.has_points)
    splits = {split: reader.read(tree, images) for split, images in folders.items()}
    counts = [len(objects) for each in splits.values() for objects in each.objects]
    if not any(counts):
        raise DataError(f"{tree.title} has no boxes: no .txt of an image has a line")
    if len(counts) * max(counts) > MOST_PLACES:
        raise DataError(
            f"{tree.title}: {len(counts):,} images with up to {max(counts):,} objects take more "
            "memory than boxes may: split the data, or leave out the images with the most objects"
        )
    splits = splits if "train" in splits else {"train": next(iter(splits.values()))}
    notes += reader.lines(tree.title)
    return _ordered(YoloData(splits, reader.names(), notes), tree.title, classes)


def _ordered(said: YoloData, title: str, classes: Sequence[str]) -> YoloData:
    """Return the same objects under the classes of a model, or under those that occur.

    Raises:
        DataError: an object of a class that is not among those of the model.
    """
    rows = (row for own in said.splits.values() for objects in own.objects for row in objects)
    used = [said.classes[number] for number in sorted({row[0] for row in rows})]
    order = tuple(classes) or tuple(used)
    if unknown := [name for name in used if name not in order]:
        raise DataError(
            f"{title} has an object of class {unknown[0]!r}, which is not among those known, "
            f"{some(order)}: leave it out"
        )
    place = {name: number for number, name in enumerate(order)}
    splits = {
        split: YoloSplit(
            own.paths,
            [[(place[said.classes[row[0]]], *row[1:]) for row in each] for each in own.objects],
        )
        for split, own in said.splits.items()
    }
    return YoloData(splits, order, said.notes)


def _is_yolo(tree: FileTree) -> bool:
    """Return whether a folder has a data.yaml of YOLO, or texts for its images."""
    if any(_names_splits(tree, name) for name in _yaml_files(tree)):
        return True
    if _image_folders(tree):
        return True
    stems = {_stem(name) for name in tree.listing.images}
    texts = [name for name in tree.listing.beside if name.endswith(".txt") and _stem(name) in stems]
    return any(name in tree.listing.beside for name in NAME_FILES) and bool(texts)


def _stem(name: str) -> str:
    return name.rpartition(".")[0]


def _yaml_files(tree: FileTree) -> list[str]:
    """Return the names of the files in a folder that may be a data.yaml, the usual name first."""
    names = sorted(name for name in tree.listing.beside if suffix_of(name) in YAML_ENDINGS)
    return sorted(names, key=lambda name: name.lower() not in ("data.yaml", "dataset.yaml"))


def _names_splits(tree: FileTree, name: str) -> bool:
    """Return whether a file has the keys of a data.yaml; other files may be in any format."""
    try:
        text = tree.read_text(name, LARGEST_YAML)
    except DataError:
        return False
    return all(re.search(rf"^{key}\s*:", text, re.MULTILINE) for key in ("train", "names"))


def _image_folders(tree: FileTree) -> dict[str, str]:
    """Return the folders of images that have one of texts in its place, by path."""
    found = dict[str, str]()
    for path in tree.below():
        parts = path.split("/")[:-1]
        if IMAGES not in parts or not tree.listings[tree.path + path].images:
            continue
        other = _label_folder(path)
        listing = tree.listings.get(tree.path + other)
        if listing is not None and any(name.endswith(".txt") for name in listing.beside):
            found[path] = other
    return found


def _label_folder(path: str) -> str:
    """Return the folder of the texts of a folder of images: `labels` for its last `images`."""
    parts = path.split("/")
    places = [number for number, part in enumerate(parts) if part == IMAGES]
    if places:
        parts[places[-1]] = LABELS
    return "/".join(parts)


# data.yaml


def _read_yaml(tree: FileTree, named: str) -> YoloFile:
    """Return what the data.yaml of a folder says, if there is one."""
    names = [named] if named else [name for name in _yaml_files(tree) if _names_splits(tree, name)]
    if not names:
        return YoloFile()
    title = tree.place.title(tree.path + names[0])
    try:
        import yaml  # type: ignore[import-untyped]
    except ImportError:
        raise DataError(f"reading {title} needs PyYAML: pip install pyyaml") from None
    text = tree.read_text(names[0], LARGEST_YAML)
    try:
        # texts, lists and dictionaries alone: a class named `no` is not False
        said = yaml.load(text, Loader=yaml.BaseLoader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"{title} is not YAML: {reason}") from None
    if not isinstance(said, dict):
        raise DataError(f"{title} is not a data.yaml of YOLO, with train, val and names")
    splits = dict[str, list[str]]()
    for word, split in SPLIT_OF.items():
        value = said.get(word)
        places = [value] if isinstance(value, str) else value or []
        if not isinstance(places, list) or not all(isinstance(each, str) for each in places):
            raise DataError(f"{title}: {word} must be a folder, or a list of folders")
        if own := [each for each in places if each.strip() and each not in ("null", "~")]:
            splits.setdefault(split, own)
    base = said.get("path")
    return YoloFile(
        title,
        splits,
        _names_in(said.get("names"), title),
        base if isinstance(base, str) else "",
        "kpt_shape" in said,
    )


def _names_in(said: Any, title: str) -> Classes:
    """Return the names in a data.yaml: a list, or a dictionary by number."""
    if isinstance(said, dict):
        numbers = [str(number) for number in range(len(said))]
        if {*said} != {*numbers}:
            raise DataError(f"{title}: names must have the numbers 0 to {len(said) - 1:,}")
        said = [said[number] for number in numbers]
    if said in (None, ""):
        return ()
    said = said if isinstance(said, list) else [""]
    names = [spell_name(each) if isinstance(each, str) else "" for each in said]
    if not all(names) or len({*names}) < len(names):
        raise DataError(f"{title}: names must be different texts, one for each class")
    return tuple(names)


def _read_names(tree: FileTree, file: YoloFile) -> Classes:
    """Return the names of the classes; none where no file has them."""
    if file.classes:
        return file.classes
    for name in NAME_FILES:
        if name in tree.listing.beside:
            title = tree.place.title(tree.path + name)
            lines = tree.read_text(name, LARGEST_YAML).splitlines()
            return _names_in([line for line in lines if line.strip()], title)
    return ()


# Images


def _find_folders(
    tree: FileTree, file: YoloFile, root: Path, notes: list[str]
) -> dict[str, list[str]]:
    """Return the images of each split that a data.yaml names, by paths in the tree.

    Its `path` is often that of another machine, and Roboflow writes `../train/images`: what is not
    there is looked for beside the file. Nothing outside of the folder is read.
    """
    found = dict[str, list[str]]()
    missing = list[str]()
    for split, places in file.splits.items():
        for place in places:
            own = _images_at(tree, place, file.base, root)
            found.setdefault(split, []).extend(own)
            missing += [] if own else [f"{split}: {place}"]
    found = {split: list(dict.fromkeys(found[split])) for split in SPLIT_WORDS if found.get(split)}
    if missing and found:
        notes.append(f"{file.title} names images that are not in {tree.title}: {some(missing)}")
    return found


def _images_at(tree: FileTree, place: str, base: str, root: Path) -> list[str]:
    """Return the images at a place that a data.yaml names: a folder, or a list of images."""
    parts = [part for part in place.replace("\\", "/").split("/") if part not in ("", ".")]
    plain = "/".join(part for part in parts if part != "..")
    inner = "/".join(part for part in base.replace("\\", "/").split("/") if part not in ("", "."))
    folder = tree.path.rstrip("/")
    forms = [f"{inner}/{plain}".strip("/"), plain]
    for number in range(1, len(parts)):  # an absolute path: its end may be here
        forms.append("/".join(parts[number:]))
    for form in dict.fromkeys(forms):
        if f"{tree.path}{form}/" in tree.listings:
            inside = tree.folder(form)
            return [f"{form}/{name}" for name in inside.pictures()[0]]
        outer, _, name = form.rpartition("/")
        listing = tree.listings.get(f"{tree.path}{outer}/" if outer else tree.path)
        if listing is not None and name in listing.beside and suffix_of(name) == ".txt":
            text = read_text(root / folder / form, LARGEST_LIST)
            return _list_images(tree, text.splitlines(), outer)
    return []


def _list_images(tree: FileTree, lines: Sequence[str], folder: str) -> list[str]:
    """Return the images of the tree that a list names, relative to its folder, or absolute."""
    there = {*tree.pictures()[0]}
    found = list[str]()
    for line in filter(str.strip, lines):
        parts = line.strip().replace("\\", "/").split("/")
        whole = [part for part in parts if part not in ("", ".", "..")]
        ends = ["/".join(whole[number:]) for number in range(len(whole))]
        forms = [f"{folder}/{ends[0]}".strip("/"), *ends] if ends else []
        found += [form for form in forms if form in there][:1]
    return found


def _usual_folders(tree: FileTree) -> dict[str, list[str]]:
    """Return the images of each split by the names of their folders; of one split, as `train`."""
    found = dict[str, list[str]]()
    pairs = _image_folders(tree)
    for path in sorted(pairs):
        parts = [part.lower() for part in path.split("/")[:-1]]
        split = next((SPLIT_OF[part] for part in parts if part in SPLIT_OF), "train")
        names = sorted(tree.listings[tree.path + path].images)
        found.setdefault(split, []).extend(path + name for name in names)
    if not pairs:
        found = {"train": tree.pictures()[0]}
    return {split: found[split] for split in SPLIT_WORDS if found.get(split)}


# Objects


class LabelReader:
    """A reader of the texts of images, which counts what is odd.

    Attributes:
        classes: names; empty where they are numbers
        has_points: whether objects have key points behind their boxes
        counts: how many of each kind of what is odd there are
        examples: some of each
        most: the largest number of a class
    """

    def __init__(self, classes: Classes, has_points: bool) -> None:
        """Begin with nothing read."""
        self.classes = classes
        self.has_points = has_points
        self.counts = Counter[str]()
        self.examples = dict[str, list[str]]()
        self.most = -1

    def read(self, tree: FileTree, images: Sequence[str]) -> YoloSplit:
        """Return the images of a split with their objects.

        Raises:
            DataError: a text that is none of YOLO's, or an object of an unknown class.
        """
        root = Path(tree.title)
        texts = dict[str, set[str]]()
        found = YoloSplit([], [])
        for path in images:
            folder, _, name = path.rpartition("/")
            other = f"{_stem(name)}.txt"
            places = [_label_folder(f"{folder}/") if folder else "", f"{folder}/" if folder else ""]
            label = ""
            for place in dict.fromkeys(places):
                if place not in texts:
                    listing = tree.listings.get(tree.path + place)
                    texts[place] = {*listing.beside} if listing is not None else set()
                label = label or (place + other if other in texts[place] else "")
            if not label:
                self._count("images without a .txt, taken to have no objects", path)
            found.paths.append(str(root / path))
            found.objects.append(self._read_objects(root / label) if label else [])
        return found

    def _count(self, kind: str, example: str) -> None:
        self.counts[kind] += 1
        if len(examples := self.examples.setdefault(kind, [])) < 4:
            examples.append(example)

    def _read_objects(self, file: Path) -> list[Object]:
        """Return the objects in a text."""
        lines = read_text(file, LARGEST_TEXT).splitlines()
        if len(lines) > MOST_OBJECTS:
            raise DataError(f"{file} has {len(lines):,} lines: at most {MOST_OBJECTS:,} are read")
        found = dict[Object, None]()
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            place = f"{file} line {number}"
            own = self._read_object(line.split(), place)
            if own in found:
                self._count("boxes that are there twice", place)
            elif own is not None:
                found[own] = None
        return [*found]

    def _read_object(self, words: Sequence[str], place: str) -> Object | None:
        """Return the object in a line; None where its box is empty or outside of the image.

        Raises:
            DataError: other numbers than those of a box or a polygon, or an unknown class.
        """
        try:
            numbers = [float(word) for word in words]
        except ValueError:
            numbers = []
        kind = numbers[0] if numbers else math.nan
        is_polygon = len(numbers) >= 7 and len(numbers) % 2 == 1 and not self.has_points
        is_box = len(numbers) == 5 or (self.has_points and len(numbers) > 5)
        if not (is_box or is_polygon) or not kind.is_integer() or not 0 <= kind < 2**31:
            raise DataError(f"{place} is not `class x y width height`, in shares of the sides")
        if self.classes and kind >= len(self.classes):
            raise DataError(
                f"{place} has an object of class {kind:.0f}, and there are names of "
                f"{len(self.classes):,} classes, 0 to {len(self.classes) - 1:,}"
            )
        if kind >= MOST_CLASSES:
            raise DataError(f"{place} has class {kind:.0f}: at most {MOST_CLASSES:,} are read")
        self.most = max(self.most, int(kind))
        if is_box:
            x, y, width, height = numbers[1:5]
            edges = [x - width / 2, y - height / 2, x + width / 2, y + height / 2]
        else:
            self._count("polygons, taken as the boxes around them", place)
            across = numbers[1::2]
            down = numbers[2::2]
            edges = [min(across), min(down), max(across), max(down)]
        is_inside = all(-SLACK <= edge <= 1 + SLACK for edge in edges)  # NaN is not
        left, top, right, bottom = (min(max(edge, 0.0), 1.0) for edge in edges)
        if not is_inside or left >= right or top >= bottom:
            self._count("boxes skipped, empty or outside of their image", place)
            return None
        return int(kind), left, top, right, bottom

    def names(self) -> Classes:
        """Return the names of the classes; numbers where no file names them."""
        return self.classes or tuple(str(number) for number in range(self.most + 1))

    def lines(self, title: str) -> list[str]:
        """Return lines on what was odd."""
        lines = [
            f"{title}: {count:,} {kind}: {some(self.examples[kind])}"
            for kind, count in self.counts.items()
        ]
        if not self.classes:
            lines.append(
                f"{title} names no classes, so that they are numbers, 0 to {self.most}: a "
                "classes.txt with a name in each line names them"
            )
        return lines
