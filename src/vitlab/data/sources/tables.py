"""Data sets of the library `datasets`: in memory, saved by it, or of the Hugging Face Hub.

Columns are found by type and name. Parquet files are read without it: `parquet.py`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from vitlab.data.decode.stored import EncodedImage
from vitlab.data.exists import is_hub_data
from vitlab.data.images import Images
from vitlab.data.sources.cell_table import CellTable, check_known_columns, open_rows
from vitlab.data.sources.containers import Container
from vitlab.data.sources.hub_data import load_from_hub, unheard_datasets
from vitlab.data.sources.lists import open_path_rows
from vitlab.data.sources.parquet import image_column, image_in_cell
from vitlab.data.sources.paths import Inside
from vitlab.data.sources.request import Found, Part, Request
from vitlab.errors import DataError
from vitlab.hub import of_disk
from vitlab.packages import needed

BYTES = ("binary", "large_binary")  # encoded images without a type of their own
TEXT = ("string", "large_string", "string_view")  # pandas 3 has the second


@dataclass(frozen=True)
class Table:
    """The image column of a Hugging Face data set, memory-mapped, as a store."""

    rows: Any  # datasets.Dataset in Arrow format
    column: str
    title: str
    inside: Inside  # where files are that cells may name
    in_memory: ClassVar[bool] = False

    def __len__(self) -> int:
        return len(self.rows)

    def image(self, index: int) -> EncodedImage:
        """Return the encoded image of a row.

        Raises:
            ImageError: the row has no image, one that is too large, or names a file that cannot be
                read or that is elsewhere.
        """
        cell = self.rows[index][self.column][0]  # not yet copied
        return image_in_cell(cell, self.inside, self.name(index))

    def containers(self) -> list[Container]:
        """Return the files that `datasets` has mapped, with all rows; none of rows in memory."""
        files = [each["filename"] for each in self.rows.cache_files]
        part = f"{self.column} {self.rows._fingerprint}"
        count = len(self.rows)
        return [Container(files, slice(0, count), np.arange(count), part)] if files else []

    def name(self, index: int) -> str:
        """Return the title and the row."""
        return f"{self.title} row {index}"


def open_dataset(rows: Any, title: str, inside: Inside, request: Request, split: str = "") -> Found:
    """Return the images of a `datasets.Dataset`, with the labels that a column gives them.

    Args:
        rows: the data set
        title: what to call it in an error
        inside: where files are that it may name
        request: what is wanted, and what the user says of the columns
        split: what the data calls these rows, where it has several splits

    Raises:
        DataError: no image column, or labels that no class can have.
    """
    import datasets

    kinds = rows.features
    check_known_columns(list(kinds), title, (request.columns.path_column,))
    names = {key: getattr(getattr(kind, "feature", kind), "names", None)
             for key, kind in kinds.items()}  # fmt: skip
    table = CellTable(
        title,
        list(kinds),
        lambda name: rows.select_columns([name]).with_format("arrow")[:][name].to_pylist(),
        lambda row: f"row {row}",
        {key: tuple(own) for key, own in names.items() if own},
        split=split,
    )
    binary = [key for key, kind in kinds.items() if getattr(kind, "dtype", "") in BYTES]
    images = [
        key
        for key, kind in kinds.items()
        if isinstance(kind, datasets.Image)
        or (isinstance(kind, dict) and kind.keys() >= {"bytes", "path"})
    ]
    column = image_column(images, binary, title, request.columns.path_column)
    if column:
        encoded = quietly(
            lambda: rows.cast_column(column, datasets.Image(decode=False)).with_format("arrow"),
            f"{title}: column {column!r} contains no images",
        )
        bare = Images.of(Table(encoded, column, title, inside))
        return open_rows(table, column, bare, request)
    texts = [key for key, kind in kinds.items() if getattr(kind, "dtype", "") in TEXT]
    if not texts:
        raise DataError(f"{title} has no image column; its columns are {', '.join(kinds)}")
    listed = inside.roots[0] / "table"
    known = replace(request.columns, allow_outside=inside.anywhere)
    return open_path_rows(table, listed, replace(request, columns=known))[0]


def quietly(load: Callable[[], Any], failed: str) -> Any:
    """Call into `datasets`, with progress bars on a terminal only and any failure as one line."""
    try:
        with unheard_datasets():
            return load()
    except Exception as error:  # the library raises dozens of kinds; each means the same here
        if (of := of_disk(error, failed.removeprefix("cannot "))) is not None:
            raise of from error
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise DataError(f"{failed}: {lines[0]}") from error


SAVED = "dataset_dict.json"  # in what `DatasetDict.save_to_disk` writes
STATE = ("state.json", "dataset_info.json")  # in what `Dataset.save_to_disk` writes


def open_saved(request: Request) -> Found | None:
    """Open what `datasets` saved to a folder; None for other data."""
    path = request.path
    if not (path / SAVED).is_file() and not all((path / name).is_file() for name in STATE):
        return None
    datasets = needed("datasets", request.data)
    loaded = quietly(lambda: datasets.load_from_disk(path), f"cannot read {request.data}")
    loaded = loaded if (path / SAVED).is_file() else {"train": loaded}
    return _open_splits(loaded, request, (path,))


def open_hub(request: Request) -> Found | None:
    """Open a data set of the Hugging Face Hub, downloaded once and memory-mapped.

    It is not streamed: a stream through a shuffling buffer has no image by number, so that batches
    would depend on the workers, and of a Parquet file a whole row group would be read for every
    image. Data too large to download can be read in place from tar shards:
    `hf://datasets/user/name/*.tar`.
    """
    name = request.data
    if request.path.exists() or not is_hub_data(name):
        return None
    datasets = needed("datasets", f"{name}, not a file or folder but perhaps a name on the Hub,")
    loaded = load_from_hub(name)
    import huggingface_hub

    cache = datasets.config.HF_DATASETS_CACHE, datasets.config.DOWNLOADED_DATASETS_PATH
    folders = (*cache, huggingface_hub.constants.HF_HUB_CACHE)
    return _open_splits(loaded, request, tuple(map(Path, folders)))


def _open_splits(loaded: Any, request: Request, folders: tuple[Path, ...]) -> Found:
    """Return the splits of a `datasets.DatasetDict`, whose files are in some folders."""
    if request.columns.images:
        folders = (Path(request.columns.images).expanduser(),)
    inside = Inside(folders, request.columns.allow_outside)
    parts = list[Part]()
    notes = list[str]()
    for name, rows in loaded.items():
        split = name if len(loaded) > 1 else ""
        found = open_dataset(rows, f"{request.data} {name}", inside, request, split)
        parts += found.parts
        notes += found.notes
    return Found(parts, list(dict.fromkeys(notes)))
