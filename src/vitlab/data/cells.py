"""Cells of tables: their plain values, which are empty, and what is known of a column.

What labels, splits and paths mean is in `label_cells.py`, `split_cells.py` and `path_cells.py`.
Every opener of `data/sources` asks here, so that the same images have the same labels and splits in
a folder, a list, a table, an archive and in memory. Nothing here opens a file.
"""

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]

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


def usual_columns(names: Sequence[str], usual: Sequence[str]) -> list[str]:
    """Return the columns with usual names, the most usual first."""
    own: Mapping[str, str] = {name.strip().lower(): name for name in reversed(names)}
    return [own[each] for each in usual if each in own]
