"""Lists of images: CSV or JSON Lines, with a path and its label or labels per line.

    path,label,split            {"path": "a.jpg", "label": "cat"}
    a.jpg,cat,train             {"path": "b.jpg", "labels": ["dog", "night"], "split": "test"}

Other names of columns, several columns of 0 and 1, and files without a first line of names are
recognized (`columns.py`). Paths are relative to the list's folder, or to a folder in it. A column
`labels` holds any number of labels, in CSV separated by `|`; every image then has, or does not
have, each class.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitlab.data.labels import Label, index_labels
from vitlab.data.settings import Columns
from vitlab.data.sources.filenames import Names
from vitlab.data.sources.folders import Files
from vitlab.data.sources.inside import Inside
from vitlab.data.sources.listed.columns import (
    Found,
    Places,
    Row,
    find_columns,
    find_paths,
    several_separator,
    spaced_note,
)
from vitlab.data.sources.listed.list_rows import read_rows
from vitlab.data.sources.splits import NAMES, Request, Splits, hold_out, join
from vitlab.errors import DataError

SUFFIXES = {".csv", ".tsv", ".jsonl"}
METADATA = ("metadata.csv", "metadata.jsonl")  # in a folder of images, as Hugging Face has it
HEAD = 65_536  # bytes of a first line
SEPARATOR = "|"
SHOWN = 200  # characters of a path in a message
PLAIN = ("path", "file_name", "label", "labels")  # columns whose names say what they hold


@dataclass(frozen=True)
class Entry:
    """One line: a path, its label or labels, and its split (empty if not given)."""

    path: str
    label: Label
    split: str


def open_list(request: Request) -> Splits | None:
    """Open a list of paths: in the splits that its lines name, or unsplit; None for other data."""
    file = list_file(request.path)
    if file is None:
        return None
    names, rows = read_rows(file, request.columns)
    found = find_columns(names, [row for _, row in rows], file, request.columns)
    lines = [(f"line {number}", row) for number, row in rows]
    entries, notes = read_entries(lines, found, file, request.columns)
    check_inside(entries, found.places, file, request.columns)
    several = any(not isinstance(entry.label, str) for entry in entries)
    groups: dict[str, list[Entry]] = {}
    for entry in entries:
        groups.setdefault(split_in(entry, file), []).append(entry)
    if "train" not in groups:
        groups = {"train": entries}
    sources: list[Files] = []
    for split in (each for each in NAMES if each in groups):
        own = groups[split]
        raw = [(e.label,) if several and isinstance(e.label, str) else e.label for e in own]
        follow = sources[0].classes if sources else request.classes
        labels, classes = index_labels(raw, f"{file} {split}", follow)
        paths = Names.of(e.path for e in own)
        sources.append(Files(found.places.root, paths, labels, classes))
    if len(sources) == 1:
        return hold_out(sources[0], request.test_fraction, notes)
    splits = join(sources[0], sources[1:], request)
    return Splits(splits.train, splits.test, splits.validation, notes=notes)


def paths_in(file: Path, known: Columns) -> list[str]:
    """Return the paths that a list names, whatever else is in it.

    Raises:
        DataError: no column of paths, or files that are missing or elsewhere.
    """
    names, rows = read_rows(file, known)
    column, places = find_paths(names, [row for _, row in rows], file, known)
    entries = [
        Entry(path_of(row, column, places, f"{file} line {number}"), "", "") for number, row in rows
    ]
    check_files(entries, places, file)
    check_inside(entries, places, file, known)
    return [str(places.root / entry.path) for entry in entries]


def path_of(row: Row, column: str, places: Places, where: str) -> str:
    """Return the path in a row, with its ending.

    Raises:
        DataError: there is none.
    """
    path = row.get(column)
    if not isinstance(path, str | int) or not str(path).strip() or "\0" in str(path):
        raise DataError(f"{where} has no path")
    return f"{path}{places.ending}"


def list_file(path: Path) -> Path | None:
    """Return the list that a user names, or the one in a folder of images; None for others."""
    if path.is_dir():
        return next((path / name for name in METADATA if _names_files(path / name)), None)
    return path if path.is_file() and path.suffix.lower() in SUFFIXES else None


def _names_files(file: Path) -> bool:
    """Whether a file is a list in the form of Hugging Face, not notes on something else."""
    if not file.is_file():  # nor a pipe, which would be waited for
        return False
    with file.open("rb") as stream:
        return b"file_name" in stream.readline(HEAD)


def split_in(entry: Entry, file: Path) -> str:
    """Return the split of an entry: train where its line names none.

    Raises:
        DataError: it names an unknown one.
    """
    if not entry.split:
        return "train"
    for split, names in NAMES.items():
        if entry.split in names:
            return split
    raise DataError(
        f"{file}: unknown split {entry.split!r} of {entry.path}; choose train, val or test"
    )


def read_entries(
    rows: Sequence[tuple[str, Row]], found: Found, file: Path, known: Columns
) -> tuple[list[Entry], list[str]]:
    """Return the entries of a list, after checking that every file in it exists, and notes.

    Args:
        rows: each with its place in the list, such as `line 3`
        found: which column is which
        file: the list
        known: what the user says of the columns

    Raises:
        DataError: rows without path or label, or missing files.
    """
    labels = _label_reader([row for _, row in rows], found, known)
    folds = _folds([row for _, row in rows], found)
    entries = []
    for place, row in rows:
        where = f"{file} {place}"
        path = "" if found.images else path_of(row, found.path, found.places, where)
        split = str(row.get(found.split) or "").strip().lower()
        if folds:
            split = "test" if str(row.get(found.fold)) == folds[0] else "train"
        entries.append(Entry(path, labels(row, where), split))
    if not found.images:
        check_files(entries, found.places, file)
    notes = _notes(found, file, folds) + spaced_note(entry.label for entry in entries)
    return entries, [*notes, *([] if found.images else _twice(entries, file))]


def check_files(entries: Sequence[Entry], places: Places, file: Path) -> None:
    """Refuse a list that names missing files.

    Raises:
        DataError: the first of them.
    """
    missing = [entry.path for entry in entries if not places.has(entry.path, whole=True)]
    if missing:
        first = ", ".join(path[:SHOWN] for path in missing[:3]) + (
            ", …" if len(missing) > 3 else ""
        )
        raise DataError(
            f"{len(missing):,} of the {len(entries):,} files listed in {file} do not exist: "
            f"{first} (paths are relative to {places.root}; --images names another folder)"
        )


def check_inside(entries: Sequence[Entry], places: Places, file: Path, known: Columns) -> None:
    """Refuse files outside of the folder of the images, which other people's lists may name.

    Raises:
        DataError: the first such file, links followed.
    """
    root = Path(known.images).expanduser() if known.images else file.parent
    inside = Inside((root,), known.allow_outside)
    for entry in entries:
        if not inside.holds(places.root / entry.path):
            raise DataError(
                f"{file} names {entry.path[:SHOWN]}, which is outside of {root}: name the folder "
                "of the images with --images, or pass --allow-outside if you trust the list"
            )


def _twice(entries: Sequence[Entry], file: Path) -> list[str]:
    """A line about images that are listed again with another label."""
    labels: dict[str, set[Label]] = {}
    for entry in entries:
        label = entry.label if isinstance(entry.label, str) else tuple(sorted(entry.label))
        labels.setdefault(os.path.normpath(entry.path), set()).add(label)
    doubtful = [path for path, own in labels.items() if len(own) > 1]
    if not doubtful:
        return []
    each = (name if isinstance(name, str) else "+".join(name) for name in labels[doubtful[0]])
    return [
        f"{len(doubtful):,} images are in {file} more than once with different labels, such as "
        f"{doubtful[0][:SHOWN]} ({' and '.join(sorted(each))})"
    ]


def _folds(rows: Sequence[Row], found: Found) -> list[str]:
    """The values of a column of folds, sorted; empty if there are not several."""
    if not found.fold or found.split:
        return []
    values = sorted({str(row.get(found.fold)) for row in rows})
    return values if len(values) > 1 else []


def _notes(found: Found, file: Path, folds: Sequence[str]) -> list[str]:
    """What was found that the list does not say outright."""
    notes = []
    if not found.images and (found.places.root != file.parent or found.places.ending):
        ending = (
            f", whose endings {found.places.ending} it leaves out" if found.places.ending else ""
        )
        notes.append(f"the images of {file} are in {found.places.root}{ending}")
    if folds:
        notes.append(
            f"column {found.fold} of {file}: {folds[0]} is the test split, the other "
            f"{len(folds) - 1} are for training"
        )
    columns = ", ".join(found.labels[:3]) + (", …" if len(found.labels) > 3 else "")
    if found.path not in PLAIN or found.labels[0] not in PLAIN:
        what = "images" if found.images else "paths"
        notes.append(f"{file}: {what} are in column {found.path}, labels in {columns}")
    return notes


def _label_reader(rows: Sequence[Row], found: Found, known: Columns) -> Callable[[Row, str], Label]:
    """Return what reads the label of a row: one name, or the several of columns or of a cell."""
    if found.one_hot:

        def hot(row: Row) -> tuple[str, ...]:
            return tuple(name for name in found.labels if float(row[name]) == 1)

        single = all(len(hot(row)) == 1 for row in rows)
        return lambda row, where: hot(row)[0] if single else hot(row)
    column = found.labels[0]
    separator = several_separator([row.get(column) for row in rows], known)
    if column == "labels":
        separator = separator or SEPARATOR
    return lambda row, where: label_in(row.get(column, row.get("label")), separator, where)


def label_of(row: dict[str, Any], where: str) -> Label:
    """Return the label or labels in a row; texts and whole numbers are labels.

    Raises:
        DataError: no label, or an empty one.
    """
    if "labels" in row:
        return label_in(row["labels"], SEPARATOR, where)
    return label_in(row.get("label"), "", where)


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
