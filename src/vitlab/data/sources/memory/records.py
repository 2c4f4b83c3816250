"""Rows with named columns: a DataFrame of pandas, or a list of dictionaries."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from vitlab.data.pictures.pictures import Picture
from vitlab.data.settings import Columns
from vitlab.data.sources.listed.columns import Row, find_columns
from vitlab.data.sources.listed.lists import read_entries, split_in
from vitlab.data.sources.memory.part import Part, images_source
from vitlab.errors import DataError


def rows_in(data: object) -> list[Row] | None:
    """Return the rows of a table in memory; None for other objects."""
    if type(data).__module__.partition(".")[0] == "pandas" and hasattr(data, "columns"):
        frame: Any = data
        return [{str(k): v for k, v in row.items()} for row in frame.to_dict("records")]
    if isinstance(data, Sequence) and data and all(isinstance(each, Mapping) for each in data):
        return [{str(key): value for key, value in row.items()} for row in data]
    return None


def read_records(rows: list[Row], title: str, known: Columns, names: tuple[str, ...]) -> Part:
    """Return rows as a part: their columns are found as those of lists are.

    A column holds images, or paths relative to the current folder or that of `images`.

    Raises:
        DataError: columns that cannot be told apart, rows without image or label, missing files.
    """
    if not rows:
        raise DataError(f"{title} has no rows")
    columns = list(dict.fromkeys(name for row in rows for name in row))
    image = known.path_column or next(
        (name for name in columns if picture_in(rows[0].get(name)) is not None), ""
    )
    if image and picture_in(rows[0].get(image)) is None:
        image = ""  # a column of paths
    file = Path(title)
    found = find_columns(columns, rows, file, known, image)
    numbered = [(f"row {number}", row) for number, row in enumerate(rows)]
    entries, notes = read_entries(numbered, found, file, known)
    pictures: list[Picture] = [found.places.root / str(each.path) for each in entries]
    if image:
        pictures = [_given(row.get(image), f"{title} {where}") for where, row in numbered]
    splits = [split_in(each, file) for each in entries] if any(e.split for e in entries) else []
    labels = [each.label for each in entries]
    return Part(images_source(pictures, title), labels, names, splits, notes)


def _given(cell: object, where: str) -> Picture:
    picture = picture_in(cell)
    if picture is None:
        raise DataError(f"{where} has no image")
    return picture


def picture_in(cell: object) -> Picture | None:
    """Return the image in a cell, also as in Parquet files; None for paths and others."""
    if isinstance(cell, Mapping) and {"bytes", "path"} <= set(cell):
        inside: Picture | None = cell["bytes"] if cell["bytes"] is not None else cell["path"]
        return inside
    if isinstance(cell, bytes | Image.Image):
        return cell
    return cell if isinstance(cell, np.ndarray | Tensor) and cell.ndim >= 2 else None
