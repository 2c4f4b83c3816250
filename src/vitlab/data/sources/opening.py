"""From the DATA a user names to its images: each kind of data opens its own."""

from collections.abc import Callable
from pathlib import Path

from vitlab.data.labels import check_classes
from vitlab.data.presence import check_data
from vitlab.data.settings import Columns
from vitlab.data.sources.arrays import open_digits
from vitlab.data.sources.folders import open_folder
from vitlab.data.sources.listed.lists import open_list
from vitlab.data.sources.memory.given import Given, open_given, title_of
from vitlab.data.sources.protocol import counts
from vitlab.data.sources.splits import Request, Splits
from vitlab.data.sources.tables.table_files import open_hub, open_parquet
from vitlab.data.sources.tar_shards import open_shards
from vitlab.data.vtab.layouts import open_vtab
from vitlab.errors import DataError

OPENERS: tuple[Callable[[Request], Splits | None], ...] = (
    open_digits,
    open_vtab,
    open_parquet,
    open_shards,
    open_list,
    open_folder,
    open_hub,
)
"""Asked in this order; each returns None for what is not of its kind."""


def open_data(
    data: Given,
    test_fraction: float = 0.2,
    classes: tuple[str, ...] = (),
    columns: Columns | None = None,
    *,
    learning: bool = True,
) -> Splits:
    """Open the images that DATA names, or that are in memory, split.

    Args:
        data: `digits`, a folder of class folders, a folder with train/ and val/ or test/, a Parquet
            file or a folder of them, WebDataset shards (a `.tar` file or URL, a glob, a brace range
            such as `photos-{000..031}.tar`, or a folder of them), a `.csv` or `.jsonl` list, a
            Hugging Face data set `user/name`, or a task of VTAB-1k, `vtab:ROOT/TASK`; or labeled
            images in memory (data/sources/memory/given.py)
        test_fraction: share of each class to hold out where the data comes unsplit
        classes: the class index to map labels to by name; none for the data's own
        columns: which columns of a list or a table hold what; None to find them
        learning: demand at least two classes, and images to train on and to test on

    Raises:
        DataError: nothing there, no images, fewer than two classes, an unknown class, a list that
            names missing files, a damaged shard.
    """
    request = Request(title_of(data), test_fraction, classes or None, columns or Columns())
    splits = open_given(data, request) if not isinstance(data, str | Path) else _named(request)
    title = request.data
    if not learning:
        return splits
    if not classes and len(splits.classes) < 2:
        raise DataError(
            f"{title} has only one class ({splits.classes[0]!r}); at least 2 are needed"
        )
    if not classes and splits.whole is None:
        check_trained(splits, title)
    if not len(splits.train) or not len(splits.test):
        raise DataError(f"{title} has too few images to hold some out for testing")
    return splits


def _named(request: Request) -> Splits:
    """Open the data that a user names."""
    data = request.data
    if not data:
        raise DataError("no data given: name digits, a folder of class folders, a Parquet file, …")
    splits = next(filter(None, (opener(request) for opener in OPENERS)), None)
    if splits is not None:
        return splits
    if request.path.exists():
        raise DataError(
            f"{data} is not a folder, a Parquet file, a .tar shard, or a .csv or .jsonl list"
        )
    check_data(data)
    raise DataError(f"no such file or folder: {data}")


def check_trained(splits: Splits, data: str) -> None:
    """Refuse classes that are known by name, but of which only another split has images.

    Raises:
        DataError: the first such class.
    """
    learned = [name for name, count in counts(splits.train).items() if count]
    for part, source in splits.parts.items():
        found = [name for name, count in counts(source).items() if count]
        check_classes(found, learned, f"{data} {part}")
