"""The rows of a CSV or JSON Lines file, with or without a first line of column names."""

import csv
import json
from collections.abc import Iterator
from pathlib import Path

from vitlab.data.settings import Columns
from vitlab.data.sources.listed.columns import Row, candidates
from vitlab.data.sources.remote import reason
from vitlab.errors import DataError
from vitlab.files import read_bytes

DELIMITERS = ",;\t"
LARGEST = 2**30  # bytes of a list: more than ten million lines


def read_rows(file: Path, known: Columns) -> tuple[list[str], list[tuple[int, Row]]]:
    """Return the names of the columns, and every row with the number of its line.

    Raises:
        DataError: the file, or a line of it, cannot be read.
    """
    try:
        text = read_bytes(file, LARGEST).decode("utf-8-sig")
        text = text.replace("\r\n", "\n").replace("\r", "\n")
        if file.suffix.lower() == ".jsonl":
            rows = list(_jsonl(text, file))
            names = list(dict.fromkeys(name for _, row in rows for name in row))
        else:
            names, rows = _csv(text, file, known)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"cannot read {file}: {reason(error)}") from None
    if not rows:
        raise DataError(f"{file} lists no images")
    return names, rows


def _csv(text: str, file: Path, known: Columns) -> tuple[list[str], list[tuple[int, Row]]]:
    """The columns and rows of a text whose fields a comma, a semicolon or a tab separates.

    A first line that names an existing image is no line of column names; columns then have the
    names 1, 2, …
    """
    first = text.partition("\n")[0]
    delimiter = max(DELIMITERS, key=first.count)
    reader = csv.reader(text.splitlines(keepends=True), delimiter=delimiter, strict=True)
    lines = [(reader.line_num, fields) for fields in reader if fields]
    if not lines:
        return [], []
    head = [cell.strip() for cell in lines[0][1]]
    if any(place.has(cell) for place in candidates(file, known) for cell in head):
        head = [str(number) for number in range(1, len(head) + 1)]
    else:
        del lines[0]
    if len(set(head)) < len(head):
        raise DataError(f"{file} has two columns of the same name: {','.join(head)[:80]!r}")
    for number, fields in lines:
        if len(fields) != len(head):
            raise DataError(
                f"{file} line {number}: the number of fields differs from the first line"
            )
    return head, [(number, dict(zip(head, fields, strict=True))) for number, fields in lines]


def _jsonl(text: str, file: Path) -> Iterator[tuple[int, Row]]:
    for number, line in enumerate(text.splitlines(), 1):
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
        yield number, row
