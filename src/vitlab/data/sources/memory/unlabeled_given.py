"""Images that a program holds, whatever their labels."""

from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitlab.data.labels import SingleLabels
from vitlab.data.pictures.pictures import Picture
from vitlab.data.settings import Columns
from vitlab.data.sources.listed.columns import find_paths
from vitlab.data.sources.listed.lists import path_of
from vitlab.data.sources.memory.given import TRUSTED, parts_in, unlabeled_images
from vitlab.data.sources.memory.pairs import Items, are_arrays
from vitlab.data.sources.memory.part import images_source
from vitlab.data.sources.memory.records import picture_in, rows_in
from vitlab.data.sources.protocol import Source
from vitlab.data.sources.tables.arrow import unlabeled
from vitlab.errors import DataError

WANTED = (
    "give images, paths, an array of images, rows of a table, a datasets.Dataset, or a dictionary "
    "of splits"
)


@dataclass(frozen=True)
class Bare:
    """A data set whose items are images, as one whose items are (image, label)."""

    items: Any

    def __getitem__(self, index: int) -> tuple[Any]:
        """Return an item as a tuple that begins with the image."""
        found = self.items[index]
        return (found[0] if isinstance(found, tuple | list) else found,)


def given_images(data: Sized, title: str, columns: Columns) -> dict[str, Source]:
    """Return the images of data in memory by split; labels that come with them are left alone.

    Args:
        data: images, or what `vitlab.train` takes for labeled ones
        title: what to call the data in an error
        columns: which column of a table holds the images

    Raises:
        DataError: no images.
    """
    if not isinstance(data, Mapping):
        return {"all": _source(data, title, columns)}
    parts, _ = parts_in(data)
    return {name: _source(part, f"{title} ({name})", columns) for name, part in parts.items()}


def _source(data: Any, title: str, columns: Columns) -> Source:
    if are_arrays(data):
        data = data[0]
    if hasattr(data, "__len__") and not len(data):
        raise DataError(f"{title} has no images")
    if (found := unlabeled_images(data)) is not None:
        return found
    if type(data).__module__.partition(".")[0] == "datasets":
        if not hasattr(data, "__len__"):
            raise DataError(f"{title} is a stream: load it without streaming=True")
        return unlabeled(data, title, TRUSTED, (), columns.path_column)
    if (rows := rows_in(data)) is not None:
        return _of_rows(rows, title, columns)
    if isinstance(data, list | tuple) and all(isinstance(each, tuple | list) for each in data):
        return _pictures([each[0] for each in data if each], title)
    if not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
        raise DataError(f"{title} is of type {type(data).__name__}, without a length: {WANTED}")
    return Items(Bare(data), SingleLabels.blank(len(data), 0), ())


def _of_rows(rows: Sequence[dict[str, Any]], title: str, columns: Columns) -> Source:
    """Return the images, or the files, that a column of a table holds."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    held = (name for name in names if picture_in(rows[0].get(name)) is not None)
    image = columns.path_column or next(held, "")
    if image and picture_in(rows[0].get(image)) is not None:
        return _pictures([picture_in(row.get(image)) for row in rows], title)
    column, places = find_paths(names, rows, Path(title), columns)
    numbered = ((f"{title} row {number}", row) for number, row in enumerate(rows))
    return _pictures(
        [places.root / path_of(row, column, places, where) for where, row in numbered], title
    )


def _pictures(pictures: Sequence[Picture | None], title: str) -> Source:
    found = [each for each in pictures if each is not None]
    if len(found) < len(pictures):
        raise DataError(f"{title} has {len(pictures) - len(found):,} rows without an image")
    return images_source(found, title)(SingleLabels.blank(len(found), 0), ())
