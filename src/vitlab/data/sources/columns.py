"""Which columns of a list of images hold the path, the label and the split: by name and content."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitlab.data.decode.formats import SUFFIXES
from vitlab.data.labels import UnlabeledError
from vitlab.data.settings import Columns
from vitlab.data.sources.folders import visible
from vitlab.errors import DataError
from vitlab.options import nearest

Row = dict[str, Any]
PATHS = (
    "path", "file", "file_name", "filename", "image", "image_path", "img_path", "filepath",
    "image_name", "image_id", "img", "id", "name",
)  # fmt: skip
LABELS = (
    "labels", "label", "class", "class_name", "classname", "label_name", "category", "target",
    "targets", "tag", "tags", "species", "breed", "diagnosis", "dx",
)  # fmt: skip
SPLITS = ("split", "subset", "partition", "phase", "set")
FOLDS = ("fold", "kfold", "folds")
SAMPLE = 5  # rows whose images are looked for


@dataclass(frozen=True)
class Places:
    """Where the images of a list are.

    Attributes:
        root: the folder that the paths are relative to
        ending: what the list leaves out of every path
    """

    root: Path
    ending: str = ""

    def has(self, text: object, whole: bool = False) -> bool:
        """Return whether a cell is the path of a file; `whole` if it has its ending."""
        if not isinstance(text, str | int) or not str(text).strip() or "\0" in str(text):
            return False
        try:
            return (self.root / (f"{text}" if whole else f"{text}{self.ending}")).is_file()
        except OSError:  # longer than a path can be
            return False


def check_known_columns(names: Sequence[str], file: Path, known: Sequence[str]) -> None:
    """Refuse columns that a list does not have.

    Raises:
        DataError: the first of them.
    """
    for name in known:
        if name and name not in names:
            raise DataError(f"{file} has no column {name!r}: {nearest(name, names)}")


def candidates(file: Path, known: Columns) -> list[Places]:
    """Return where the images of a list may be, the most usual place first.

    Raises:
        DataError: the folder that the user names does not exist.
    """
    folder = file.parent
    if known.images:
        roots = [Path(known.images).expanduser()]
        if not roots[0].is_dir():
            raise DataError(f"--images {known.images}: no such folder")
    else:
        roots = [folder, *visible(folder)]
    return [Places(root, ending) for ending in ("", *sorted(SUFFIXES)) for root in roots]


def find_paths(
    names: Sequence[str], rows: Sequence[Row], file: Path, known: Columns
) -> tuple[str, Places]:
    """Return the column of the paths, and where they are: the first place that has the first rows.

    Args:
        names: of the columns
        rows: all rows
        file: the list
        known: what the user says of them

    Raises:
        DataError: an unknown column, or none that can be the one of the paths.
    """
    check_known_columns(names, file, (known.path_column,))
    rows = rows[:SAMPLE]
    usual = named(names, PATHS)
    columns = [known.path_column] if known.path_column else [*usual, *names]
    places = candidates(file, known)
    for where in places:
        for name in columns:
            if rows and all(where.has(row.get(name)) for row in rows):
                return name, where
    for where in places:  # some of the first rows: the others are reported as missing
        for name in columns:
            if any(where.has(row.get(name)) for row in rows):
                return name, where
    if known.path_column or usual:
        return columns[0], places[0]
    raise DataError(
        f"{file} has no column of paths among {', '.join(names)[:200]}: name it with "
        "--path-column, and the folder of the images with --images"
    )


def named(names: Sequence[str], usual: Sequence[str]) -> list[str]:
    """Return the columns with usual names, the most usual first."""
    own = {name.strip().lower(): name for name in reversed(names)}
    return [own[each] for each in usual if each in own]


def find_labels(
    others: list[str], rows: Sequence[Row], file: Path, known: Columns
) -> tuple[tuple[str, ...], bool]:
    """Return the columns of the labels, and whether each of them is a class.

    Args:
        others: the columns that hold neither images, splits nor folds
        rows: all rows
        file: the list
        known: what the user says of them

    Raises:
        DataError: they cannot be told.
    """
    if known.label_column:
        if len(known.label_column) > 1 and not all(_binary(rows, n) for n in known.label_column):
            raise DataError(
                f"{file}: several label columns must hold 0 and 1 only, a class each: "
                f"{', '.join(known.label_column)} do not"
            )
        return known.label_column, len(known.label_column) > 1
    if usual := named(others, LABELS):
        return (usual[0],), False
    binary = [name for name in others if _binary(rows, name)]
    if len(others) > 1 and binary == others:
        return tuple(others), True
    if len(others) == 1:
        return (others[0],), False
    if not others:
        raise UnlabeledError(
            f"{file} has no column of labels beside its paths: add one, or name a list with labels"
        )
    raise DataError(
        f"{file} does not say which of {', '.join(others)[:200]} is the label: name it with "
        "--label-column"
    )


def _binary(rows: Sequence[Row], name: str) -> bool:
    return all(str(row.get(name)).strip() in ("0", "1", "0.0", "1.0") for row in rows)


def several_separator(cells: Sequence[object], known: Columns) -> str:
    """Return what separates the labels in the cells of a column; empty for one label per cell."""
    if known.label_separator:
        return known.label_separator
    texts = [each for each in cells if isinstance(each, str)]
    if any("|" in each for each in texts):
        return "|"
    numbers = all(re.fullmatch(r"\s*\d+(\s+\d+)*\s*", each) for each in texts)
    return " " if numbers and any(len(each.split()) > 1 for each in texts) else ""


def spaced_note(labels: Iterable[object]) -> list[str]:
    """Return a line about labels such as `beagle dog`, which may be several in a cell.

    They look so if each of their words is in more labels than one.
    """
    names = sorted({each for each in labels if isinstance(each, str)})
    wide = [name for name in names if len(name.split()) > 1]
    among = Counter(word for name in names for word in set(name.split()))
    if len(wide) < 2 or any(among[word] == 1 for name in wide for word in name.split()):
        return []
    return [
        f"labels such as '{wide[0]}' are one class each; --label-separator ' ' makes them several"
    ]
