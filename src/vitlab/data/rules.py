"""Rules of cells: what a label, a split and a path in a cell of a table mean, and what is empty.

Every opener of `data/sources` asks here, so that the same images have the same labels and splits in
a folder, a list, a table, an archive and in memory. Nothing here opens a file.
"""

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Any
from urllib.parse import unquote

import numpy as np
from numpy.typing import NDArray

from vitlab.data.class_names import look_alike_notes, spell_name
from vitlab.data.split_words import SPLIT_OF, SPLIT_WORDS, is_like_a_split
from vitlab.errors import DataError
from vitlab.values import LONGEST

Label = str | tuple[str, ...]
"""The label of one image: one class, or any number of them."""

Indices = NDArray[np.int64]


# Cells

MISSING_TEXTS = frozenset({"", "nan", "<na>", "nat", "#n/a", "null", "-nan"})
"""Texts that stand for an empty cell, in lower case: of spreadsheets, pandas and databases."""

DOUBTFUL_TEXTS = frozenset({"None", "NA", "N/A", "n/a", "-1"})
"""Classes that may stand for a missing label: taken as classes, and named."""


def plain_value(cell: Any) -> Any:
    """Return a cell as Python's own value: of NumPy, PyTorch, pandas and pyarrow too."""
    if cell is None or type(cell) in (str, int, float, bool, list, tuple, dict):
        return cell
    if isinstance(cell, PurePath):
        return str(cell)
    if isinstance(cell, str | int | float):  # a subclass: of NumPy, or an enumeration
        return str(cell) if isinstance(cell, str) else cell.real
    if hasattr(cell, "as_py"):  # a scalar of pyarrow
        return cell.as_py()
    if hasattr(cell, "tolist"):  # of NumPy or PyTorch: a scalar, or a list
        return cell.tolist()
    if isinstance(cell, set | frozenset):
        return sorted(cell, key=str)
    return None if type(cell).__name__ in ("NAType", "NaTType") else cell


def is_missing(cell: Any) -> bool:
    """Return whether a plain cell is empty."""
    if isinstance(cell, str):
        return cell.strip().lower() in MISSING_TEXTS
    return cell is None or (isinstance(cell, float) and math.isnan(cell))


def encode_cells(cells: Sequence[Any]) -> tuple[list[Any], Indices]:
    """Return the distinct plain cells of a column, and the number of each row's, int64 (n,).

    They stand in the order in which they occur. Cells that are empty are all None.
    """
    numbers = dict[Hashable, int]()
    distinct = list[Any]()
    codes = np.empty(len(cells), np.int64)
    for row, cell in enumerate(cells):
        value = plain_value(cell)
        if is_missing(value):
            value = None
        elif isinstance(value, list | tuple):
            value = tuple(map(plain_value, value))
        try:
            key: Hashable = (type(value), value)
            number = numbers.setdefault(key, len(distinct))
        except TypeError:  # a dictionary, or a list in a list: no label
            number = len(distinct)
        if number == len(distinct):
            distinct.append(value)
        codes[row] = number
    return distinct, codes


# Labels

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


@dataclass(frozen=True)
class ColumnFacts:
    """What is known of a column of labels besides its cells.

    Attributes:
        title: of the data, for notes and errors
        column: its name
        place: where a row is, such as `line 3`
        classes: names that its numbers index; None where it has none
        separator: that the user names
        is_csv: whether every cell was text in a file that has no lists
    """

    title: str
    column: str
    place: Callable[[int], str]
    classes: Sequence[str] | None = None
    separator: str = ""
    is_csv: bool = False


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


# Splits


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


def usual_columns(names: Sequence[str], usual: Sequence[str]) -> list[str]:
    """Return the columns with usual names, the most usual first."""
    own: Mapping[str, str] = {name.strip().lower(): name for name in reversed(names)}
    return [own[each] for each in usual if each in own]


# Paths

PATH_COLUMNS = (
    "path", "file", "file_name", "filename", "image", "image_path", "img_path", "filepath",
    "file_path", "image_name", "image_id", "image_file", "img", "id", "name",
)  # fmt: skip


MOST_FOLDERS = 6  # of a path of another machine
_ABSOLUTE = re.compile(r"/|[A-Za-z]:/")


def path_in(cell: Any) -> str:
    """Return the path in a cell; empty if there is none."""
    value = plain_value(cell)
    if isinstance(value, bool) or not isinstance(value, str | int):
        return ""
    text = str(value)
    return text if text.strip() and "\0" not in text else ""


def path_spellings(path: str, root: str = "") -> Iterator[tuple[str, str]]:
    r"""Yield the path as it is written, then other ways to read it, each with what is done.

    Args:
        path: as a list of Windows, macOS or a web page writes it: `cat\1.jpg`, `file:///a%20b.jpg`
        root: name of the folder that paths are relative to, with which they may begin
    """
    seen = {path}
    yield path, ""
    forms = [(path, "")]
    if (text := path.strip().strip("\"'")) != path:
        forms.append((text, "without the spaces or quotes around them"))
    if text.lower().startswith("file:"):
        forms.append((unquote(re.sub(r"^file:(//(localhost)?)?", "", text, flags=re.I)), "as URLs"))
    if "\\" in text:
        forms.append((text.replace("\\", "/"), "with / for \\"))
    if "%" in text and unquote(text) != text:
        forms.append((unquote(text), "with % decoded"))
    for form, how in [*forms]:
        if form.startswith("/"):
            forms.append((form.lstrip("/"), "relative to the folder"))
        bare = form.removeprefix("./").lstrip("/")
        if root and bare.startswith(f"{root}/"):
            forms.append((bare[len(root) + 1 :], how or f"without {root}/"))
    for form, how in [*forms]:
        for kind in ("NFC", "NFD"):
            if not form.isascii():
                forms.append((unicodedata.normalize(kind, form), how or f"in Unicode's {kind}"))
    for form, how in forms + _tails([form for form, _ in forms]):
        if form and form not in seen:
            seen.add(form)
            yield form, how


def _tails(forms: Sequence[str]) -> list[tuple[str, str]]:
    """Return the ends of absolute paths, the longest first, each with a folder of its own.

    So a list of another machine, /home/her/photos/cat/1.jpg, has cat/1.jpg.
    """
    found = list[tuple[str, str]]()
    for form in forms:
        if _ABSOLUTE.match(form):
            parts = [part for part in form.split("/") if part]
            ends = range(max(1, len(parts) - MOST_FOLDERS - 1), len(parts) - 1)
            found += [("/".join(parts[end:]), "by the last of their folders") for end in ends]
    return found
