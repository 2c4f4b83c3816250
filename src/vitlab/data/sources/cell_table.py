"""Tables of images: split, labels, groups and numbers by column, whatever file or object has them.

A CSV or JSON Lines list, Parquet files, a `datasets.Dataset`, a DataFrame and rows in memory all
become a `CellTable`, so that one table means the same in each of them.
"""

import os
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from vitlab.data.cells import ColumnFacts, encode_cells, plain_value, usual_columns
from vitlab.data.class_index import index_labels
from vitlab.data.images import Images
from vitlab.data.label_cells import LABEL_COLUMNS, Label, LabelColumn, read_label_column
from vitlab.data.labels import UnlabeledError
from vitlab.data.number_targets import NumberTargets
from vitlab.data.settings import Columns
from vitlab.data.sources.image_files import ImageFiles
from vitlab.data.sources.paths import some
from vitlab.data.sources.request import NO_LABELS, Found, Part, Request
from vitlab.data.split_cells import SplitColumn, find_split_column
from vitlab.data.split_words import SPLIT_OF, SPLIT_WORDS
from vitlab.data.target import Classes, Integers
from vitlab.errors import DataError
from vitlab.options import nearest

MOST_COLUMNS = 20_000
ZERO_ONE = {"0", "1", "0.0", "1.0", "False", "True"}


@dataclass(frozen=True)
class CellTable:
    """The cells beside some images.

    Attributes:
        title: the file, or what to call it in a message
        columns: names
        cells: returns the cells of a column, one of each image
        place: where a row is, such as `line 3`
        classes: names that the numbers of a column index, where the data has such names
        is_csv: whether every cell was text in a file that has no lists
        split: what the data calls all of these rows; empty where it does not say
    """

    title: str
    columns: Sequence[str]
    cells: Callable[[str], Sequence[Any]]
    place: Callable[[int], str]
    classes: Mapping[str, Classes] = field(default_factory=dict)
    is_csv: bool = False
    split: str = ""

    def facts(self, column: str, separator: str = "") -> ColumnFacts:
        """Return what is known of one column."""
        known = self.classes.get(column)
        return ColumnFacts(self.title, column, self.place, known, separator, self.is_csv)


def check_known_columns(names: Collection[str], title: object, known: Sequence[str]) -> None:
    """Refuse columns that a list or a table does not have, and tables of too many.

    Raises:
        DataError: the first of them.
    """
    if len(names) > MOST_COLUMNS:
        raise DataError(f"{title} has {len(names):,} columns: at most {MOST_COLUMNS:,} are read")
    for name in known:
        if name and name not in names:
            raise DataError(f"{title} has no column {name!r}: {nearest(name, names)}")


def open_rows(table: CellTable, image_column: str, bare: Images, request: Request) -> Found:
    """Return the images of a table by their split, with the labels that a column gives them.

    Images without a label are parts of their own, with the reason; so are all, if none has one.

    Args:
        table: the cells
        image_column: holds the images, or their paths
        bare: the images, a row each, without labels
        request: what is wanted, and what the user says of the columns

    Raises:
        DataError: an unknown column or split; where labels are required, cells that are none.
    """
    if not len(bare):
        raise DataError(f"{table.title} has no images")
    if request.target == "none":
        return Found([Part(bare, table.split)])
    known = request.columns
    asked_split = "" if known.split_column == "none" else known.split_column
    asked = (*known.label_column, known.group_column, asked_split)
    check_known_columns(table.columns, table.title, asked)
    splits = SplitColumn()
    if not table.split:
        facts = replace(table.facts(""), column=known.split_column)
        held = (image_column, *known.label_column, known.group_column)
        splits = find_split_column(table.columns, table.cells, facts, held)
    notes = [*splits.notes, *_ignored_split_notes(table, known)]
    rows = np.arange(len(bare))
    if request.target == "numbers":
        columns = [table.cells(name) for name in known.label_column]
        cells = zip(*(map(plain_value, own) for own in columns), strict=True)
        whole = _with_groups(
            bare.with_target(NumberTargets.of(cells), known.label_column), table, known
        )
        return Found(_in_splits(Part(whole, table.split), rows, splits), notes)
    try:
        taken = {image_column, *splits.columns, ""}
        others = [name for name in table.columns if name not in taken]
        names, column = _read_labels(table, others, known)
        labeled = _label_rows(bare, table, names, column)
    except DataError as error:
        if request.target == "label" and not isinstance(error, UnlabeledError):
            raise
        part = Part(_with_groups(bare, table, known), table.split, f"{NO_LABELS}{error}")
        return Found(_in_splits(part, rows, splits), notes)
    notes += [*_column_notes(table, image_column, names, bool(known.label_column)), *column.notes]
    if isinstance(bare.store, ImageFiles):
        notes += _twice_notes(bare.store.paths, column, table.title)
    labeled = _with_groups(labeled, table, known)
    present = np.flatnonzero(~column.is_missing)
    if len(present) == len(rows):
        return Found(_in_splits(Part(labeled, table.split), rows, splits), notes)
    missing = np.flatnonzero(column.is_missing)
    places = some([table.place(row) for row in missing[:4].tolist()])
    lacks = f"column {some(names)} of {table.title} is empty ({places})"
    parts = _in_splits(Part(labeled.take(present), table.split), present, splits)
    parts += _in_splits(Part(bare.take(missing), table.split, lacks), missing, splits)
    return Found(parts, notes)


def _ignored_split_notes(table: CellTable, known: Columns) -> list[str]:
    """Return a line about a column of splits in data that comes in splits already."""
    usual = usual_columns(table.columns, ("split",)) if table.split else []
    if not usual or known.split_column == "none":
        return []
    words = {str(value).strip().lower() for value in encode_cells(table.cells(usual[0]))[0]}
    if {SPLIT_OF.get(word, word) for word in words} <= {SPLIT_OF.get(table.split, table.split)}:
        return []
    return [f"column {usual[0]} of {table.title} plays no part: the data comes in splits"]


def _with_groups(source: Images, table: CellTable, known: Columns) -> Images:
    """Return images with the groups that a column names, if the user names one."""
    if not known.group_column:
        return source
    return source.in_groups(map(plain_value, table.cells(known.group_column)))


def _label_rows(
    bare: Images, table: CellTable, names: Sequence[str], column: LabelColumn
) -> Images:
    """Return all rows with their labels; those without one have that of another class."""
    raw = [label for label in column.distinct if label is not None]
    if not raw:
        raise UnlabeledError(f"{table.title} has no labels: column {some(names)} is empty")
    known = table.classes.get(names[0]) if len(names) == 1 else None
    found, classes = index_labels(raw, table.title, known)
    numbers = np.cumsum([label is not None for label in column.distinct]) - 1
    codes = np.maximum(numbers, 0)[column.codes]
    return bare.with_target(found.take(codes), classes)


def _in_splits(part: Part, rows: Integers, splits: SplitColumn) -> list[Part]:
    """Return some rows by their split; as they are where the table declares one split alone."""
    present = [name for name in SPLIT_WORDS if name in splits.splits]
    if "train" not in present or len(present) < 2:
        return [part]
    split = np.array(splits.splits)[rows]
    numbers = {name: np.flatnonzero(split == name) for name in present}
    return [
        Part(part.source.take(own), name, part.lacks) for name, own in numbers.items() if len(own)
    ]


def _read_labels(
    table: CellTable, others: Sequence[str], known: Columns
) -> tuple[Sequence[str], LabelColumn]:
    """Return the columns of the labels, and the label of each row: one name, or several.

    Raises:
        UnlabeledError: no column can be one of labels.
        DataError: it cannot be told which column it is.
    """
    columns = _label_columns(table, others, known)
    if len(columns) > 1 and len(usual_columns(columns, ("label", "labels"))) < 2:
        return columns, _one_hot(table, columns)  # each is a class
    facts = table.facts(columns[0], known.label_separator)
    if len(columns) == 1:
        return columns, read_label_column(table.cells(columns[0]), facts)
    pairs = zip(*(map(plain_value, table.cells(name)) for name in columns), strict=True)
    either = [one if one is not None else other for one, other in pairs]
    return columns, read_label_column(either, replace(facts, column="labels"))


def _one_hot(table: CellTable, columns: Sequence[str]) -> LabelColumn:
    """Return the labels in columns of 0 and 1, each of which is a class."""
    flags = np.array([[_is_one(cell) for cell in table.cells(name)] for name in columns]).T
    rows, codes = np.unique(flags, axis=0, return_inverse=True)
    single = bool((flags.sum(1) == 1).all())
    labels: list[Label | None] = []
    for row in rows:
        names = tuple(name for name, is_set in zip(columns, row, strict=True) if is_set)
        labels.append(names[0] if single else names)
    return LabelColumn(labels, codes.reshape(-1).astype(np.int64))


def _is_one(cell: Any) -> bool:
    return str(plain_value(cell)).strip() in ("1", "1.0", "True")


def _label_columns(table: CellTable, others: Sequence[str], known: Columns) -> Sequence[str]:
    """Return the column of the labels, or several of 0 and 1, each of which is a class."""
    asked = known.label_column
    binary = [name for name in asked or others if _is_binary(table.cells(name))]
    if len(asked) > 1 and len(binary) < len(asked):
        raise DataError(
            f"{table.title}: several label columns must hold 0 and 1 only, a class each: "
            f"{', '.join(asked)} do not"
        )
    if asked:
        return asked
    usual = usual_columns(others, LABEL_COLUMNS)
    named = [*usual, *(name for name in others if name in table.classes and name not in usual)]
    if named:
        pair = usual_columns(others, ("label", "labels"))
        return pair if len(pair) == 2 and _complete_each_other(table, pair) else named[:1]
    if not others:
        raise UnlabeledError(
            f"{table.title} has no column of labels beside its images: add one, or name data with "
            "labels"
        )
    candidates = [name for name in others if _may_be_labels(table.cells(name))]
    if binary and binary == candidates:
        return binary
    if len(candidates) == 1:
        return candidates
    if not candidates:
        raise UnlabeledError(
            f"{table.title} has no label column; its columns are {', '.join(table.columns)[:200]}: "
            "name one with --label-column"
        )
    raise DataError(
        f"{table.title} does not say which of {', '.join(candidates)[:200]} is the label: name it "
        "with --label-column"
    )


def _complete_each_other(table: CellTable, pair: Sequence[str]) -> bool:
    """Return whether every row has at most one of two cells."""
    cells = zip(*(map(plain_value, table.cells(name)) for name in pair), strict=True)
    return all(one is None or other is None for one, other in cells)


def _is_binary(cells: Sequence[Any]) -> bool:
    """Return whether a column holds 0 and 1 alone."""
    head = {str(plain_value(cells[row])).strip() for row in range(min(20, len(cells)))}
    if not head <= ZERO_ONE:
        return False
    return {str(value).strip() for value in encode_cells(cells)[0]} <= ZERO_ONE


def _may_be_labels(cells: Sequence[Any]) -> bool:
    """Return whether a column of no usual name may hold labels: words or numbers that recur."""
    distinct, codes = encode_cells(cells)
    plain = all(value is None or isinstance(value, str | int) for value in distinct)
    is_empty = all(value is None for value in distinct)
    return plain and not is_empty and (len(distinct) < len(codes) or len(codes) < 3)


def _column_notes(
    table: CellTable, image_column: str, columns: Sequence[str], is_asked: bool
) -> list[str]:
    """Return a line about columns whose names do not say what they hold, and about others."""
    plain = ("path", "file_name", "label", "labels", "image")
    notes = list[str]()
    if image_column not in plain or columns[0] not in plain:
        notes.append(
            f"{table.title}: images are in column {image_column}, labels in {some(columns)}"
        )
    usual = usual_columns(table.columns, LABEL_COLUMNS)
    others = [name for name in dict.fromkeys([*usual, *table.classes]) if name not in columns]
    others = [] if is_asked else others
    if others and len(columns) == 1:
        notes.append(f"labels are in column {columns[0]}; --label-column {others[0]} takes others")
    return notes


def _twice_notes(paths: Sequence[str], column: LabelColumn, title: str) -> list[str]:
    """Return a line about images that are listed again with another label."""
    keys = [tuple(sorted(each)) if isinstance(each, tuple) else each for each in column.distinct]
    known = defaultdict[str, set[Any]](set)
    for path, code in zip(paths, column.codes.tolist(), strict=True):
        if keys[code] is not None:
            known[os.path.normpath(path)].add(keys[code])
    doubtful = [path for path, labels in known.items() if len(labels) > 1]
    line = f"{len(doubtful):,} images are in {title} more than once with different labels"
    return [f"{line}: {some(doubtful)}"] if doubtful else []
