"""Parquet files, local or remote, what `datasets` saved, and data sets of the Hugging Face Hub."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from vitlab.data.presence import is_hub_data
from vitlab.data.settings import Columns
from vitlab.data.sources.folders import holds_images
from vitlab.data.sources.inside import Inside
from vitlab.data.sources.kept_parts import KeptParts
from vitlab.data.sources.remote import expand, is_url, reason, stamp
from vitlab.data.sources.request import Found, Request
from vitlab.data.sources.splits import by_split
from vitlab.data.sources.table import label_columns, quietly, table
from vitlab.errors import DataError
from vitlab.files import check_regular
from vitlab.packages import check_installed, needed
from vitlab.places import cache_folder
from vitlab.units import storage

SAVED = "dataset_dict.json"  # in what `DatasetDict.save_to_disk` writes
STATE = ("state.json", "dataset_info.json")  # in what `Dataset.save_to_disk` writes


def open_tables(request: Request) -> Found | None:
    """Open Parquet files (one, a folder, a glob) or what `datasets` saved; None for others."""
    path = request.path
    saved = _saved(path)
    groups = {} if saved else _parquet_files(request.data, request.columns)
    if not groups and not saved:
        return None
    loaded = _load_parquet(groups, request.data) if groups else load_tables(request.data)
    first = next(iter(groups.values()), [""])[0]
    folder = path if path.is_dir() else Path(first).parent
    found = _parts(loaded, request, (folder,))
    notes = [] if saved else _copied(loaded, request.data)
    return Found(found.parts, [*notes, *found.notes])


def _saved(path: Path) -> bool:
    """Whether `datasets` saved a folder: a data set, or several splits of one."""
    return (path / SAVED).is_file() or all((path / name).is_file() for name in STATE)


def _copied(loaded: Any, data: str) -> list[str]:
    """The line about the copy that `datasets` makes."""
    copies = {Path(each["filename"]) for own in loaded.values() for each in own.cache_files}
    size = sum(copy.stat().st_size for copy in copies if copy.is_file())
    if not size:
        return []
    import datasets

    return [f"{data} is read from a copy in {datasets.config.HF_DATASETS_CACHE} ({storage(size)})"]


def _parquet_files(data: str, columns: Columns) -> dict[str, list[str]]:
    """Return the Parquet files that data names, by split; copies of those on other machines."""
    path = Path(data).expanduser()
    if data.endswith(".parquet") and is_url(data):
        check_installed("datasets", data)
        own = KeptParts.of(columns.cache_data, columns.cache_gb)
        kept = own or KeptParts(cache_folder("tables"), sys.maxsize)
        files = [kept.file(url, stamp(url)) for url in expand(data)]
    elif path.is_dir():  # beside photographs, a table is notes on them, or their features
        files = [] if holds_images(path) else sorted(path.glob("*.parquet"))
    elif data.endswith(".parquet"):
        files = [path] if path.is_file() else [Path(each) for each in expand(str(path))]
    else:
        files = []
    return by_split([(file.stem, str(file)) for file in files]) if files else {}


def _load_parquet(groups: dict[str, list[str]], data: str) -> Any:
    for file in (Path(name) for own in groups.values() for name in own):
        try:
            check_regular(file)
        except OSError as error:
            raise DataError(f"cannot read {file}: {reason(error)}") from None

    datasets = needed("datasets", data)
    return quietly(
        lambda: datasets.load_dataset("parquet", data_files=groups), f"cannot read {data}"
    )


def load_tables(data: str) -> Any:
    """Return the tables of a folder of Parquet files, one saved by `datasets`, or a hub data set.

    Returns:
        A `datasets.DatasetDict`.

    Raises:
        DataError: there are none, or they cannot be read.
    """
    path = Path(data).expanduser()
    if _saved(path):
        datasets = needed("datasets", data)
        loaded = quietly(lambda: datasets.load_from_disk(path), f"cannot read {data}")
        return loaded if (path / SAVED).is_file() else {"train": loaded}
    if groups := _parquet_files(data, Columns()):
        return _load_parquet(groups, data)
    if path.exists():
        raise DataError(f"{data} contains no tables: Parquet files, or what datasets saves to disk")
    return _load_hub(data)


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
    return _parts(_load_hub(name), request, _downloads())


def _load_hub(name: str) -> Any:
    datasets = needed("datasets", f"{name}, not a file or folder but perhaps a name on the Hub,")

    def load() -> Any:
        import huggingface_hub

        try:
            huggingface_hub.HfApi().dataset_info(name, timeout=10)
        except Exception as error:  # whatever the reason, a copy in the local cache will do
            with _offline(), suppress(Exception):
                return datasets.load_dataset(name)
            absent = isinstance(error, huggingface_hub.errors.RepositoryNotFoundError)
            raise DataError("there is none of that name" if absent else str(error)) from error
        return datasets.load_dataset(name)

    failed = f"no such folder: {name}; nor could it be loaded as a data set of the Hugging Face Hub"
    return quietly(load, failed)


@contextmanager
def _offline() -> Iterator[None]:
    """Look into the local cache only: the libraries would try to connect for half a minute."""
    import datasets
    import huggingface_hub

    homes: list[Any] = [datasets.config, huggingface_hub.constants]
    before = [home.HF_HUB_OFFLINE for home in homes]
    try:
        for home in homes:
            home.HF_HUB_OFFLINE = True
        yield
    finally:
        for home, value in zip(homes, before, strict=True):
            home.HF_HUB_OFFLINE = value


def places(data: str) -> tuple[Path, ...]:
    """Return the folders in which files may be that the tables of a folder, or of the Hub, name."""
    path = Path(data).expanduser()
    return (path,) if path.exists() else _downloads()


def _downloads() -> tuple[Path, ...]:
    """The folders that `datasets` downloads files into, which its tables name."""
    import datasets
    import huggingface_hub

    cache = datasets.config.HF_DATASETS_CACHE, datasets.config.DOWNLOADED_DATASETS_PATH
    return tuple(Path(each) for each in (*cache, huggingface_hub.constants.HF_HUB_CACHE))


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
