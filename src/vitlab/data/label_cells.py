"""Labels in cells of tables: one or several of an image, and what a column of them means."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitlab.data.cells import (
    DOUBTFUL_TEXTS,
    ColumnFacts,
    Indices,
    encode_cells,
    is_missing,
    plain_value,
)
from vitlab.data.class_names import look_alike_notes, spell_name
from vitlab.errors import DataError
from vitlab.values import LONGEST

Label = str | tuple[str, ...]
"""The label of one image: one class, or any number of them."""

SEPARATOR = "|"  # of several labels in a cell of a CSV list
PLURAL = frozenset({"labels", "tags", "targets", "classes", "categories"})
"""Columns that hold any number of labels."""

LABEL_COLUMNS = (
    "label", "labels", "class", "class_name", "classname", "label_name", "category", "target",
    "targets", "classes", "categories", "fine_label", "tag", "tags", "species", "breed",
    "diagnosis", "dx",
)  # fmt: skip
_WHOLE = re.compile(r"[+-]?\d+\.0+")
_NUMBERS = re.compile(r"\s*\d+(\s+\d+)*\s*")
_SPLIT = re.compile(r"(?<!\\)\|")
_LIST_TEXT = re.compile(r"\[(\s*('[^']*'|\"[^\"]*\"|[+-]?\d+)\s*,?)*\]")
_LIST_ITEM = re.compile(r"'([^']*)'|\"([^\"]*)\"|([+-]?\d+)")
NOT_A_LABEL = "has no label, or one that is neither text nor a whole number"


def join_labels(names: Sequence[str]) -> str:
    """Return several labels as one cell of CSV, from which `split_labels` reads them."""
    return SEPARATOR.join(name.replace(SEPARATOR, f"\\{SEPARATOR}") for name in names)


def split_labels(text: str, separator: str) -> tuple[str, ...]:
    r"""Return the labels in a cell; `\|` is a `|` in a name."""
    if separator == SEPARATOR:
        parts = [part.replace(rf"\{SEPARATOR}", SEPARATOR) for part in _SPLIT.split(text)]
    else:
        parts = text.split(separator)
    return tuple(filter(None, map(spell_name, parts)))


def read_label(cell: Any, separator: str = "", where: str = "an image") -> Label | None:
    """Return the label in a cell, or the labels; None where there is none.

    Args:
        cell: a text, a whole number, or a list of them, as `plain_value` returns it
        separator: of several labels in a text; empty where a text is one label
        where: the image, for an error

    Raises:
        DataError: something else.
    """
    if is_missing(cell):
        return () if separator and isinstance(cell, str) else None
    if isinstance(cell, str) and separator:
        return split_labels(cell, separator)
    if isinstance(cell, list | tuple):
        names = [_name_of(plain_value(each), where) for each in cell]
        return tuple(dict.fromkeys(names))
    return _name_of(cell, where)


def _name_of(value: Any, where: str) -> str:
    """Return the name in one value."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if not isinstance(value, str | int):
        raise DataError(f"{where} {NOT_A_LABEL}")
    name = spell_name(str(value))
    if len(name) > LONGEST:
        raise DataError(f"{where} has a label of {len(name):,} characters: {name[:40]!r} …")
    if not name:
        raise DataError(f"{where} has an empty label")
    return name


@dataclass(frozen=True)
class LabelColumn:
    """The labels that a column gives.

    Attributes:
        distinct: labels that occur; None where there is none
        codes: which of them each row has, int64 (n,)
        notes: what was guessed, for the user
    """

    distinct: list[Label | None]
    codes: Indices
    notes: list[str] = field(default_factory=list)

    @property
    def is_missing(self) -> NDArray[np.bool_]:
        """Whether a row has no label, (n,)."""
        return np.array([label is None for label in self.distinct], bool)[self.codes]


def read_label_column(cells: Sequence[Any], facts: ColumnFacts) -> LabelColumn:
    """Return the label of each row.

    `-1` is no label where the column has names of classes (as on the Hugging Face Hub). Whole
    numbers that were written as 1.0, 2.0 are 1, 2.

    Raises:
        DataError: cells that are no labels.
    """
    distinct, codes = encode_cells(cells)
    notes = list[str]()
    if facts.is_csv and not facts.separator:
        distinct = _read_list_texts(distinct, facts, notes)
    separator = facts.separator or _choose_separator(distinct, facts, notes)
    distinct = _strip_fractions(distinct)
    _check_no_vectors(distinct, facts)
    first = np.full(len(distinct), -1)
    first[codes[::-1]] = np.arange(len(codes))[::-1]
    labels = list[Label | None]()
    for value, row in zip(distinct, first.tolist(), strict=True):
        if facts.classes is not None and str(value) == "-1" and "-1" not in facts.classes:
            labels.append(None)
            continue
        is_empty = value is None and facts.is_csv and bool(separator)
        where = f"{facts.title} {facts.place(row)}"
        labels.append(read_label("" if is_empty else value, separator, where))
    if any(isinstance(label, tuple) for label in labels):  # one among many makes all of them lists
        labels = [(label,) if isinstance(label, str) else label for label in labels]
    notes += _doubtful_notes(labels, codes, facts)
    return LabelColumn(labels, codes, notes)


def _check_no_vectors(distinct: Sequence[Any], facts: ColumnFacts) -> None:
    """Refuse vectors of 0 and 1, a place for each class, which would be read as classes 0 and 1."""
    cells = [value for value in distinct if value is not None]
    if not cells or not all(isinstance(value, tuple) for value in cells):
        return
    is_long = len(cells[0]) > 1 and len({*map(len, cells)}) == 1
    if is_long and all(
        type(each) in (int, float, bool) and each in (0, 1) for each in sum(cells, ())
    ):
        raise DataError(
            f"column {facts.column} of {facts.title} holds {len(cells[0])} numbers of 0 and 1 for "
            "each image: give the names or the numbers of its classes, or a column for each class"
        )


def _read_list_texts(distinct: list[Any], facts: ColumnFacts, notes: list[str]) -> list[Any]:
    """Return texts such as `['a', 'b']` as lists, where a column has nothing else.

    So pandas writes lists, and arrays without commas, into CSV.
    """
    texts = [value for value in distinct if isinstance(value, str)]
    if not texts or not all(_LIST_TEXT.fullmatch(text.strip()) for text in texts):
        return distinct
    notes.append(
        f"column {facts.column} of {facts.title} holds lists as text: each item is a label"
    )
    return [
        tuple("".join(groups) for groups in _LIST_ITEM.findall(value))
        if isinstance(value, str)
        else value
        for value in distinct
    ]


def _choose_separator(distinct: Sequence[Any], facts: ColumnFacts, notes: list[str]) -> str:
    """Return the separator of several labels in the texts of a column; empty for one label."""
    texts = [value for value in distinct if isinstance(value, str)]
    column = f"column {facts.column} of {facts.title}"
    if facts.is_csv and facts.column.strip().lower() in PLURAL:
        if not any(SEPARATOR in text for text in texts):
            notes += _combination_notes(texts, column)
        return SEPARATOR
    if texts and all(map(_NUMBERS.fullmatch, texts)) and any(len(t.split()) > 1 for t in texts):
        notes.append(f"{column} holds several numbers in a cell: each is a label")
        return " "
    if any(SEPARATOR in text for text in texts):
        notes.append(
            f"{column}: {SEPARATOR} is part of a label; --label-separator '{SEPARATOR}' makes "
            "several labels of such a cell"
        )
    notes += _combination_notes(texts, column)
    return ""


def _combination_notes(texts: Sequence[str], column: str) -> list[str]:
    """Return a line about labels that look like combinations of few words."""
    for separator in (", ", ",", ";", "/", "+", " "):
        cells = [[part for part in text.split(separator) if part.strip()] for text in texts]
        words = {part.strip() for parts in cells for part in parts}
        combined = sum(len(parts) > 1 for parts in cells)
        if combined and len(words) < len(texts):
            return [
                f"{column}: {len(words):,} words make {len(texts):,} labels, a class each; "
                f"--label-separator '{separator}' makes several labels of a cell"
            ]
    return []


def _strip_fractions(distinct: list[Any]) -> list[Any]:
    """Return texts such as 1.0, 2.0 as whole numbers, where a column has nothing else."""
    texts = [value for value in distinct if isinstance(value, str)]
    if not texts or not all(_WHOLE.fullmatch(text.strip()) for text in texts):
        return distinct
    return [int(float(each)) if isinstance(each, str) else each for each in distinct]


def _doubtful_notes(
    labels: Sequence[Label | None], codes: Indices, facts: ColumnFacts
) -> list[str]:
    """Return lines about classes that may mean no label, and about names that look alike."""
    counts = np.bincount(codes, minlength=len(labels))
    images = Counter[str]()
    for label, count in zip(labels, counts.tolist(), strict=True):
        names = (label,) if isinstance(label, str) else label or ()
        for name in names:
            images[name] += count
    return [
        f"{facts.title}: {images[name]:,} images have the class {name!r}; if that means no label, "
        "leave the cell empty"
        for name in images
        if name in DOUBTFUL_TEXTS and len(images) > 1
    ] + look_alike_notes(images, facts.title)
