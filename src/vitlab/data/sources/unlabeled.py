"""The images of DATA, whatever their labels: to predict, or to take features, needs none."""

import os
from collections.abc import Sequence
from pathlib import Path

from vitlab.data.composed import Joined
from vitlab.data.decode.formats import SUFFIXES
from vitlab.data.presence import is_hub_data
from vitlab.data.settings import Columns
from vitlab.data.sources.inside import Inside
from vitlab.data.sources.opening import open_data
from vitlab.data.sources.protocol import Source
from vitlab.data.sources.tables.arrow import Table, unlabeled
from vitlab.data.sources.tables.table_files import SAVED, load_tables
from vitlab.data.sources.tar_shards import shard_places, unlabeled_shards
from vitlab.errors import DataError


def open_unlabeled(names: Sequence[str], columns: Columns | None = None) -> Source | None:
    """Open all images of tar shards, tables or other DATA; None for what names image files.

    Args:
        names: of one DATA, or of several shards or Parquet files
        columns: which column of a table holds the images, and where the files are that it names

    Raises:
        DataError: it cannot be opened, or there are shards or tables beside something else.
    """
    columns = columns or Columns()
    kinds = {_kind(name) for name in names}
    if kinds <= {""}:
        return None
    if len(kinds) > 1 or (kinds == {"data"} and len(names) > 1):
        raise DataError(
            "give shards, tables or image files, not several of these kinds: "
            f"{', '.join(map(str, names[:3]))}"
        )
    if kinds == {"shards"}:
        return unlabeled_shards([place for name in names for place in shard_places(name)])
    if kinds == {"tables"}:
        parts: list[Source] = [each for name in names for each in _tables(name, columns).values()]
    else:
        parts = list(open_data(names[0], columns=columns, learning=False).parts.values())
    return parts[0] if len(parts) == 1 else Joined(tuple(parts))


def unlabeled_splits(data: str, columns: Columns | None = None) -> dict[str, Source]:
    """Return the images of shards or tables without labels, by split.

    Raises:
        DataError: they cannot be opened.
    """
    if _kind(data) == "shards":
        return {"all": unlabeled_shards(shard_places(data))}
    return dict(_tables(data, columns or Columns()))


def _kind(name: str) -> str:
    """Return what a name stands for: shards, tables, other data, or (empty) image files."""
    path = Path(name).expanduser()
    if path.is_dir():
        return _kind_of_folder(path)
    if name.endswith(".parquet"):
        return "tables"
    if name.endswith(".tar"):
        return "shards"
    other = name == "digits" or name.startswith("vtab:")
    return "data" if (other and not path.exists()) or _is_hub(path, name) else ""


def _kind_of_folder(path: Path) -> str:
    """Look through a folder, no further than the first image file in it."""
    found = ""
    with os.scandir(path) as inside:
        for each in inside:
            suffix = Path(each.name).suffix.lower()
            if suffix in SUFFIXES:
                return ""
            if suffix == ".parquet" or each.name == SAVED:
                found = "tables"
            elif suffix == ".tar" and not found:
                found = "shards"
    return found


def _is_hub(path: Path, name: str) -> bool:
    missing = not path.parent.exists() and not path.suffix
    return missing and is_hub_data(name)


def _tables(data: str, columns: Columns) -> dict[str, Table]:
    path = Path(columns.images or data).expanduser()
    folder = path if path.is_dir() else path.parent
    inside = Inside((folder,), columns.allow_outside)
    return {
        split: unlabeled(rows, f"{data} {split}", inside, (), columns.path_column)
        for split, rows in load_tables(data).items()
    }
