"""The images of DATA, whatever their labels: to predict, or to take features, needs none."""

import os
from collections.abc import Sequence
from pathlib import Path

from vitlab.data.composed import Joined
from vitlab.data.decode.formats import SUFFIXES
from vitlab.data.labels import SingleLabels, UnlabeledError
from vitlab.data.pictures.listing import find_images
from vitlab.data.pictures.pictures import Picture
from vitlab.data.presence import is_hub_data
from vitlab.data.settings import Columns
from vitlab.data.sources.filenames import Names
from vitlab.data.sources.folders import Files
from vitlab.data.sources.inside import Inside
from vitlab.data.sources.memory.given import Given, unlabeled_images
from vitlab.data.sources.opening import open_data
from vitlab.data.sources.protocol import Source
from vitlab.data.sources.tables.arrow import Table, unlabeled
from vitlab.data.sources.tables.table_files import SAVED, load_tables
from vitlab.data.sources.tar_shards import shard_places, unlabeled_shards
from vitlab.errors import DataError

UNLABELED = "all"  # the split of images without labels


def open_unlabeled(names: Sequence[str], columns: Columns | None = None) -> Source | None:
    """Open all images of tar shards, tables or other DATA; None for what names image files.

    Args:
        names: of one DATA, or of several shards or Parquet files
        columns: which column of a table holds the images, and where the files are that it names

    Raises:
        DataError: it cannot be opened, or there are shards or tables beside something else.
    """
    columns = columns or Columns()
    kinds = {kind_of_images(name) for name in names}
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
    if kind_of_images(data) == "shards":
        return {UNLABELED: unlabeled_shards(shard_places(data))}
    return dict(_tables(data, columns or Columns()))


def sources_of(
    data: Given | Sequence[Picture], columns: Columns | None = None
) -> dict[str, Source]:
    """Return the splits of DATA by name; images without labels are one split, `all`.

    Raises:
        DataError: as `open_data`, or no images.
    """
    if not isinstance(data, str | Path):
        found = unlabeled_images(data)
        return _labeled(data, columns) if found is None else {UNLABELED: found}
    path = Path(data).expanduser()
    flat = path.is_dir() and is_flat(path)
    if flat or (not path.is_dir() and path.suffix.lower() in SUFFIXES):
        return {UNLABELED: image_paths(find_images([str(data)]))}
    return _labeled(str(data), columns)


def _labeled(data: Given, columns: Columns | None) -> dict[str, Source]:
    """The splits of labeled images that are not empty; shards and tables need no labels."""
    try:
        parts = open_data(data, columns=columns, learning=False).parts
    except UnlabeledError:
        if not isinstance(data, str):
            raise
        parts = unlabeled_splits(data, columns)
    return {name: source for name, source in parts.items() if len(source)}


def image_paths(paths: Sequence[str], root: Path = Path()) -> Files:
    """Return image files, relative to a root, as a source without classes."""
    return Files(root, Names.of(paths), SingleLabels.blank(len(paths), 0), ())


def is_flat(folder: Path) -> bool:
    """Return whether a folder holds image files, and no folders or tables of them."""
    inside = [each for each in folder.iterdir() if not each.name.startswith(".")]
    kinds = {each.suffix.lower() for each in inside if each.is_file()}
    folders = any(each.is_dir() for each in inside)
    return not folders and bool(kinds & SUFFIXES) and not kinds & {".parquet", ".tar"}


def kind_of_images(name: str) -> str:
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
