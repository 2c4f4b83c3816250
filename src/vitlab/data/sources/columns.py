"""Columns of a list of images: which hold the path, the label and the split; and reading labels."""

import itertools
import os
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitlab.data.decode.formats import SUFFIXES
from vitlab.data.labels import Label, UnlabeledError
from vitlab.data.settings import Columns
from vitlab.data.sources.folders import visible
from vitlab.errors import DataError
from vitlab.options import nearest

Row = dict[str, Any]
Lines = Sequence[tuple[str, Row]]
"""Rows, each with its place, such as `line 3`."""
PATHS = (
    "path", "file", "file_name", "filename", "image", "image_path", "img_path", "filepath",
    "image_name", "image_id", "img", "id", "name",
)  # fmt: skip
LABELS = (
    "labels", "label", "class", "class_name", "classname", "label_name", "category", "target",
    "targets", "tag", "tags", "species", "breed", "diagnosis", "dx",
)  # fmt: skip
SPLITS = ("split", "subset", "partition", "phase", "set")
FOLDS = ("fold", "kfold", "folds")
SEPARATOR = "|"  # of several labels in a cell
SAMPLE = 5  # rows whose images are looked for


@dataclass(frozen=True)
class Places:
    """The place of a list's images.

    Attributes:
        root: the folder that the paths are relative to
        ending: what the list leaves out of every path
    """

    root: Path
    ending: str = ""

    def path(self, cell: object) -> str:
        """Return the path in a cell, with its ending; empty if there is none."""
        text = str(cell) if isinstance(cell, str | int) else ""
        return text + self.ending if text.strip() and "\0" not in text else ""

    def has(self, path: str) -> bool:
        """Return whether a path is that of a file."""
        return bool(path) and os.path.isfile(self.root / path)  # noqa: PTH113  however long it is


def check_known_columns(names: Collection[str], title: object, known: Sequence[str]) -> None:
    """Refuse columns that a list or a table does not have.

    Raises:
        DataError: the first of them.
    """
    for name in known:
        if name and name not in names:
            raise DataError(f"{title} has no column {name!r}: {nearest(name, names)}")


def candidates(file: Path, known: Columns) -> list[Places]:
    """Return where the images of a list may be, the most usual place first.

    Raises:
        DataError: the folder that the user names does not exist.
    """
    if known.images:
        roots = [Path(known.images).expanduser()]
        if not roots[0].is_dir():
            raise DataError(f"--images {known.images}: no such folder")
    else:
        roots = [file.parent, *visible(file.parent)]
    return [Places(root, ending) for ending in ("", *sorted(SUFFIXES)) for root in roots]


def find_paths(
    names: Sequence[str], rows: Sequence[Row], file: Path, known: Columns
) -> tuple[str, Places]:
    """Return the column of the paths, and where they are: the first place that has the first rows.

    Args:
        names: of the columns
        rows: all rows
        file: the list
        known: what the user says of them

    Raises:
        DataError: an unknown column, or none that can be the one of the paths.
    """
    check_known_columns(names, file, (known.path_column,))
    rows = rows[:SAMPLE]
    usual = named(names, PATHS)
    columns = [known.path_column] if known.path_column else [*usual, *names]
    places = candidates(file, known)
    for enough in (all, any):  # any: the missing ones are reported
        for where, name in itertools.product(places, columns):
            if rows and enough(where.has(where.path(row.get(name))) for row in rows):
                return name, where
    if known.path_column or usual:
        return columns[0], places[0]
    raise DataError(
        f"{file} has no column of paths among {', '.join(names)[:200]}: name it with "
        "--path-column, and the folder of the images with --images"
    )


def named(names: Sequence[str], usual: Sequence[str]) -> list[str]:
    """Return the columns with usual names, the most usual first."""
    own = {name.strip().lower(): name for name in reversed(names)}
    return [own[each] for each in usual if each in own]


def read_labels(
    lines: Lines, others: list[str], file: Path, known: Columns
) -> tuple[Sequence[str], list[Label]]:
    """Return the columns of the labels, and the label of each row: one name, or several.

    Args:
        lines: rows, each with its place, such as `line 3`
        others: the columns that hold neither images, splits nor folds
        file: the list
        known: what the user says of the columns

    Raises:
        DataError: the columns cannot be told; no label, or an empty one.
    """
    columns = _label_columns(lines, others, file, known)
    if len(columns) > 1:  # each is a class
        hot = [tuple(name for name in columns if float(row[name]) == 1) for _, row in lines]
        single = all(len(own) == 1 for own in hot)
        return columns, [own[0] if single else own for own in hot]
    cells = [row.get(columns[0], row.get("label")) for _, row in lines]
    texts = [cell for cell in cells if isinstance(cell, str)]
    separator = known.label_separator or _separator(columns[0], texts)
    return columns, [
        label_in(cell, separator, f"{file} {place}")
        for cell, (place, _) in zip(cells, lines, strict=True)
    ]


def _label_columns(lines: Lines, others: list[str], file: Path, known: Columns) -> Sequence[str]:
    """Return the column of the labels, or several of 0 and 1, each of which is a class."""
    asked = known.label_column
    binary = [name for name in asked or others if _binary(lines, name)]
    if len(asked) > 1 and len(binary) < len(asked):
        raise DataError(
            f"{file}: several label columns must hold 0 and 1 only, a class each: "
            f"{', '.join(asked)} do not"
        )
    if found := asked or named(others, LABELS)[:1]:
        return found
    if binary == others or len(others) == 1:
        if others:
            return others
        raise UnlabeledError(
            f"{file} has no column of labels beside its paths: add one, or name a list with labels"
        )
    raise DataError(
        f"{file} does not say which of {', '.join(others)[:200]} is the label: name it with "
        "--label-column"
    )


def _binary(lines: Lines, name: str) -> bool:
    return all(str(row.get(name)).strip() in ("0", "1", "0.0", "1.0") for _, row in lines)


def _separator(column: str, texts: Sequence[str]) -> str:
    """Return the separator of labels in the cells of a column; empty for one label per cell."""
    if any(SEPARATOR in each for each in texts):
        return SEPARATOR
    numbers = all(re.fullmatch(r"\s*\d+(\s+\d+)*\s*", each) for each in texts)
    if numbers and any(len(each.split()) > 1 for each in texts):
        return " "
    return SEPARATOR if column == "labels" else ""


def label_in(cell: object, separator: str, where: str) -> Label:
    """Return the label in a cell, or with a separator the labels.

    Raises:
        DataError: no label, or an empty one.
    """
    if separator and isinstance(cell, str):
        return tuple(part.strip() for part in cell.split(separator) if part.strip())
    found = cell if isinstance(cell, list) else [cell]
    if not all(isinstance(each, str | int) and not isinstance(each, bool) for each in found):
        raise DataError(f"{where} has no label, or one that is neither text nor a whole number")
    texts = tuple(str(each).strip() for each in found)
    if not all(texts):
        raise DataError(f"{where} has an empty label")
    return texts if isinstance(cell, list) else texts[0]
