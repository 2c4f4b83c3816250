"""Lists of images: CSV or JSON Lines, with a path and its label or labels per line.

    path,label,split            {"path": "a.jpg", "label": "cat"}
    a.jpg,cat,train             {"path": "b.jpg", "labels": ["dog", "night"], "split": "test"}

Other names of columns, several columns of 0 and 1, and files without a first line of names are
recognized. Paths are relative to the list's folder, or to a folder in it. A column
`labels` holds any number of labels, in CSV separated by `|`; every image then has, or does not
have, each class.
"""

import csv
import io
import itertools
import json
import math
import os
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from vitlab.data.decode.formats import SUFFIXES as IMAGES
from vitlab.data.labels import Label, UnlabeledError, index_labels
from vitlab.data.settings import Columns
from vitlab.data.sources.folders import LabeledFiles, image_paths, visible
from vitlab.data.sources.paths import Inside, read_text, some
from vitlab.data.sources.request import NAMES, SPLIT_OF, Found, Part, Request, labeled
from vitlab.data.sources.source import Source, Subset, grouped, numbered
from vitlab.errors import DataError
from vitlab.options import nearest

SUFFIXES = {".csv", ".tsv", ".jsonl"}
METADATA = ("metadata.csv", "metadata.jsonl")  # in a folder of images, as Hugging Face has it
HEAD = 65_536  # bytes of a first line
DELIMITERS = ",;\t"
LARGEST = 2**30  # bytes of a list: more than ten million lines
PLAIN = ("path", "file_name", "label", "labels")  # columns whose names say what they hold

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


def open_list(request: Request) -> Found | None:
    """Open a list of paths; None for other data."""
    file = _list_file(request.path)
    if file is None:
        return None
    names, lines = read_rows(file, request.columns)
    column, places = find_paths(names, lines, file, request.columns)
    paths = paths_of(lines, column, places, file)
    check_files(paths, places, file, request.columns)
    found = labeled_rows(lines, names, column, file, request, image_paths(paths, places.root))
    return Found(found.parts, [*_place_notes(places, file), *found.notes])


def labeled_rows(
    lines: Lines, names: Sequence[str], column: str, file: Path, request: Request, bare: Source
) -> Found:
    """Return the images of rows by their split, with the labels that other columns give them.

    Args:
        lines: rows, each with its place, such as `line 3`
        names: of the columns
        column: of the images or their paths
        file: the list, or what to call rows in memory
        request: what is wanted
        bare: the images, without labels, a row each

    Raises:
        UnlabeledError: labels are required, and there are none.
        DataError: a row without a label, an unknown column, an unknown split.
    """
    if request.labels == "ignored":
        return Found([Part(bare)])
    known = request.columns
    check_known_columns(names, file, (*known.label_column, known.group_column))
    splits, notes = row_splits(lines, names, column, file)
    taken = {column, *named(names, SPLITS), *named(names, FOLDS)}

    def label() -> Source:
        if request.labels == "numbers":
            asked = known.label_column
            return numbered(bare, [[row.get(name) for name in asked] for _, row in lines], asked)
        others = [name for name in names if name not in taken]
        columns, labels = read_labels(lines, others, file, known)
        whole = with_labels(bare, labels, str(file))
        notes.extend(_column_notes(file, column, columns))
        if isinstance(bare, LabeledFiles):
            notes.extend(_twice(bare.paths, labels, file))
        return whole

    part = labeled(bare, request, label)
    whole = part.source
    if known.group_column:
        whole = grouped(whole, [row.get(known.group_column) for _, row in lines])
    if "train" not in splits or len(set(splits)) == 1:
        return Found([replace(part, source=whole)], notes)
    numbers = {split: np.flatnonzero(np.array(splits) == split) for split in NAMES}
    parts = [
        Part(Subset(whole, own), split, part.lacks) for split, own in numbers.items() if len(own)
    ]
    return Found(parts, notes)


def with_labels(
    bare: Source, labels: Sequence[Label], title: str, names: Sequence[str] | None = None
) -> Source:
    """Return images with their labels, as the data spells them.

    Args:
        bare: files or pictures without labels
        labels: of each; one list among them makes all lists
        title: what to call the data in an error
        names: the classes that numbers among the labels index, if the data has names

    Raises:
        DataError: a label that is not among the names.
    """
    found, classes = index_labels(labels, title, names)
    return replace(bare, labels=found, classes=classes)  # type: ignore[type-var]


def read_rows(file: Path, known: Columns) -> tuple[list[str], Lines]:
    """Return the names of the columns, and every row with its place, such as `line 3`.

    Raises:
        DataError: the file, or a line of it, cannot be read.
    """
    try:
        text = read_text(file, LARGEST).replace("\r\n", "\n").replace("\r", "\n")
        if file.suffix.lower() == ".jsonl":
            rows: Lines = [*_jsonl(text, file)]
            names = list(dict.fromkeys(name for _, row in rows for name in row))
        else:
            names, rows = _csv(text, file, known)
    except csv.Error as error:
        raise DataError(f"cannot read {file}: {error}") from None
    if not rows:
        raise DataError(f"{file} lists no images")
    return names, rows


def _csv(text: str, file: Path, known: Columns) -> tuple[list[str], Lines]:
    """The columns and rows of a text whose fields a comma, a semicolon or a tab separates.

    A first line that names an existing image is no line of column names; columns then have the
    names 1, 2, …
    """
    first = text.partition("\n")[0]
    delimiter = max(DELIMITERS, key=first.count)
    reader = csv.reader(io.StringIO(text), delimiter=delimiter, strict=True)
    lines = [(f"line {reader.line_num}", fields) for fields in reader if fields]
    if not lines:
        return [], []
    head = [cell.strip() for cell in lines[0][1]]
    if any(place.has(place.path(cell)) for place in candidates(file, known) for cell in head):
        head = [str(number) for number in range(1, len(head) + 1)]
    else:
        del lines[0]
    if len(set(head)) < len(head):
        raise DataError(f"{file} has two columns of the same name: {','.join(head)[:80]!r}")
    for line, fields in lines:
        if len(fields) != len(head):
            raise DataError(f"{file} {line}: the number of fields differs from the first line")
    return head, [(line, dict(zip(head, fields, strict=True))) for line, fields in lines]


def _jsonl(text: str, file: Path) -> Iterator[tuple[str, Row]]:
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):  # Python converts no more digits than 4,300
            row = None
        if not isinstance(row, dict):
            raise DataError(f'{file} line {number} is not a JSON object like {{"path": …}}')
        yield f"line {number}", row


def _list_file(path: Path) -> Path | None:
    """Return the list that a user names, or the one in a folder of images; None for others."""
    if not path.is_dir():
        return path if path.is_file() and path.suffix.lower() in SUFFIXES else None
    for file in (path / name for name in METADATA):
        if file.is_file():  # not a pipe, which would be waited for
            with file.open("rb") as stream:
                if b"file_name" in stream.readline(HEAD):  # else it is notes on something else
                    return file
    return None


def paths_of(lines: Lines, column: str, places: Places, title: object) -> list[str]:
    """Return the paths in rows, with their endings.

    Raises:
        DataError: a row without one.
    """
    paths = [places.path(row.get(column)) for _, row in lines]
    if "" in paths:
        raise DataError(f"{title} {lines[paths.index('')][0]} has no path")
    return paths


def check_files(paths: Sequence[str], places: Places, file: Path, known: Columns) -> None:
    """Refuse missing files, and those outside of the images' folder: lists are other people's.

    Raises:
        DataError: the first of them.
    """
    if missing := [path for path in paths if not places.has(path)]:
        raise DataError(
            f"{len(missing):,} of the {len(paths):,} files listed in {file} do not exist: "
            f"{some(missing)} (paths are relative to {places.root}; --images names another folder)"
        )
    root = Path(known.images).expanduser() if known.images else file.parent
    inside = Inside((root,), known.allow_outside)
    for path in paths:
        if not inside.holds(places.root / path):
            raise DataError(
                f"{file} names {path}, which is outside of {root}: name the folder "
                "of the images with --images, or pass --allow-outside if you trust the list"
            )


def row_splits(
    lines: Lines, names: Sequence[str], column: str, file: Path
) -> tuple[list[str], list[str]]:
    """Return the split of each row: by a column of splits, else of folds; and a note on folds.

    Raises:
        DataError: an unknown split.
    """
    others = [name for name in names if name != column]
    if split := next(iter(named(others, SPLITS)), ""):
        cells = [str(row.get(split) or "").strip().lower() for _, row in lines]
        known = SPLIT_OF | {"": "train"}
        for cell, (place, _) in zip(cells, lines, strict=True):
            if cell not in known:
                raise DataError(
                    f"{file} {place}: unknown split {cell!r}; choose train, val or test"
                )
        return [known[cell] for cell in cells], []
    fold = next(iter(named(others, FOLDS)), "")
    cells = [str(row.get(fold)).strip() for _, row in lines]
    values = sorted({*cells} - {"", "None", "nan"}, key=_by_number)
    if len(values) < 2:
        return ["train"] * len(lines), []
    note = (
        f"column {fold} of {file}: {values[0]} is the test split, the other "
        f"{len(values) - 1} are for training"
    )
    return ["test" if cell == values[0] else "train" for cell in cells], [note]


def _by_number(cell: str) -> tuple[float, str]:
    """Sort numbers first, by value; then words."""
    try:
        return float(cell), cell
    except ValueError:
        return math.inf, cell


def _twice(paths: Sequence[str], labels: Sequence[Label], file: Path) -> list[str]:
    """A line about images that are listed again with another label."""
    known = defaultdict[str, set[Label]](set)
    for path, label in zip(paths, labels, strict=True):
        own = label if isinstance(label, str) else tuple(sorted(label))
        known[os.path.normpath(path)].add(own)
    doubtful = [path for path, own in known.items() if len(own) > 1]
    line = f"{len(doubtful):,} images are in {file} more than once with different labels"
    return [f"{line}: {some(doubtful)}"] if doubtful else []


def _place_notes(places: Places, file: Path) -> list[str]:
    """A line about where the images of a list were found, if not beside it."""
    if places.root == file.parent and not places.ending:
        return []
    ending = f", whose endings {places.ending} it leaves out" if places.ending else ""
    return [f"the images of {file} are in {places.root}{ending}"]


def _column_notes(file: Path, images: str, labels: Sequence[str]) -> list[str]:
    """A line about columns whose names do not say what they hold."""
    if images in PLAIN and labels[0] in PLAIN:
        return []
    return [f"{file}: images are in column {images}, labels in {some(labels)}"]


# Columns: which hold the paths and the labels, and the label in a cell


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
    return [Places(root, ending) for ending in ("", *sorted(IMAGES)) for root in roots]


def find_paths(
    names: Sequence[str], lines: Lines, file: Path, known: Columns
) -> tuple[str, Places]:
    """Return the column of the paths, and where they are: the first place that has the first rows.

    Args:
        names: of the columns
        lines: all rows, each with its place
        file: the list
        known: what the user says of them

    Raises:
        DataError: an unknown column, or none that can be the one of the paths.
    """
    check_known_columns(names, file, (known.path_column,))
    rows = [row for _, row in lines[:SAMPLE]]
    usual = named(names, PATHS)
    columns = [known.path_column] if known.path_column else [*usual, *names]
    places = candidates(file, known)
    for enough in (all, any):  # any: the missing ones are reported
        for where, name in itertools.product(places, columns):
            if enough(where.has(where.path(row.get(name))) for row in rows):
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
    if not others:
        raise UnlabeledError(
            f"{file} has no column of labels beside its paths: add one, or name a list with labels"
        )
    if binary == others or len(others) == 1:
        return others
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
