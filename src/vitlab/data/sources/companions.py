"""Files of labels beside images, as other tools export them: one CSV of classes, or one JSON.

    train/1_jpg.rf.a8f.jpg, train/_classes.csv    Roboflow: a line of 0 and 1 for each image, in
                                                  train/, valid/ and test/, or in one folder
    data/1.jpg, labels.json                       FiftyOne: {"classes": […], "labels": {"1": 0}},
                                                  in one folder, or in one for each split

Images that such a file does not name are left out, and counted.
"""

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vitlab.data.class_names import spell_name
from vitlab.data.sources.cell_table import MOST_COLUMNS, CellTable, open_rows
from vitlab.data.sources.file_tree import FileTree
from vitlab.data.sources.paths import some
from vitlab.data.sources.request import Found, Part, Request, blank
from vitlab.data.split_words import SPLIT_OF, SPLIT_WORDS
from vitlab.data.target import Classes
from vitlab.errors import DataError
from vitlab.units import counted

ONE_HOT = "_classes.csv"
LABELS = "labels.json"
IMAGES = "data"  # the folder of FiftyOne's images
LARGEST = 2**30  # bytes of such a file


@dataclass(frozen=True)
class LabelFile:
    """What one such file says.

    Attributes:
        folder: has the images
        title: of the file
        labels: of each image, by its name in the folder
        classes: names, in an order that numbers among the labels index; None where there are none
        split: that it is for; empty if it does not say
        place: where an image is named
    """

    folder: FileTree
    title: str
    labels: Mapping[str, Any]
    classes: Classes | None
    split: str = ""
    place: Callable[[str], str] = "of {}".format


def _places(tree: FileTree, test: Callable[[FileTree], bool]) -> dict[str, FileTree]:
    """Return the folders that pass a test, by split: this one, or those named as splits."""
    if test(tree):
        return {"": tree}
    inside = {SPLIT_OF.get(each.name.lower(), ""): each for each in tree.folders()}
    return {
        split: inside[split] for split in SPLIT_WORDS if split in inside and test(inside[split])
    }


def _is_one_hot(tree: FileTree) -> bool:
    return ONE_HOT in tree.listing.beside


def _has_labels(tree: FileTree) -> bool:
    return LABELS in tree.listing.beside and IMAGES in tree.listing.folders


def has_companions(tree: FileTree) -> bool:
    """Return whether a folder, or its splits, have a file of labels beside their images."""
    return bool(_places(tree, _is_one_hot) or _places(tree, _has_labels))


def open_companions(tree: FileTree, request: Request) -> Found | None:
    """Open images by a file of labels beside them; None where there is none.

    Raises:
        DataError: a file that cannot be read, or names images that are not there.
    """
    if places := _places(tree, _is_one_hot):
        files = _only_one_each([_read_one_hot(folder, split) for split, folder in places.items()])
    elif places := _places(tree, _has_labels):
        files = [_read_labels(folder, split) for split, folder in places.items()]
    else:
        return None
    if "train" not in places and len(places) > 1:
        names = " and ".join(each.name for each in places.values())
        raise DataError(
            f"{tree.title} has {names}, but no train folder: name one of them as the data"
        )
    parts = list[Part]()
    notes = list[str]()
    for each in files:
        found = _open_labeled(each, request)
        parts += found.parts
        notes += found.notes
    return Found(parts, notes)


def _open_labeled(file: LabelFile, request: Request) -> Found:
    """Return the images of a file of labels."""
    own, _ = file.folder.pictures()
    names = _match_names(own, file)
    notes = list[str]()
    if left := len({*own} - {*names.values()}):
        notes.append(
            f"left out {counted(left, 'image')} of {file.folder.title} not in {file.title}"
        )
    rows = list(names)
    bare = file.folder.source([names[row] for row in rows], blank(len(rows)), ())
    cells = {"image": rows, "label": [file.labels[row] for row in rows]}
    table = CellTable(
        file.title,
        ("image", "label"),
        cells.__getitem__,
        lambda row: f"image {rows[row]}",
        {"label": file.classes} if file.classes is not None else {},
        split=file.split,
    )
    found = open_rows(table, "image", bare, request)
    return Found(found.parts, [*notes, *found.notes])


def _match_names(own: Sequence[str], file: LabelFile) -> dict[str, str]:
    """Return the path of each image that a file names: with its ending, or without.

    Raises:
        DataError: some are not there, or two images have the name.
    """
    whole = {*own}
    stems = dict[str, list[str]]()
    for path in own:
        stems.setdefault(path.rpartition(".")[0], []).append(path)
    found = dict[str, str]()
    missing = list[str]()
    for name in file.labels:
        places = [name] if name in whole else stems.get(name, [])
        if len(places) > 1:
            raise DataError(
                f"{file.title} names {name}, which may be {places[0]} or {places[1]}: rename one"
            )
        if places:
            found[name] = places[0]
        else:
            missing.append(name)
    if missing:
        raise DataError(
            f"{len(missing):,} of the {len(file.labels):,} images that {file.title} names do not "
            f"exist in {file.folder.title}: {some(missing)}"
        )
    return found


# Roboflow


def _read_one_hot(tree: FileTree, split: str) -> LabelFile:
    """Return what a CSV says that has the name of an image, then 0 or 1 for each class."""
    title = tree.place.title(tree.path + ONE_HOT)
    text = tree.read_text(ONE_HOT, LARGEST)
    try:
        lines = [row for row in csv.reader(io.StringIO(text, newline="")) if any(row)]
    except csv.Error as error:
        raise DataError(f"cannot read {title}: {error}") from None
    head = [spell_name(cell) for cell in lines[0]] if lines else []
    classes = tuple(head[1:])
    if not classes or not all(classes) or len({*classes}) < len(classes):
        raise DataError(f"{title}: its first line must be filename, then a name for each class")
    if len(classes) > MOST_COLUMNS:
        raise DataError(f"{title} has {len(head):,} columns: at most {MOST_COLUMNS:,} are read")
    labels = dict[str, tuple[str, ...]]()
    for number, row in enumerate(lines[1:], 2):
        name = row[0].strip()
        flags = [cell.strip() for cell in row[1:]]
        if len(flags) != len(classes) or not {*flags} <= {"0", "1"}:
            raise DataError(f"{title} row {number} is not a name and {len(classes)} times 0 or 1")
        own = tuple(each for each, flag in zip(classes, flags, strict=True) if flag == "1")
        if labels.setdefault(name, own) != own:
            raise DataError(f"{title} names {name} twice, with different classes")
    return LabelFile(tree, title, labels, classes, split)


def _only_one_each(files: Sequence[LabelFile]) -> list[LabelFile]:
    """Return files whose images have one class each, if every image of all files has exactly one.

    All have the classes of all, those of the first file first.
    """
    classes = tuple(dict.fromkeys(name for file in files for name in file.classes or ()))
    single = all(len(own) == 1 for file in files for own in file.labels.values())
    return [
        LabelFile(
            file.folder,
            file.title,
            {name: own[0] for name, own in file.labels.items()} if single else file.labels,
            classes,
            file.split,
        )
        for file in files
    ]


# FiftyOne


def _read_labels(tree: FileTree, split: str) -> LabelFile:
    """Return what FiftyOne's JSON says: a number, a name, several or none for each image."""
    title = tree.place.title(tree.path + LABELS)
    try:
        said = json.loads(tree.read_text(LABELS, LARGEST))
    except (ValueError, RecursionError):
        raise DataError(f"{title} is not JSON") from None
    labels = said.get("labels") if isinstance(said, dict) else None
    if not isinstance(labels, dict) or not labels:
        raise DataError(f'{title} is not {{"classes": […], "labels": {{"image": …}}}}')
    known = said.get("classes")
    if known is not None and not (
        isinstance(known, list) and all(isinstance(each, str) for each in known)
    ):
        raise DataError(f"{title}: classes must be a list of names, or null")
    cells = {name: _label_in(value) for name, value in labels.items()}
    return LabelFile(tree.folder(IMAGES), title, cells, tuple(known) if known else None, split)


def _label_in(value: Any) -> Any:
    """Return a label of FiftyOne's, or several: each may have a confidence beside it."""
    if isinstance(value, list):
        return [each.get("label") if isinstance(each, dict) else each for each in value]
    return value.get("label") if isinstance(value, dict) else value
