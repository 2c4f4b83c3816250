"""Lists of images: CSV or JSON Lines, with a path and its label or labels per line.

    path,label,split            {"path": "a.jpg", "label": "cat"}
    a.jpg,cat,train             {"path": "b.jpg", "labels": ["dog", "night"], "split": "test"}

Paths are relative to the list's folder. A column `labels` holds any number of labels, in CSV
separated by `|`; every image then has, or does not have, each class.
"""

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitlab.data.labels import Label, index_labels
from vitlab.data.sources.filenames import Names
from vitlab.data.sources.folders import Files
from vitlab.data.sources.splits import NAMES, Request, Splits, join
from vitlab.errors import DataError

SUFFIXES = {".csv", ".jsonl"}
SEPARATOR = "|"
PATHS = ("path", "file", "file_name", "filename", "image")


@dataclass(frozen=True)
class Entry:
    """One line: a path as written, its label or labels, and its split (empty if not given)."""

    path: str
    label: Label
    split: str


def open_list(request: Request) -> Splits | None:
    """Open a list of paths: in the splits that its lines name, or unsplit; None for other data."""
    file = request.path
    if not file.is_file() or file.suffix.lower() not in SUFFIXES:
        return None
    entries = read_list(file)
    several = any(not isinstance(entry.label, str) for entry in entries)
    groups: dict[str, list[Entry]] = {}
    for entry in entries:
        groups.setdefault(_split(entry, file), []).append(entry)
    if "train" not in groups:
        groups = {"train": entries}
    sources: list[Files] = []
    for split in (each for each in NAMES if each in groups):
        own = groups[split]
        raw = [(e.label,) if several and isinstance(e.label, str) else e.label for e in own]
        follow = sources[0].classes if sources else request.classes
        labels, names = index_labels(raw, f"{file} {split}", follow)
        sources.append(Files(file.parent, Names.of(e.path for e in own), labels, names))
    return join(sources[0], sources[1:], request)


def _split(entry: Entry, file: Path) -> str:
    """Return the split of an entry: train where its line names none."""
    if not entry.split:
        return "train"
    for split, names in NAMES.items():
        if entry.split in names:
            return split
    raise DataError(
        f"{file}: unknown split {entry.split!r} of {entry.path}; choose train, val or test"
    )


def read_list(file: Path) -> list[Entry]:
    """Return the entries of a list, after checking that every file in it exists.

    Raises:
        DataError: a line that cannot be read, missing columns or missing files.
    """
    try:
        with file.open(encoding="utf-8-sig", newline="") as stream:
            rows = _csv(stream, file) if file.suffix.lower() == ".csv" else _jsonl(stream, file)
            entries = [_entry(row, f"{file} line {number}") for number, row in rows]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"cannot read {file}: {error}") from None
    if not entries:
        raise DataError(f"{file} lists no images")
    missing = [entry.path for entry in entries if not (file.parent / entry.path).is_file()]
    if missing:
        first = ", ".join(missing[:3]) + (", …" if len(missing) > 3 else "")
        raise DataError(
            f"{len(missing):,} of the {len(entries):,} files listed in {file} do not exist: "
            f"{first} (paths are relative to {file.parent})"
        )
    return entries


def _csv(stream: Any, file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    reader = csv.DictReader(stream, strict=True)
    head = reader.fieldnames or []
    if not set(head) & set(PATHS) or not {"label", "labels"} & set(head):
        raise DataError(
            f"{file} must begin with a line of column names, such as path,label or path,labels; "
            f"its first line is {','.join(head)[:80]!r}"
        )
    for row in reader:
        if None in row or None in row.values():
            raise DataError(
                f"{file} line {reader.line_num}: the number of fields differs from the first line"
            )
        yield reader.line_num, row


def _jsonl(stream: Any, file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(stream, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (json.JSONDecodeError, RecursionError):
            row = None
        if not isinstance(row, dict):
            raise DataError(f'{file} line {number} is not a JSON object like {{"path": …}}')
        yield number, row


def _entry(row: dict[str, Any], where: str) -> Entry:
    path = next((row[key] for key in PATHS if row.get(key)), None)
    if not isinstance(path, str) or "\0" in path:
        raise DataError(f"{where} has no path")
    split = row.get("split") or ""
    return Entry(path, label_of(row, where), str(split).strip().lower())


def label_of(row: dict[str, Any], where: str) -> Label:
    """Return the label or labels in a row; texts and whole numbers are labels.

    Raises:
        DataError: no label, or an empty one.
    """
    if isinstance(many := row.get("labels"), str):
        return tuple(part.strip() for part in many.split(SEPARATOR) if part.strip())
    found = many if isinstance(many, list) else [row.get("label")]
    if not all(isinstance(each, str | int) and not isinstance(each, bool) for each in found):
        raise DataError(f"{where} has no label, or one that is neither text nor a whole number")
    texts = tuple(str(each).strip() for each in found)
    if not all(texts):
        raise DataError(f"{where} has an empty label")
    return texts if isinstance(many, list) else texts[0]
