"""Parquet files of images, read in place: a column of images or of their paths, others beside it.

Nothing is copied: an image is decoded from the row group that has it, and the row groups read last
are kept in memory. Files as `datasets`, pandas, Spark and `vitlab predict` write them.
"""

import itertools
import json
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from vitlab.data.decode.headers import MAX_BYTES
from vitlab.data.decode.stored import EncodedImage
from vitlab.data.images import Images
from vitlab.data.settings import Columns
from vitlab.data.sources.cell_table import CellTable, check_known_columns, open_rows
from vitlab.data.sources.containers import CellFileImage, Container
from vitlab.data.sources.folders import holds_images
from vitlab.data.sources.lists import open_path_rows
from vitlab.data.sources.paths import Inside, read_image, reason
from vitlab.data.sources.remote import KeptParts, expand, stamp
from vitlab.data.sources.request import Found, Part, Request, by_split, split_file_lines
from vitlab.data.sources.urls import is_url
from vitlab.data.target import Classes, Integers
from vitlab.errors import DataError, ImageError
from vitlab.files import check_regular
from vitlab.packages import check_installed, needed
from vitlab.places import cache_folder
from vitlab.units import storage

LARGEST_GROUP = 2**30  # bytes of one column in a row group, as its metadata says
EXPANDED = 2**28  # bytes to which a small row group may grow: a dictionary may repeat large values
LARGEST_CELL = 2**12  # bytes of a cell that is no image, on average
KEPT = 2**28  # bytes of row groups that a process keeps
LARGE_GROUP = 2**20  # bytes that are slow to read for one image
FEW = 4  # rows of images decoded at once
MANY = 256  # rows of other columns


class RowGroups:
    """One column of Parquet files by row groups: decoded when asked for, the last ones kept."""

    def __init__(self, files: Sequence[str], column: str, kept: int = KEPT) -> None:
        """Read nothing yet."""
        self.files = tuple(files)
        self.column = column
        self.kept = kept
        self._forget()

    def _forget(self) -> None:
        self._groups = OrderedDict[tuple[int, int], list[Any]]()
        self._refused = dict[tuple[int, int], str]()
        self._lock = threading.Lock()
        self._opened = dict[int, Any]()

    def __getstate__(self) -> dict[str, Any]:
        """Send no open files to worker processes."""
        return {"files": self.files, "column": self.column, "kept": self.kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Open files where they are needed."""
        self.__dict__.update(state)
        self._forget()

    def cell(self, file: int, group: int, row: int) -> Any:
        """Return a cell of pyarrow, which is not copied yet.

        Raises:
            DataError: the row group is damaged, or too large.
        """
        with self._lock:
            key = (file, group)
            if key in self._refused:
                raise DataError(self._refused[key])
            if key not in self._groups:
                try:
                    self._groups[key] = self._read(file, group)
                except DataError as error:
                    self._refused[key] = str(error)  # the error itself would hold what was read
                    raise
                size = sum(batch.nbytes for batches in self._groups.values() for batch in batches)
                while size > self.kept and len(self._groups) > 1:
                    _, batches = self._groups.popitem(last=False)
                    size -= sum(batch.nbytes for batch in batches)
            self._groups.move_to_end(key)
            batch, place = divmod(row, FEW)
            return self._groups[key][batch].column(0)[place]

    def _read(self, file: int, group: int) -> list[Any]:
        if file not in self._opened:
            self._opened[file] = open_parquet_file(self.files[file])
        return read_images(self._opened[file], self.column, self.files[file], group)


def open_parquet_file(file: str) -> Any:
    """Open a Parquet file by pyarrow.

    Raises:
        DataError: it is none, or damaged.
    """
    from pyarrow import parquet

    with _explain_errors(f"cannot read {file}"):
        check_regular(Path(file))
        return parquet.ParquetFile(file, memory_map=True)


def read_images(opened: Any, column: str, file: str, group: int) -> list[Any]:
    """Return the batches of `FEW` rows of a column in one row group.

    Raises:
        DataError: damaged, or too large once decoded.
    """
    stored = _count_stored_bytes(opened, column, group)
    limit = LARGEST_GROUP if stored > LARGEST_GROUP else max(4 * stored, EXPANDED)
    batches = list[Any]()
    size = stored if stored > LARGEST_GROUP else 0
    with _explain_errors(f"cannot read column {column} of {file}"):
        rows = opened.iter_batches(FEW, [group], [column], use_threads=False)
        while size <= limit and (batch := next(rows, None)) is not None:
            size += batch.nbytes
            batches.append(batch)
    if size > limit:
        raise DataError(
            f"{file}: column {column} of row group {group} is larger than {storage(limit)} once "
            "decoded: write smaller row groups"
        )
    return batches


def _count_stored_bytes(opened: Any, column: str, group: int) -> int:
    """Return the bytes of a column in a row group without compression, as the metadata has it."""
    about = opened.metadata.row_group(group)
    chunks = (about.column(number) for number in range(about.num_columns))
    return sum(
        max(0, chunk.total_uncompressed_size)
        for chunk in chunks
        if chunk.path_in_schema.split(".")[0] == column
    )


def read_cells(opened: Any, column: str, file: str) -> Iterator[Any]:
    """Yield the cells of a column that holds no images.

    Raises:
        DataError: damaged, or too large once decoded.
    """
    size = rows = 0
    with _explain_errors(f"cannot read column {column} of {file}"):
        for batch in opened.iter_batches(MANY, columns=[column], use_threads=False):
            size += batch.nbytes
            rows += batch.num_rows
            if size > LARGEST_CELL * rows + EXPANDED // 4:
                raise DataError(
                    f"{file}: the cells of column {column} have more than {LARGEST_CELL:,} bytes "
                    "on average: that is no label"
                )
            yield from _values_of(batch.column(0))


@contextmanager
def _explain_errors(failed: str) -> Iterator[None]:
    """Turn what pyarrow raises, of dozens of kinds, into one line."""
    try:
        yield
    except DataError:
        raise
    except OSError as error:
        raise DataError(f"{failed}: {reason(error)}") from None
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise DataError(f"{failed}: {lines[0]}") from error


@dataclass(frozen=True, eq=False)
class ParquetImages:
    """The images in a column of Parquet files.

    Attributes:
        groups: where they are
        starts: the first row of each row group, int64 (groups + 1,)
        files, numbers: the file of each row group, and its number there, int64 (groups,)
        inside: where files are that cells may name
    """

    groups: RowGroups
    starts: Integers
    files: Integers
    numbers: Integers
    title: str
    inside: Inside
    in_memory: ClassVar[bool] = False

    def __len__(self) -> int:
        return int(self.starts[-1])

    def image(self, index: int) -> EncodedImage:
        """Return the encoded image of a row.

        Raises:
            ImageError: the row has no image, one that is too large, or names a file that cannot be
                read or that is elsewhere.
        """
        name = self.name(index)
        place = int(np.searchsorted(self.starts, index, side="right")) - 1
        row = index - int(self.starts[place])
        try:
            cell = self.groups.cell(int(self.files[place]), int(self.numbers[place]), row)
        except DataError as error:
            raise ImageError(f"{name}: {error}") from None
        return image_in_cell(cell, self.inside, name)

    def containers(self) -> list[Container]:
        """Return the files, each with the images in its rows."""
        first_groups = np.searchsorted(self.files, np.arange(len(self.groups.files) + 1))
        parts = itertools.pairwise(self.starts[first_groups].tolist())
        return [
            Container([file], slice(start, end), np.arange(end - start), self.groups.column)
            for file, (start, end) in zip(self.groups.files, parts, strict=True)
        ]

    def name(self, index: int) -> str:
        """Return the title and the row."""
        return f"{self.title} row {index}"


def image_in_cell(cell: Any, inside: Inside, name: str) -> EncodedImage:
    """Return the image in a cell of pyarrow: its bytes, or the file that it names.

    Raises:
        ImageError: there is none, it is too large, or the file cannot be read or is elsewhere.
    """
    content = cell
    path = None
    if cell.is_valid and hasattr(cell, "keys"):
        content = cell["bytes"]
        path = cell["path"].as_py()
    if cell.is_valid and content.is_valid:
        size = content.as_buffer().size
        if size > MAX_BYTES:
            raise ImageError(f"{name}: {size:,} bytes exceed the limit of {MAX_BYTES:,}")
        return EncodedImage(content.as_py(), name)
    if not path:
        raise ImageError(f"{name}: no image in this row")
    root = inside.roots[0]
    if not inside.holds(root / path):
        raise ImageError(
            f"{name}: {path} is outside of {root}: name the folder of the images with "
            "--images, or pass --allow-outside if you trust the data"
        )
    return CellFileImage(read_image(root / path, f"{name}: {path}"), name)


def image_column(images: Sequence[str], binary: Sequence[str], title: str, asked: str) -> str:
    """Return the column of the images: the one of that type, or of bytes; empty if there is none.

    Args:
        images: columns whose type is an image
        binary: columns of bytes
        title: what to call the data
        asked: the column that the user names

    Raises:
        DataError: several columns of bytes.
    """
    if asked:
        return asked if asked in (*images, *binary) else ""
    if not images and len(binary) > 1:
        raise DataError(
            f"{title} has {len(binary)} columns of bytes ({', '.join(binary)}): name the one of "
            "the images with --path-column"
        )
    return next(iter([*images, *binary]), "")


def open_parquet(request: Request) -> Found | None:
    """Open Parquet files: one, a folder, a glob, on other machines too; None for other data."""
    groups = _files_by_split(request.data, request.columns)
    if not groups:
        return None
    needed("pyarrow", request.data)
    parts = list[Part]()
    notes = split_file_lines(groups.get("train", []), request.data)
    for split, files in groups.items():
        found = _open_files(files, split, len(groups) > 1, request)
        parts += found.parts
        notes += found.notes
    return Found(parts, list(dict.fromkeys(notes)))


def _files_by_split(data: str, columns: Columns) -> dict[str, list[str]]:
    """Return the Parquet files that data names, by split; copies of those on other machines."""
    path = Path(data).expanduser()
    files: Sequence[str | Path] = []
    if data.endswith(".parquet") and is_url(data):
        check_installed("pyarrow", data)
        own = KeptParts.of(columns.cache_data, columns.cache_gb)
        kept = own or KeptParts(cache_folder("tables"), sys.maxsize)
        files = [kept.file(url, stamp(url)) for url in expand(data)]
    elif path.is_dir():  # beside photographs, a table is notes on them, or their features
        if not holds_images(path):
            files = sorted(path.glob("[!._]*.parquet")) or sorted(path.glob("data/[!._]*.parquet"))
    elif data.endswith(".parquet"):
        files = [path] if path.is_file() else expand(str(path))
    return by_split(list(map(str, files))) if files else {}


def _open_files(files: Sequence[str], split: str, is_split: bool, request: Request) -> Found:
    """Open the files of one split."""
    title = f"{request.data} {split}"
    opened = [open_parquet_file(file) for file in files]
    schema = opened[0].schema_arrow
    if len({*schema.names}) < len(schema.names):
        raise DataError(f"{title} has two columns of the same name: {', '.join(schema.names)[:80]}")
    check_known_columns(schema.names, title, (request.columns.path_column,))
    table = CellTable(
        title,
        schema.names,
        _reader_of_columns(opened, files),
        lambda row: f"row {row}",
        schema_classes(schema),
        split=split if is_split else "",
    )
    images, binary = _image_columns(schema)
    column = image_column(images, binary, title, request.columns.path_column)
    folder = Path(request.data).expanduser()
    root = folder if folder.is_dir() else Path(files[0]).parent
    if not column:
        return _open_paths(table, root, request)
    if request.columns.images:
        root = Path(request.columns.images).expanduser()
    if opened[0].schema_arrow.field(column).type.num_fields:
        _check_image_type(schema.field(column).type, title, column)
    inside = Inside((root,), request.columns.allow_outside)
    found = open_rows(table, column, _images_of(opened, files, column, title, inside), request)
    return Found(found.parts, [*_speed_notes(opened, column, title), *found.notes])


def _speed_notes(opened: Sequence[Any], column: str, title: str) -> list[str]:
    """Return a line where images in any order are slow to read: more than memory keeps."""
    sizes = [
        _count_stored_bytes(file, column, group)
        for file in opened
        for group in range(file.metadata.num_row_groups)
    ]
    mean = sum(sizes) / max(1, len(sizes))
    if sum(sizes) <= KEPT or mean < LARGE_GROUP:
        return []
    return [
        f"{title}: each image is read with its row group of about {storage(mean)}: "
        "vitlab prepare writes shards, which are read image by image"
    ]


def _images_of(
    opened: Sequence[Any], files: Sequence[str], column: str, title: str, inside: Inside
) -> Images:
    """Return the images of a column, by the row groups of the files."""
    rows = list[int]()
    owners = list[int]()
    numbers = list[int]()
    for owner, file in enumerate(opened):
        for number in range(file.metadata.num_row_groups):
            rows.append(file.metadata.row_group(number).num_rows)
            owners.append(owner)
            numbers.append(number)
    starts = np.cumsum([0, *rows], dtype=np.int64)
    store = ParquetImages(
        RowGroups(files, column),
        starts,
        np.array(owners, np.int64),
        np.array(numbers, np.int64),
        title,
        inside,
    )
    return Images.of(store)


def _open_paths(table: CellTable, root: Path, request: Request) -> Found:
    """Open a table that names files, as a list does.

    Raises:
        DataError: neither images nor paths.
    """
    listed = root / "table"
    try:
        return open_path_rows(table, listed, request)[0]
    except DataError as error:
        if "no column of paths" not in str(error):
            raise
        raise DataError(
            f"{table.title} has no image column; its columns are "
            f"{', '.join(table.columns)[:200]}: name one, or one of paths, with --path-column"
        ) from None


def _reader_of_columns(
    opened: Sequence[Any], files: Sequence[str]
) -> Callable[[str], Sequence[Any]]:
    """Return a function that reads the cells of a column once."""
    cells = dict[str, list[Any]]()

    def read(name: str) -> Sequence[Any]:
        if name not in cells:
            cells[name] = [
                value
                for file, place in zip(opened, files, strict=True)
                for value in read_cells(file, name, place)
            ]
        return cells[name]

    return read


def _values_of(column: Any) -> list[Any]:
    """Return cells as Python has them; of types that are no labels, their number alone."""
    import pyarrow

    if not pyarrow.types.is_dictionary(column.type):
        return column.to_pylist()
    values = column.dictionary.to_pylist()
    return [None if place is None else values[place] for place in column.indices.to_pylist()]


def _image_columns(schema: Any) -> tuple[list[str], list[str]]:
    """Return the columns of images (bytes and path) and those of bytes."""
    import pyarrow

    images = [
        field.name
        for field in schema
        if pyarrow.types.is_struct(field.type)
        and {"bytes", "path"} <= {field.type.field(n).name for n in range(field.type.num_fields)}
    ]
    kinds = (pyarrow.types.is_binary, pyarrow.types.is_large_binary)
    binary = [field.name for field in schema if any(kind(field.type) for kind in kinds)]
    return images, binary


def _check_image_type(kind: Any, title: str, column: str) -> None:
    """Refuse a column of images whose bytes are none."""
    import pyarrow

    types = pyarrow.types
    content = kind.field("bytes").type
    path = kind.field("path").type
    is_text = types.is_string(path) or types.is_large_string(path) or types.is_null(path)
    is_bytes = types.is_binary(content) or types.is_large_binary(content) or types.is_null(content)
    if not (is_text and is_bytes):
        raise DataError(f"{title}: column {column!r} contains no images")


def schema_classes(schema: Any) -> Mapping[str, Classes]:
    """Return the names that columns of numbers index, as `datasets` writes them into a schema."""
    text = (schema.metadata or {}).get(b"huggingface", b"{}")
    try:
        features = json.loads(text)["info"]["features"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}
    found = dict[str, Classes]()
    for name in schema.names:
        kind = features.get(name) if isinstance(features, dict) else None
        kind = kind[0] if isinstance(kind, list) and kind else kind
        if isinstance(kind, dict) and isinstance(kind.get("feature"), dict):
            kind = kind["feature"]
        names = kind.get("names") if isinstance(kind, dict) else None
        if isinstance(names, list) and all(isinstance(each, str) for each in names):
            found[name] = tuple(names)
    return found
