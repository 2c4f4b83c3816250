"""Tables of images: Parquet files, what `datasets` saved, data sets of the Hugging Face Hub.

Columns are found by type and name.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from vitlab.data.decode.headers import MAX_BYTES
from vitlab.data.decode.stored import EncodedImage
from vitlab.data.exists import is_hub_data
from vitlab.data.labels import (
    Classes,
    Labels,
    SingleLabels,
    UnlabeledError,
    index_labels,
)
from vitlab.data.settings import Columns
from vitlab.data.sources.folders import holds_images
from vitlab.data.sources.hub_data import load_from_hub, unheard_datasets
from vitlab.data.sources.lists import check_known_columns
from vitlab.data.sources.paths import Inside, read_image
from vitlab.data.sources.remote import KeptParts, expand, is_url, reason, stamp
from vitlab.data.sources.request import Found, Part, Request, blank, by_split, labeled
from vitlab.data.sources.source import Source, grouped, numbered
from vitlab.errors import DataError, ImageError
from vitlab.files import check_regular
from vitlab.hub import of_disk
from vitlab.packages import check_installed, needed
from vitlab.places import cache_folder

LABELS = ("label", "labels", "class", "target", "fine_label")  # columns
BYTES = ("binary", "large_binary")  # encoded images without a type of their own


@dataclass(frozen=True)
class Table:
    """Rows of a Hugging Face data set, memory-mapped: an image column and a label column."""

    rows: Any  # datasets.Dataset in Arrow format
    column: str
    labels: Labels
    classes: Classes
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
        name = self.name(index)
        cell = self.rows[index][self.column][0]  # not yet copied
        if cell.is_valid and cell["bytes"].is_valid:
            size = cell["bytes"].as_buffer().size
            if size > MAX_BYTES:
                raise ImageError(f"{name}: {size:,} bytes exceed the limit of {MAX_BYTES:,}")
            return EncodedImage(cell["bytes"].as_py(), name)
        path = cell["path"].as_py() if cell.is_valid else None
        if not path:
            raise ImageError(f"{name}: no image in this row")
        root = self.inside.roots[0]
        if not self.inside.holds(root / path):
            raise ImageError(
                f"{name}: {path} is outside of {root}: name the folder of the images with "
                "--images, or pass --allow-outside if you trust the data"
            )
        return EncodedImage(read_image(root / path, f"{name}: {path}"), name)

    def name(self, index: int) -> str:
        """Return the title and the row."""
        return f"{self.title} row {index}"


def table(rows: Any, title: str, inside: Inside, request: Request, split: str = "") -> Part:
    """Return the images of a `datasets.Dataset`, with the labels that a column gives them.

    Args:
        rows: the data set
        title: what to call it in an error
        inside: where files are that it may name
        request: what is wanted, and what the user says of the columns
        split: what the data calls these rows

    Raises:
        UnlabeledError: labels are required, and no column has any.
        DataError: no image column, or labels that no class can have.
    """
    known = request.columns
    asked = (known.path_column, *known.label_column, known.group_column)
    check_known_columns(rows.features, title, asked)
    numbers = request.labels == "numbers"
    if len(known.label_column) > 1 and not numbers:
        raise DataError(f"{title} is a table: it needs one --label-column, perhaps of lists")
    found = unlabeled(rows, title, inside, known.path_column)

    def label() -> Source:
        source: Source
        if numbers:
            own = rows.select_columns([*known.label_column]).with_format(None)[:]
            source = numbered(found, zip(*own.values(), strict=True), [*own])
        else:
            labels, classes = labels_of(rows, title, "".join(known.label_column))
            source = replace(found, labels=labels, classes=classes)
        if not known.group_column:
            return source
        column = rows.select_columns([known.group_column])[:]
        return grouped(source, column[known.group_column])

    return labeled(found, request, label, split)


def unlabeled(rows: Any, title: str, inside: Inside, column: str = "") -> Table:
    """Return the images of a `datasets.Dataset` as a source without labels.

    Args:
        rows: the data set
        title: what to call it in an error
        inside: where files are that it may name
        column: of the images; empty to find it

    Raises:
        DataError: no image column.
    """
    import datasets

    kinds = rows.features
    binary = [key for key, kind in kinds.items() if getattr(kind, "dtype", "") in BYTES]
    images = [
        key
        for key, kind in kinds.items()
        if isinstance(kind, datasets.Image)
        or (isinstance(kind, dict) and kind.keys() >= {"bytes", "path"})
    ]
    image = column or next(iter(images or binary), None)
    if not column and not images and len(binary) > 1:
        raise DataError(
            f"{title} has {len(binary)} columns of bytes ({', '.join(binary)}): name the one of "
            "the images with --path-column"
        )
    if image is None:
        raise DataError(f"{title} has no image column; its columns are {', '.join(kinds)}")
    encoded = quietly(
        lambda: rows.cast_column(image, datasets.Image(decode=False)).with_format("arrow"),
        f"{title}: column {image!r} contains no images",
    )
    return Table(encoded, image, blank(len(rows)), (), title, inside)


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


def labels_of(rows: Any, title: str, column: str = "") -> tuple[Labels, Classes]:
    """Return the labels of a `datasets.Dataset`, and the classes that they index.

    Texts, whole numbers, indices of names, or lists of them.

    Args:
        rows: the data set
        title: what to call it in an error
        column: of the labels; empty to find it

    Raises:
        DataError: no column of labels, or labels that fit no class.
    """
    import datasets

    column = column or label_columns(rows.features, title)[0]
    kind = rows.features[column]
    if isinstance(kind, datasets.List):
        names = getattr(kind.feature, "names", None)
        own = [
            tuple(each or ()) for each in rows.select_columns([column]).with_format(None)[:][column]
        ]
        if not all(type(label) in (str, int) for labels in own for label in labels):
            raise DataError(
                f"{title}: the lists of column {column!r} must hold texts or whole numbers"
            )
        return index_labels([tuple(map(str, each)) for each in own], title, names)
    cells = rows.select_columns([column]).with_format("arrow")[:][column]
    without = np.flatnonzero(cells.is_null(nan_is_null=True).to_numpy())
    if len(without):
        raise DataError(
            f"{title}: row {without[0]} has no label ({len(without):,} of {len(rows):,} rows): "
            "remove such rows, or label them"
        )
    values = cells.to_numpy()
    names = getattr(kind, "names", None)
    if names is None:  # numbers or words: a class for each that occurs
        names, values = _distinct(values, f"{title}: column {column!r}")
    outside = values[(values < 0) | (values >= len(names))]
    if len(outside):
        raise DataError(f"{title}: label {outside[0]} is not one of its {len(names)} classes")
    return SingleLabels(np.asarray(values, np.int64)), tuple(names)


def _distinct(values: NDArray[Any], where: str) -> tuple[list[str], NDArray[np.int64]]:
    """Return the distinct values as text, in their order, and the place of each value there."""
    match values.dtype.kind:
        case "O":
            whole = all(isinstance(each, str) for each in values)
        case "f":
            whole = bool(np.isfinite(values).all() and (values == np.rint(values)).all())
        case kind:
            whole = kind in "biu"
    if not whole:
        raise DataError(
            f"{where} has values of type {type(values[0]).__name__}; labels are texts, whole "
            "numbers, or lists of them"
        )
    found, places = np.unique(values, return_inverse=True)
    return list(map(str, found.tolist())), places


def label_columns(features: Any, title: str) -> list[str]:
    """Return the columns that may hold the labels, the likeliest first.

    Raises:
        UnlabeledError: there are none.
    """
    import datasets

    named = [key for key in LABELS if key in features]
    typed = [key for key, kind in features.items() if isinstance(kind, datasets.ClassLabel)]
    if not named + typed:
        raise UnlabeledError(
            f"{title} has no label column; its columns are {', '.join(features)}: name one with "
            "--label-column"
        )
    return list(dict.fromkeys(named + typed))


SAVED = "dataset_dict.json"  # in what `DatasetDict.save_to_disk` writes
STATE = ("state.json", "dataset_info.json")  # in what `Dataset.save_to_disk` writes


def open_tables(request: Request) -> Found | None:
    """Open Parquet files (one, a folder, a glob) or what `datasets` saved; None for others."""
    data, path = request.data, request.path
    if (path / SAVED).is_file() or all((path / name).is_file() for name in STATE):
        datasets = needed("datasets", data)
        loaded = quietly(lambda: datasets.load_from_disk(path), f"cannot read {data}")
        loaded = loaded if (path / SAVED).is_file() else {"train": loaded}
    elif groups := _parquet_files(data, request.columns):
        files = [Path(file) for own in groups.values() for file in own]
        for file in files:
            try:
                check_regular(file)
            except OSError as error:
                raise DataError(f"cannot read {file}: {reason(error)}") from None
        datasets = needed("datasets", data)
        loaded = quietly(
            lambda: datasets.load_dataset("parquet", data_files=groups), f"cannot read {data}"
        )
        path = path if path.is_dir() else files[0].parent
    else:
        return None
    return _parts(loaded, request, (path,))


def _parquet_files(data: str, columns: Columns) -> dict[str, list[str]]:
    """Return the Parquet files that data names, by split; copies of those on other machines."""
    path = Path(data).expanduser()
    if data.endswith(".parquet") and is_url(data):
        check_installed("datasets", data)
        own = KeptParts.of(columns.cache_data, columns.cache_gb)
        kept = own or KeptParts(cache_folder("tables"), sys.maxsize)
        files = [kept.file(url, stamp(url)) for url in expand(data)]
    elif path.is_dir():  # beside photographs, a table is notes on them, or their features
        files = []
        if not holds_images(path):
            files = sorted(path.glob("*.parquet")) or sorted(path.glob("data/*.parquet"))
    elif data.endswith(".parquet"):
        files = [path] if path.is_file() else [Path(each) for each in expand(str(path))]
    else:
        files = []
    return by_split(list(map(str, files))) if files else {}


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
    return _parts(loaded, request, tuple(map(Path, folders)))


def _parts(loaded: Any, request: Request, folders: tuple[Path, ...]) -> Found:
    """Return the splits of a `datasets.DatasetDict`, whose files are in some folders."""
    data, columns = request.data, request.columns
    if columns.images:
        folders = (Path(columns.images).expanduser(),)
    inside = Inside(folders, columns.allow_outside)
    parts = [table(rows, f"{data} {name}", inside, request, name) for name, rows in loaded.items()]
    if columns.label_column or all(part.lacks for part in parts) or request.labels == "ignored":
        return Found(parts)
    used, *others = label_columns(next(iter(loaded.values())).features, data)
    notes = [f"labels are in column {used}; --label-column {each} takes others" for each in others]
    return Found(parts, notes[:1])
