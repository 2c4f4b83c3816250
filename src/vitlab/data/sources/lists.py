"""Lists of images: CSV or JSON Lines, with a path and its label or labels per line.

    path,label,split            {"path": "a.jpg", "label": "cat"}
    a.jpg,cat,train             {"path": "b.jpg", "labels": ["dog", "night"], "split": "test"}

Other names of columns, several columns of 0 and 1, and files without a first line of names are
recognized (`columns.py`). Paths are relative to the list's folder, or to a folder in it. A column
`labels` holds any number of labels, in CSV separated by `|`; every image then has, or does not
have, each class.
"""

import csv
import io
import json
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from vitlab.data.labels import Label, index_labels
from vitlab.data.settings import Columns
from vitlab.data.sources.columns import (
    FOLDS,
    SPLITS,
    Lines,
    Places,
    Row,
    candidates,
    check_known_columns,
    find_paths,
    named,
    read_labels,
)
from vitlab.data.sources.folders import LabeledFiles, image_paths
from vitlab.data.sources.paths import Inside, read_text, some
from vitlab.data.sources.request import NAMES, SPLIT_OF, Found, Part, Request, labeled
from vitlab.data.sources.source import Source, Subset, grouped, numbered
from vitlab.errors import DataError

SUFFIXES = {".csv", ".tsv", ".jsonl"}
METADATA = ("metadata.csv", "metadata.jsonl")  # in a folder of images, as Hugging Face has it
HEAD = 65_536  # bytes of a first line
DELIMITERS = ",;\t"
LARGEST = 2**30  # bytes of a list: more than ten million lines
SHOWN = 200  # characters of a path in a message
PLAIN = ("path", "file_name", "label", "labels")  # columns whose names say what they hold


def open_list(request: Request) -> Found | None:
    """Open a list of paths; None for other data."""
    file = _list_file(request.path)
    if file is None:
        return None
    names, lines = read_rows(file, request.columns)
    column, places = find_paths(names, [row for _, row in lines], file, request.columns)
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
        notes.extend(_column_notes(file, column, columns, bare))
        if isinstance(bare, LabeledFiles):
            notes.extend(_twice(bare.paths, labels, file))
        return whole

    part = labeled(bare, request, label)
    whole = part.source
    if known.group_column:
        whole = grouped(whole, [row.get(known.group_column) for _, row in lines])
    if "train" not in splits or len(set(splits)) == 1:
        return Found([Part(whole, "train" if "train" in splits else "", part.lacks)], notes)
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
        DataError: a label that is too long, or not among the names.
    """
    found, classes = index_labels(labels, title, None, names)
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
        except (json.JSONDecodeError, RecursionError):
            row = None
        except ValueError:  # Python converts no more digits than 4,300
            raise DataError(f"{file} line {number} has a number of too many digits") from None
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
    if missing := [path[:SHOWN] for path in paths if not places.has(path)]:
        raise DataError(
            f"{len(missing):,} of the {len(paths):,} files listed in {file} do not exist: "
            f"{some(missing)} (paths are relative to {places.root}; --images names another folder)"
        )
    root = Path(known.images).expanduser() if known.images else file.parent
    inside = Inside((root,), known.allow_outside)
    for path in paths:
        if not inside.holds(places.root / path):
            raise DataError(
                f"{file} names {path[:SHOWN]}, which is outside of {root}: name the folder "
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
    known: dict[str, set[Label]] = {}
    for path, label in zip(paths, labels, strict=True):
        own = label if isinstance(label, str) else tuple(sorted(label))
        known.setdefault(os.path.normpath(path), set()).add(own)
    doubtful = [path for path, own in known.items() if len(own) > 1]
    if not doubtful:
        return []
    each = (name if isinstance(name, str) else "+".join(name) for name in known[doubtful[0]])
    return [
        f"{len(doubtful):,} images are in {file} more than once with different labels, such as "
        f"{doubtful[0][:SHOWN]} ({' and '.join(sorted(each))})"
    ]


def _place_notes(places: Places, file: Path) -> list[str]:
    """A line about where the images of a list were found, if not beside it."""
    if places.root == file.parent and not places.ending:
        return []
    ending = f", whose endings {places.ending} it leaves out" if places.ending else ""
    return [f"the images of {file} are in {places.root}{ending}"]


def _column_notes(file: Path, path: str, labels: Sequence[str], bare: Source) -> list[str]:
    """A line about columns whose names do not say what they hold."""
    if path in PLAIN and labels[0] in PLAIN:
        return []
    what = "paths" if isinstance(bare, LabeledFiles) else "images"
    return [f"{file}: {what} are in column {path}, labels in {some(labels)}"]
