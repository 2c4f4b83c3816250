"""Splits in cells of tables: columns of their words, of folds, and of true and false."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitlab.data.cells import (
    ColumnFacts,
    Indices,
    encode_cells,
    is_missing,
    plain_value,
    usual_columns,
)
from vitlab.data.label_cells import LABEL_COLUMNS
from vitlab.data.split_words import SPLIT_OF, SPLIT_WORDS, is_like_a_split
from vitlab.errors import DataError

SPLIT_COLUMNS = (
    "split", "splits", "subset", "partition", "phase", "set", "usage", "data_split",
    "dataset_split", "split_name",
)  # fmt: skip
FOLD_COLUMNS = ("fold", "kfold", "folds", "fold_id", "fold_number")
FLAG_COLUMNS = {
    "isvalid": "validation", "isval": "validation", "isvalidation": "validation",
    "isdev": "validation", "istest": "test", "istesting": "test", "isholdout": "test",
    "istrain": "train", "istraining": "train", "istrainingimage": "train", "intrain": "train",
    "intest": "test",
}  # fmt: skip
"""Columns of true and false (fastai's and others'), and the split of what is true.

Their names are in lower case, without spaces, `_` and `-`.
"""

_TRUE = frozenset({"true", "1", "1.0", "yes", "y", "t"})
_FALSE = frozenset({"false", "0", "0.0", "no", "n", "f"})
MOST_SPLITS = 10  # words of a column that is like one of splits


@dataclass(frozen=True)
class SplitColumn:
    """The splits that a column declares.

    Attributes:
        splits: train, validation or test, of each row; empty where no column declares any
        columns: its name; several of true and false
        notes: what was guessed, for the user
    """

    splits: list[str] = field(default_factory=list)
    columns: tuple[str, ...] = ()
    notes: list[str] = field(default_factory=list)


def _text_of(value: Any) -> str:
    """Return a distinct cell as a word; empty where there is none."""
    return "" if value is None else str(value).strip().lower()


def find_split_column(
    names: Sequence[str],
    cells: Callable[[str], Sequence[Any]],
    facts: ColumnFacts,
    taken: Sequence[str] = (),
) -> SplitColumn:
    """Return the splits that a column declares, if any does.

    A column of a usual name, of true and false such as is_valid, of folds (the lowest is the test
    split), or any column that holds nothing but names of splits. Rows without one are training
    images.

    Args:
        names: of the columns
        cells: of a column, by its name
        facts: the column that the user names, if any; title and places
        taken: columns that hold something else

    Raises:
        DataError: a word that is no split, in the column `split` or the one that the user names.
    """
    if facts.column == "none":
        return SplitColumn()
    free = [name for name in names if name not in taken]
    if facts.column:
        return _read_splits(facts.column, cells(facts.column), facts, is_sure=True)
    usual = usual_columns(free, SPLIT_COLUMNS)
    flags = _flag_columns(free)
    if usual_columns(names, LABEL_COLUMNS):  # else they may be classes
        flags |= _split_named_columns(free)
    folds = usual_columns(free, FOLD_COLUMNS)
    known = {*usual_columns(free, LABEL_COLUMNS), *usual, *flags, *folds}
    others = [name for name in free if name and name not in known]
    notes = list[str]()
    for name in [*usual, *flags, *folds, *others]:
        if name in others and not _begins_like_splits(cells(name)):
            continue
        if name in flags:
            found = _flagged(flags, cells, facts) if name == next(iter(flags)) else SplitColumn()
        else:
            found = _read_splits(name, cells(name), facts, is_sure=name.strip().lower() == "split")
        notes += found.notes
        if found.splits:
            return replace(found, notes=notes)
    return SplitColumn(notes=notes)


def _flag_columns(names: Sequence[str]) -> dict[str, str]:
    """Return the columns named as those of true and false, and the split of what is true."""
    keys = {name: re.sub(r"[\s_-]", "", name.lower()) for name in names}
    return {name: FLAG_COLUMNS[key] for name, key in keys.items() if key in FLAG_COLUMNS}


def _split_named_columns(names: Sequence[str]) -> dict[str, str]:
    """Return columns named as two splits or more, such as train, val and test, and their splits."""
    found = {name: SPLIT_OF.get(name.strip().lower(), "") for name in names}
    own = {name: split for name, split in found.items() if split}
    return own if len({*own.values()}) > 1 else {}


def _begins_like_splits(cells: Sequence[Any]) -> bool:
    """Return whether the first cells look like names of splits, before all are read."""
    head = [plain_value(cells[row]) for row in range(min(20, len(cells)))]
    words = [_text_of(value) for value in head if isinstance(value, str) and not is_missing(value)]
    return bool(words) and all(map(is_like_a_split, words))


def _read_splits(
    name: str, cells: Sequence[Any], facts: ColumnFacts, *, is_sure: bool
) -> SplitColumn:
    """Return the splits in one column; none where it declares none."""
    distinct, codes = encode_cells(cells)
    words = [_text_of(value) for value in distinct]
    present = [word for word in words if word]
    key = name.strip().lower()
    if not present:
        return SplitColumn()
    if unknown := [word for word in present if word not in SPLIT_OF]:
        if flags := _flag_columns([name]):
            return _flagged(flags, lambda _: cells, facts)
        if key in FOLD_COLUMNS:
            return _read_folds(name, words, codes, facts)
        if is_sure:
            row = int(np.flatnonzero(codes == words.index(unknown[0]))[0])
            raise DataError(
                f"{facts.title} {facts.place(row)}: unknown split {unknown[0]!r}; choose train, "
                "val or test"
            )
        is_known = key in SPLIT_COLUMNS
        is_few = 1 < len(present) <= MOST_SPLITS
        notes = [_ignored_line(name, unknown[0], facts)] if is_known or is_few else []
        return SplitColumn(notes=notes)
    if len({SPLIT_OF[word] for word in present}) < 2 and key not in SPLIT_COLUMNS:
        return SplitColumn()
    notes = list[str]()
    if key not in SPLIT_COLUMNS:
        notes.append(f"column {name} of {facts.title} names the splits")
    own = [SPLIT_OF.get(words[code], "") for code in codes.tolist()]
    return _with_missing(own, (name,), facts, notes)


def _ignored_line(name: str, word: str, facts: ColumnFacts) -> str:
    """Return a line about a column that might be one of splits, but has another word."""
    return (
        f"column {name} of {facts.title} names no splits ({word}): ignored; the words train, val "
        "and test make it count"
    )


def _with_missing(
    splits: list[str], names: tuple[str, ...], facts: ColumnFacts, notes: list[str]
) -> SplitColumn:
    """Return the split of each row; rows without one are training images, and counted."""
    column = " and ".join(names)
    missing = splits.count("")
    if missing:
        notes.append(
            f"{missing:,} of {len(splits):,} rows of {facts.title} are empty in column {column}: "
            "training images"
        )
    own = [split or "train" for split in splits]
    if "train" not in own:
        present = " and ".join(name for name in SPLIT_WORDS if name in own)
        notes.append(f"column {column} of {facts.title} has {present} alone, no train: not used")
    return SplitColumn(own, names, notes)


def _flagged(
    flags: Mapping[str, str], cells: Callable[[str], Sequence[Any]], facts: ColumnFacts
) -> SplitColumn:
    """Return the splits in columns such as is_valid and is_test.

    Raises:
        DataError: a row that is in several splits, or in none.
    """
    used = dict[str, str]()
    notes = list[str]()
    is_true = dict[str, NDArray[np.bool_]]()
    is_false = dict[str, NDArray[np.bool_]]()
    for name, split in flags.items():
        distinct, codes = encode_cells(cells(name))
        words = [_text_of(value) for value in distinct]
        if odd := [word for word in words if word not in _TRUE | _FALSE | {""}]:
            notes.append(_ignored_line(name, odd[0], facts))
        elif _TRUE & {*words} and split not in used.values():
            used[name] = split
            is_true[split] = np.array([word in _TRUE for word in words])[codes]
            is_false[split] = np.array([word in _FALSE for word in words])[codes]
            notes.append(f"column {name} of {facts.title}: what is true is the {split} split")
    if not used:
        return SplitColumn(notes=notes)
    columns = " and ".join(used)
    unsaid = [split for split in ("test", "validation") if split not in is_true]
    is_no_training = is_false.get("train", np.zeros(len(codes), bool))
    of_false = np.where(is_no_training, unsaid[0] if unsaid else "none", "train")
    is_any_false = np.any([*is_false.values()], axis=0)
    own = np.where(is_any_false, of_false, "").astype(object)
    for split, rows in is_true.items():
        own[rows] = split
    is_wrong = (np.sum([*is_true.values()], axis=0) > 1) | (own == "none")
    if is_wrong.any():
        row = int(np.flatnonzero(is_wrong)[0])
        number = "no split" if own[row] == "none" else "several splits"
        raise DataError(f"{facts.title} {facts.place(row)} is in {number} by columns {columns}")
    return _with_missing(own.tolist(), tuple(used), facts, notes)


def _read_folds(name: str, words: Sequence[str], codes: Indices, facts: ColumnFacts) -> SplitColumn:
    """Return the lowest fold as the test split; words for a split beside numbers as that split."""
    values = sorted({word for word in words if word}, key=by_number)
    if len(values) < 2:
        return SplitColumn()
    named = {word: SPLIT_OF[word] for word in values if SPLIT_OF.get(word, "train") != "train"}
    if named:
        line = f"{' and '.join(named)} are splits, the other values are for training"
    else:
        named = {values[0]: "test"}
        line = f"{values[0]} is the test split, the other {len(values) - 1} are for training"
    own = [named.get(words[code], "train") if words[code] else "" for code in codes.tolist()]
    return _with_missing(own, (name,), facts, [f"column {name} of {facts.title}: {line}"])


def by_number(word: str) -> tuple[float, str]:
    """Sort numbers first, by value; then words."""
    try:
        return float(word), word
    except ValueError:
        return math.inf, word
