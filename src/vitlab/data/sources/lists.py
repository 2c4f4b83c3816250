"""Lists of images: CSV or JSON Lines, a path and its label or labels a line.

    path,label,split            {"path": "a.jpg", "label": "cat"}
    a.jpg,cat,train             {"path": "b.jpg", "labels": ["dog", "night"], "split": "test"}

Paths are relative to the list's folder. A column `labels` holds any number of labels, in CSV apart
by `|`; every image then counts as having, or not having, each class.
"""

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitlab.data.labels import Label
from vitlab.errors import UserError

SUFFIXES = {".csv", ".jsonl"}
SEPARATOR = "|"
PATHS = ("path", "file", "file_name", "filename", "image")


@dataclass(frozen=True)
class Entry:
    """One line: a path as it is written, its label or labels, and its split if it names one."""

    path: str
    label: Label
    split: str


def read_list(file: Path) -> list[Entry]:
    """The entries of a list, every file in it known to be there.

    Raises:
        ValueError: a line that cannot be read, missing columns, files that are not there.
    """
    try:
        with file.open(encoding="utf-8-sig", newline="") as stream:
            rows = _csv(stream, file) if file.suffix.lower() == ".csv" else _jsonl(stream, file)
            entries = [_entry(row, f"{file} line {number}") for number, row in rows]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"cannot read {file}: {error}") from None
    if not entries:
        raise UserError(f"{file} lists no images")
    missing = [entry.path for entry in entries if not (file.parent / entry.path).is_file()]
    if missing:
        first = ", ".join(missing[:3]) + (", …" if len(missing) > 3 else "")
        raise UserError(
            f"{len(missing):,} of the {len(entries):,} files that {file} lists are not there: "
            f"{first} (paths are relative to {file.parent})"
        )
    return entries


def _csv(stream: Any, file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    reader = csv.DictReader(stream, strict=True)
    head = reader.fieldnames or []
    if not set(head) & set(PATHS) or not {"label", "labels"} & set(head):
        raise UserError(
            f"{file} must begin with a line of column names, path,label or path,labels say; "
            f"its first line is {','.join(head)[:80]!r}"
        )
    for row in reader:
        if None in row or None in row.values():
            raise UserError(f"{file} line {reader.line_num}: not as many fields as column names")
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
            raise UserError(f'{file} line {number} is not a JSON object like {{"path": …}}')
        yield number, row


def _entry(row: dict[str, Any], where: str) -> Entry:
    path = next((row[key] for key in PATHS if row.get(key)), None)
    if not isinstance(path, str) or "\0" in path:
        raise UserError(f"{where} names no path")
    split = row.get("split") or ""
    return Entry(path, label_of(row, where), str(split).strip().lower())


def label_of(row: dict[str, Any], where: str) -> Label:
    """The label or labels in a row; texts and whole numbers are labels."""
    if isinstance(many := row.get("labels"), str):
        return tuple(part.strip() for part in many.split(SEPARATOR) if part.strip())
    found = many if isinstance(many, list) else [row.get("label")]
    if not all(isinstance(each, str | int) and not isinstance(each, bool) for each in found):
        raise UserError(f"{where} has no label, or one that is neither text nor a whole number")
    texts = tuple(str(each).strip() for each in found)
    if not all(texts):
        raise UserError(f"{where} has an empty label")
    return texts if isinstance(many, list) else texts[0]
