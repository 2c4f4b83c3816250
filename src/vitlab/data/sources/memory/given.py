"""From an object that a program holds to splits, as `open_data` opens what a user names."""

from collections.abc import Mapping, Sequence, Sized
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor
from torch.utils.data import IterableDataset

from vitlab.data.labels import SingleLabels
from vitlab.data.pictures.pictures import Picture
from vitlab.data.sources.inside import Inside
from vitlab.data.sources.memory.pairs import (
    WANTED,
    are_arrays,
    read_arrays,
    read_items,
    read_pairs,
)
from vitlab.data.sources.memory.part import Part, images_source
from vitlab.data.sources.memory.records import read_records, rows_in
from vitlab.data.sources.protocol import Source, Subset
from vitlab.data.sources.splits import NAMES, Request, Splits, hold_out, join
from vitlab.data.sources.tables.arrow import table
from vitlab.errors import DataError

Given = str | Path | Sized
"""DATA as for training, or labeled images in memory.

These are (image, label) pairs, a data set of PyTorch that gives them, rows of a table (a DataFrame
or a list of dictionaries), a `datasets.Dataset`, or two arrays of all images and all labels. A
dictionary holds one of them for each split, and may name the classes that numbers index:
`{"train": …, "test": …, "classes": ["cat", "dog"]}`.
"""

TRUSTED = Inside((Path(),), anywhere=True)  # the program itself names these files
CLASSES = "classes"  # key of a dictionary
ALONE = (str, Path, bytes, Image.Image, np.ndarray, Tensor)  # what an image without label is


def title_of(data: Given) -> str:
    """Return what to call data in a message."""
    return str(data) if isinstance(data, str | Path) else "the given data"


def open_given(data: Sized, request: Request) -> Splits:
    """Open data in memory, split.

    Raises:
        DataError: not labeled images, or unknown splits.
    """
    parts, names = parts_in(data)
    sources: list[Source] = []
    notes: list[str] = []
    for split, part in parts.items():
        follow = sources[0].classes if sources else request.classes
        title = request.data if len(parts) == 1 else f"{request.data} ({split})"
        read = _read(part, title, request, names)
        if not isinstance(read, Part):
            sources.append(table(read, title, TRUSTED, follow, request.columns))
            continue
        notes += read.notes
        sources.append(read.indexed(title, follow))
        if len(parts) == 1 and len(set(read.splits)) > 1 and "train" in read.splits:
            sources = _by_split(sources[0], read.splits)
    if len(sources) == 1:
        return hold_out(sources[0], request.test_fraction, notes)
    splits = join(sources[0], sources[1:], request)
    return Splits(splits.train, splits.test, splits.validation, notes=notes)


def unlabeled_images(data: object) -> Source | None:
    """Return images without labels as a source without classes; None for anything else.

    Raises:
        DataError: files that do not exist.
    """
    if are_arrays(data):
        return None
    if isinstance(data, np.ndarray | Tensor):
        pictures: list[Picture] = list(data) if data.ndim == 4 else [data]
    elif isinstance(data, list | tuple) and all(isinstance(each, ALONE) for each in data):
        pictures = list(data)
    else:
        return None
    make = images_source(pictures, "the images given")
    return make(SingleLabels.blank(len(pictures), 0), ())


def parts_in(data: Sized) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the object of each split, training first, and the names of the classes if given."""
    if not isinstance(data, Mapping):
        return {"train": data}, ()
    given = {str(key): value for key, value in data.items()}
    names = tuple(map(str, given.pop(CLASSES, ())))
    found: dict[str, Any] = {}
    for split, spellings in NAMES.items():
        for key in [key for key in given if key.lower() in spellings][:1]:
            found[split] = given.pop(key)
    if given:
        raise DataError(
            f"unknown key {next(iter(given))!r} of the dictionary of splits: choose from train, "
            f"validation, test and {CLASSES}"
        )
    if len(found) > 1 and "train" not in found:
        raise DataError(f"the data has {' and '.join(found)}, but no train: give one of them alone")
    if not found:
        raise DataError(f"the dictionary has no splits: {WANTED}")
    return found, names


def _read(data: Any, title: str, request: Request, names: tuple[str, ...]) -> Part | Any:
    """Return a split as a part; a `datasets.Dataset` as it is."""
    if type(data).__module__.partition(".")[0] == "datasets":
        if not hasattr(data, "__len__"):
            raise DataError(f"{title} is a stream: load it without streaming=True")
        return data
    if (rows := rows_in(data)) is not None:
        return read_records(rows, title, request.columns, names)
    if are_arrays(data):
        images, labels = data
        return read_arrays(images, labels, title, names)
    if isinstance(data, Sequence) and not isinstance(data, str | bytes):
        if not data:
            raise DataError(f"{title} has no images")
        return read_pairs(data, title, names)
    if isinstance(data, IterableDataset) or not (
        hasattr(data, "__len__") and hasattr(data, "__getitem__")
    ):
        raise DataError(f"{title} is of type {type(data).__name__}, without a length: {WANTED}")
    return read_items(data, title, names)


def _by_split(whole: Source, splits: Sequence[str]) -> list[Source]:
    """Return the images of each split that the rows name, training first."""
    named = np.array(splits)
    found = [np.flatnonzero(named == split) for split in NAMES]
    return [Subset(whole, own) for own in found if len(own)]
