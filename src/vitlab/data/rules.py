"""Rules of data: which file is left out, and what a label, a split and a path in a cell mean.

Every opener of `data/sources` asks here, so that the same images have the same labels and splits in
a folder, a list, a table, an archive and in memory. Nothing here opens a file.
"""

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any
from urllib.parse import unquote

import numpy as np
from numpy.typing import NDArray

from vitlab.errors import DataError
from vitlab.values import LONGEST

Label = str | tuple[str, ...]
"""The label of one image: one class, or any number of them."""

Indices = NDArray[np.int64]

# Files

SYSTEM_NAMES = frozenset({
    "__macosx", "@eadir", "@tmp", "#recycle", "@recycle", "@recently-snapshot", "$recycle.bin",
    "system volume information", "lost+found", "__pycache__", "thumbs.db", "ehthumbs.db",
    "desktop.ini", "icon\r", "found.000", "network trash folder", "temporary items",
})  # fmt: skip
"""Files and folders that macOS, Windows, Linux and network drives add, in lower case."""

SYSTEM_PREFIXES = (".", "synophoto_thumb_", "synofile_thumb_", "~$")
"""Beginnings of hidden names, and of thumbnails and locks beside the files of a user."""


def is_system_name(name: str) -> bool:
    """Return whether a file or folder is hidden, or one that a system adds to a user's own."""
    lower = name.lower()
    return lower in SYSTEM_NAMES or lower.startswith(SYSTEM_PREFIXES)


MASK_LAYOUTS = (
    ("images", "masks", 255),
    ("JPEGImages", "SegmentationClass", 255),
    ("images", "annotations", 0),
)
"""Folders of images and of their masks, which are no classes, and the number that masks ignore."""

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
_INVISIBLE = dict.fromkeys(map(ord, "\u200b\u200e\u200f\u2060\ufeff"))
NOT_A_LABEL = "has no label, or one that is neither text nor a whole number"


def spell_name(name: str) -> str:
    """Return the name of a class as it is compared: composed, without spaces around it.

    macOS writes é as two characters; invisible ones come from web pages. They look the same.
    """
    composed = name if name.isascii() else unicodedata.normalize("NFC", name.translate(_INVISIBLE))
    return composed.strip()


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
    separator = facts.separator or _choose_separator(distinct, facts, notes)
    distinct = _strip_fractions(distinct)
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


def look_alike_notes(names: Iterable[str], title: str) -> list[str]:
    """Return a line about classes whose names differ in case, spaces or kinds of characters."""
    alike = dict[str, list[str]]()
    for name in names:
        key = unicodedata.normalize("NFKC", name).casefold()
        alike.setdefault(re.sub(r"[\s_-]+", " ", key), []).append(name)
    pairs = [sorted(own) for own in alike.values() if len(own) > 1]
    if not pairs:
        return []
    shown = "; ".join(" and ".join(map(repr, own)) for own in pairs[:3])
    return [f"{title} has classes whose names are nearly the same: {shown}"]


def merge_names(names: Iterable[str], title: str) -> tuple[dict[str, str], list[str]]:
    """Return the spelled name of each class, and lines about those of two spellings.

    Args:
        names: as they are written, of folders for example
        title: what to call the data
    """
    spelled = {name: spell_name(name) or name for name in names}
    twice = [name for name, count in Counter(spelled.values()).items() if count > 1]
    notes = [
        f"{title}: {name!r} is written in {Counter(spelled.values())[name]} ways that look the "
        "same, and is one class"
        for name in twice
    ]
    return spelled, [*notes, *look_alike_notes(dict.fromkeys(spelled.values()), title)]


# Splits

SPLIT_WORDS = {
    "train": ("train", "training"),
    "validation": ("val", "valid", "validation", "dev", "eval", "evaluation"),
    "test": ("test", "testing"),
}
"""Spellings of the names of splits, in lower case."""

SPLIT_OF = {word: split for split, words in SPLIT_WORDS.items() for word in words}
SPLIT_COLUMNS = (
    "split", "splits", "subset", "partition", "phase", "set", "usage", "data_split",
    "dataset_split", "split_name",
)  # fmt: skip
FOLD_COLUMNS = ("fold", "kfold", "folds", "fold_id", "fold_number")
FLAG_COLUMNS = {
    "is_valid": "validation", "is_val": "validation", "is_validation": "validation",
    "is_test": "test", "is_train": "train", "is_training": "train", "is_training_image": "train",
}  # fmt: skip
"""Columns of true and false (fastai's and others'), and the split of what is true."""

_TRUE = frozenset({"true", "1", "1.0", "yes"})
_FALSE = frozenset({"false", "0", "0.0", "no"})


@dataclass(frozen=True)
class SplitColumn:
    """The splits that a column declares.

    Attributes:
        splits: train, validation or test, of each row; empty where no column declares any
        column: its name
        notes: what was guessed, for the user
    """

    splits: list[str] = field(default_factory=list)
    column: str = ""
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
        return _declared(facts.column, cells(facts.column), facts, is_sure=True)
    ordered = dict.fromkeys(usual_columns(free, SPLIT_COLUMNS))
    ordered |= dict.fromkeys(usual_columns(free, tuple(FLAG_COLUMNS)))
    ordered |= dict.fromkeys(usual_columns(free, FOLD_COLUMNS))
    known = {*usual_columns(free, LABEL_COLUMNS), *ordered}
    ordered |= dict.fromkeys(name for name in free if name and name not in known)
    notes = list[str]()
    for name in ordered:
        if name not in known and not _begins_with_splits(cells(name)):
            continue
        found = _declared(name, cells(name), facts, is_sure=name.strip().lower() == "split")
        notes += found.notes
        if found.splits:
            return SplitColumn(found.splits, name, notes)
    return SplitColumn(notes=notes)


def _begins_with_splits(cells: Sequence[Any]) -> bool:
    """Return whether the first cells are names of splits, before all are read."""
    head = [plain_value(cells[row]) for row in range(min(20, len(cells)))]
    words = [_text_of(value) for value in head if isinstance(value, str) and not is_missing(value)]
    return bool(words) and all(word in SPLIT_OF for word in words)


def _declared(name: str, cells: Sequence[Any], facts: ColumnFacts, *, is_sure: bool) -> SplitColumn:
    """Return the splits in one column; none where it declares none."""
    distinct, codes = encode_cells(cells)
    words = [_text_of(value) for value in distinct]
    present = [word for word in words if word]
    key = name.strip().lower()
    column = f"column {name} of {facts.title}"
    if not present:
        return SplitColumn()
    if unknown := [word for word in present if word not in SPLIT_OF]:
        if key in FLAG_COLUMNS:
            return _flagged(name, words, codes, facts)
        if key in FOLD_COLUMNS:
            return _folded(name, words, codes, facts)
        if is_sure:
            row = int(np.flatnonzero(codes == words.index(unknown[0]))[0])
            raise DataError(
                f"{facts.title} {facts.place(row)}: unknown split {unknown[0]!r}; choose train, "
                "val or test"
            )
        return SplitColumn(notes=[f"{column} names no splits ({unknown[0]}): ignored"])
    if len({SPLIT_OF[word] for word in present}) < 2 and key not in SPLIT_COLUMNS:
        return SplitColumn()
    notes = list[str]()
    if key not in SPLIT_COLUMNS:
        notes.append(f"{column} names the splits")
    return _with_missing([SPLIT_OF.get(word, "") for word in words], codes, name, facts, notes)


def _with_missing(
    splits: list[str], codes: Indices, name: str, facts: ColumnFacts, notes: list[str]
) -> SplitColumn:
    """Return the split of each row; rows without one are training images, and counted."""
    own = [splits[code] for code in codes.tolist()]
    missing = own.count("")
    if missing:
        notes.append(
            f"{missing:,} of {len(own):,} rows of {facts.title} are empty in column {name}: "
            "training images"
        )
    return SplitColumn([split or "train" for split in own], name, notes)


def _flagged(name: str, words: Sequence[str], codes: Indices, facts: ColumnFacts) -> SplitColumn:
    """Return the splits in a column such as is_valid."""
    split = FLAG_COLUMNS[name.strip().lower()]
    other = "test" if split == "train" else "train"
    if not all(word in _TRUE | _FALSE | {""} for word in words) or not _TRUE & {*words}:
        return SplitColumn()
    notes = [f"column {name} of {facts.title}: what is true is the {split} split"]
    own = [split if word in _TRUE else other if word else "" for word in words]
    return _with_missing(own, codes, name, facts, notes)


def _folded(name: str, words: Sequence[str], codes: Indices, facts: ColumnFacts) -> SplitColumn:
    """Return the lowest fold as the test split."""
    values = sorted({word for word in words if word}, key=by_number)
    if len(values) < 2:
        return SplitColumn()
    notes = [
        f"column {name} of {facts.title}: {values[0]} is the test split, the other "
        f"{len(values) - 1} are for training"
    ]
    own = ["" if not word else "test" if word == values[0] else "train" for word in words]
    return _with_missing(own, codes, name, facts, notes)


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
    for form, how in forms:
        if form and form not in seen:
            seen.add(form)
            yield form, how
