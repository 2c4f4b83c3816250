"""Tables with an image column and a label column: Parquet files, and data sets of the hub."""

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from vitlab.data.decode.stored import EncodedImage
from vitlab.data.labels import Labels, SingleLabels, check_classes, index_labels
from vitlab.data.sources.protocol import Source
from vitlab.data.sources.remote import expand, is_url
from vitlab.data.sources.splits import NAMES, Request, Splits, by_split, join
from vitlab.errors import DataError, ImageError

SAVED = "dataset_dict.json"  # in what `DatasetDict.save_to_disk` writes
_LABEL_COLUMNS = ("label", "labels", "class", "target", "fine_label")


@dataclass(frozen=True)
class Table:
    """Rows of a Hugging Face data set, memory-mapped: an image column and a label column."""

    rows: Any  # datasets.Dataset in Arrow format
    column: str
    labels: Labels
    classes: tuple[str, ...]
    title: str
    in_memory: ClassVar[bool] = False

    def __len__(self) -> int:
        return len(self.rows)

    def image(self, index: int) -> EncodedImage:
        """Return the encoded image of a row.

        Raises:
            ImageError: the row has no image, or names a file that cannot be read.
        """
        name = self.name(index)
        cell = self.rows[index][self.column][0].as_py()
        if cell is None or (cell["bytes"] is None and not cell["path"]):
            raise ImageError(f"{name}: no image in this row")
        if cell["bytes"] is not None:
            return EncodedImage(cell["bytes"], name)
        try:
            return EncodedImage(Path(cell["path"]).read_bytes(), name)
        except OSError as error:
            raise ImageError(f"{name}: {cell['path']}: {error.strerror or error}") from None

    def name(self, index: int) -> str:
        """Return the title and the row."""
        return f"{self.title} row {index}"


def open_parquet(request: Request) -> Splits | None:
    """Open a Parquet file, a folder or a glob of them; None for other data."""
    groups = _parquet_files(request.data)
    return _tables(_load_parquet(groups, request.data), request) if groups else None


def _parquet_files(data: str) -> dict[str, list[str]]:
    """Return the Parquet files that data names, by split."""
    path = Path(data).expanduser()
    if path.is_dir():
        files = sorted(path.glob("*.parquet"))
    elif data.endswith(".parquet") and not is_url(data):
        files = [path] if path.is_file() else [Path(each) for each in expand(str(path))]
    else:
        files = []
    return by_split([(file.stem, str(file)) for file in files]) if files else {}


def _load_parquet(groups: dict[str, list[str]], data: str) -> Any:
    def load() -> Any:
        import datasets

        return datasets.load_dataset("parquet", data_files=groups)

    return _quietly(load, f"cannot read {data}")


def load_tables(data: str) -> Any:
    """Return the tables of a folder of Parquet files, one saved by `datasets`, or a hub data set.

    Returns:
        A `datasets.DatasetDict`.

    Raises:
        DataError: there are none, or they cannot be read.
    """
    path = Path(data).expanduser()
    if (path / SAVED).is_file():

        def load() -> Any:
            import datasets

            return datasets.load_from_disk(path)

        return _quietly(load, f"cannot read {data}")
    if groups := _parquet_files(data):
        return _load_parquet(groups, data)
    if path.exists():
        raise DataError(f"{data} contains no tables: Parquet files, or what datasets saves to disk")
    return _load_hub(data)


def open_hub(request: Request) -> Splits | None:
    """Open a data set of the Hugging Face Hub, downloaded once and memory-mapped.

    It is not streamed: a stream through a shuffling buffer has no image by number, so that batches
    would depend on the workers, and of a Parquet file a whole row group would be read for every
    image. Data too large to download can be read in place from tar shards:
    `hf://datasets/user/name/*.tar`.
    """
    name = request.data
    if request.path.exists() or not re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", name):
        return None
    return _tables(_load_hub(name), request)


def _load_hub(name: str) -> Any:
    def load() -> Any:
        import datasets
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
    return _quietly(load, failed)


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


def _tables(loaded: Any, request: Request) -> Splits:
    """Return the splits of a `datasets.DatasetDict`."""
    data = request.data
    first = "train" if "train" in loaded else next(iter(loaded))
    train = table(loaded[first], f"{data} {first}", request.classes)
    rest: list[Source] = [
        table(loaded[name], f"{data} {name}", train.classes)
        for name in (*NAMES["validation"], *NAMES["test"])
        if name in loaded and name != first
    ]
    return join(train, rest, request)


def _quietly(load: Callable[[], Any], failed: str) -> Any:
    """Call into `datasets`, with progress bars on a terminal only and any failure as one line."""
    import datasets

    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    level = datasets.logging.get_verbosity()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    try:
        return load()
    except Exception as error:  # the library raises dozens of kinds; each means the same here
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise DataError(f"{failed}: {reason[0]}") from error
    finally:
        datasets.logging.set_verbosity(level)
        datasets.enable_progress_bars()


def table(rows: Any, title: str, classes: Sequence[str] | None = None) -> Table:
    """Return a source of a `datasets.Dataset`, its image and label columns found by type and name.

    Labels map to `classes` by name where given, as for a test split.

    Raises:
        DataError: no image column, no label column, or labels that fit no class.
    """
    found = unlabeled(rows, title, ())
    labels, order = _labels(rows, _label_column(rows.features, title), title, classes)
    return replace(found, labels=labels, classes=order)


def unlabeled(rows: Any, title: str, classes: tuple[str, ...]) -> Table:
    """Return a source of a `datasets.Dataset` whose labels are not in a column.

    Raises:
        DataError: no image column.
    """
    import datasets

    image = next((key for key, kind in rows.features.items() if _is_image(kind)), None)
    if image is None:
        raise DataError(f"{title} has no image column; its columns are {', '.join(rows.features)}")
    encoded = rows.cast_column(image, datasets.Image(decode=False)).with_format("arrow")
    blank = SingleLabels.blank(len(rows), len(classes))
    return Table(encoded, image, blank, classes, title)


def _is_image(kind: Any) -> bool:
    import datasets

    return isinstance(kind, datasets.Image) or (
        isinstance(kind, dict) and {"bytes", "path"} <= set(kind)
    )


def _label_column(features: Any, title: str) -> str:
    import datasets

    named = [key for key in _LABEL_COLUMNS if key in features]
    typed = [key for key, kind in features.items() if isinstance(kind, datasets.ClassLabel)]
    if not named + typed:
        raise DataError(f"{title} has no label column; its columns are {', '.join(features)}")
    return (named + typed)[0]


def _labels(
    rows: Any, column: str, title: str, classes: Sequence[str] | None
) -> tuple[Labels, tuple[str, ...]]:
    """Return a column's labels, and the classes that they index."""
    import datasets

    kind = rows.features[column]
    if isinstance(kind, datasets.List) and isinstance(kind.feature, datasets.ClassLabel):
        own = [tuple(map(str, each or ())) for each in rows.select_columns([column])[:][column]]
        return index_labels(own, title, classes, kind.feature.names)
    check_labeled(rows, column, title)
    values = rows.select_columns([column]).with_format("numpy")[:][column]
    if isinstance(kind, datasets.ClassLabel):
        names = list(kind.names)
    else:  # numbers or words without names: a class for each that occurs
        distinct = sorted(set(values.tolist()))
        names = [str(value) for value in distinct]
        values = np.searchsorted(np.array(distinct), values)
    labels = SingleLabels(np.asarray(values, np.int64))
    if not labels.fit(len(names)):
        outside = [int(label) for label in labels.values if not 0 <= label < len(names)]
        raise DataError(f"{title}: label {outside[0]} is not one of its {len(names)} classes")
    if classes is None:
        return labels, tuple(names)
    return SingleLabels(_by_name(labels.values, names, classes, title)), tuple(classes)


def check_labeled(rows: Any, column: str, title: str) -> None:
    """Refuse rows without a label.

    Raises:
        DataError: the first such row.
    """
    cells = rows.select_columns([column]).with_format("arrow")[:][column]
    without = np.flatnonzero(cells.is_null(nan_is_null=True).to_numpy())
    if len(without):
        raise DataError(
            f"{title}: row {without[0]} has no label ({len(without):,} of {len(rows):,} rows): "
            "remove such rows, or label them"
        )


def _by_name(
    values: NDArray[np.int64], names: list[str], classes: Sequence[str], title: str
) -> NDArray[np.int64]:
    """Map labels that index `names` to indices of `classes`."""
    check_classes([names[value] for value in np.unique(values)], classes, title)
    place = {name: number for number, name in enumerate(classes)}
    return np.array([place.get(name, -1) for name in names], np.int64)[values]
