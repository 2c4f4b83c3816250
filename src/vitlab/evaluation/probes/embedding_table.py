"""The Parquet file of `vitlab embed`: its schema, its row groups, and what it says about itself."""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitlab.data.sources.protocol import Source
from vitlab.errors import DataError
from vitlab.evaluation.probes.extraction import Piece
from vitlab.files import sha256, staged_file

DAMAGED = "vitlab.damaged"  # key of the file's metadata: a JSON list of messages
ABOUT = "vitlab.embedding"
CHECK = 16  # digits of the checksum in a part's name


@dataclass(frozen=True)
class Layout:
    """The columns path, label, split and features.

    Attributes:
        shape: of one image's features: (width,) or (tokens, width)
        several: whether an image has any number of labels
        about: what decided the numbers, which the file says of itself
    """

    shape: tuple[int, ...]
    several: bool
    about: dict[str, Any]

    @property
    def schema(self) -> Any:
        """The `pyarrow.Schema`: features are lists of fixed length."""
        import pyarrow

        kind = pyarrow.float32()
        for length in reversed(self.shape):
            kind = pyarrow.list_(kind, length)
        text = pyarrow.string()
        columns = {
            "path": text,
            "label": pyarrow.list_(text) if self.several else text,
            "split": text,
            "features": kind,
        }
        return pyarrow.schema(columns.items(), metadata={ABOUT: json.dumps(self.about)})

    def table(self, piece: Piece, source: Source, split: str) -> Any:
        """Return the rows of a part as a `pyarrow.Table`; damaged images are in its metadata.

        Args:
            piece: the features
            source: that the part is of; without classes, labels are null
            split: its name
        """
        import pyarrow

        schema, indices = self.schema, piece.indices.tolist()
        names = [_unicode(source.name(index)) for index in indices]
        rows = [names, self._labels(source, indices), [split] * len(names)]
        arrays = [
            pyarrow.array(values, schema.field(place).type) for place, values in enumerate(rows)
        ]
        bad = {DAMAGED: json.dumps([_unicode(text) for text in piece.bad.values()])}
        return pyarrow.Table.from_arrays(
            [*arrays, _nested(piece.values)], schema=schema.with_metadata(schema.metadata | bad)
        )

    def _labels(self, source: Source, indices: Sequence[int]) -> list[Any]:
        """Return the names of each image's class or classes."""
        if not source.classes:
            return [None] * len(indices)
        each = [[source.classes[c] for c in source.labels.classes_of(index)] for index in indices]
        return list(each) if self.several else [one[0] for one in each]


def write_part(folder: Path, name: str, table: Any) -> None:
    """Write a row group as a file of its own, with its checksum in the file's name."""
    import pyarrow
    from pyarrow import parquet

    stream = pyarrow.BufferOutputStream()
    parquet.write_table(
        table, stream, row_group_size=max(1, len(table)), compression="zstd",
        use_dictionary=["label", "split"],
    )  # fmt: skip
    content = stream.getvalue().to_pybytes()
    digest = hashlib.sha256(content).hexdigest()
    with staged_file(folder / f"{name}.{digest[:CHECK]}.parquet") as draft:
        draft.write_bytes(content)


def sound_parts(folder: Path) -> dict[str, Path]:
    """Return the files of the parts by name; those that do not match their checksum are removed."""
    found: dict[str, Path] = {}
    for file in sorted(folder.glob("*.parquet")):
        name, _, digest = file.stem.partition(".")
        if sha256(file)[:CHECK] == digest:
            found[name] = file
        else:
            file.unlink()
    return found


def damaged_in(table: Any) -> list[str]:
    """Return the messages about damaged images that a part carries."""
    found: list[str] = json.loads(table.schema.metadata[DAMAGED.encode()])
    return found


def merge(files: Sequence[Path], layout: Layout, out: Path) -> tuple[int, list[str]]:
    """Write the parts, one after the other, as row groups of one file.

    Returns:
        The number of rows, and the messages about damaged images, which the file carries too.

    Raises:
        DataError: not one image could be decoded.
        DiskError: the file cannot be written.
    """
    from pyarrow import parquet

    rows, bad = 0, []
    with staged_file(out) as draft:
        with row_groups(draft, layout) as add:
            for table in map(parquet.read_table, files):
                bad += damaged_in(table)
                rows += len(table)
                add(table)
        if not rows:
            raise DataError(next(iter(bad), "there are no images"))
    return rows, bad


@contextmanager
def row_groups(file: Path, layout: Layout) -> Iterator[Callable[[Any], None]]:
    """Yield what writes a `pyarrow.Table` of `Layout.table` as a row group of one file.

    The file's metadata gets the messages about damaged images of all of them.
    """
    from pyarrow import parquet

    schema, bad = layout.schema, []
    with parquet.ParquetWriter(
        file, schema, write_page_checksum=True, compression="zstd",
        use_dictionary=["label", "split"],
    ) as writer:  # fmt: skip

        def add(table: Any) -> None:
            bad.extend(damaged_in(table))
            if len(table):
                writer.write_table(table.cast(schema), row_group_size=len(table))

        yield add
        writer.add_key_value_metadata({DAMAGED: json.dumps(bad)})


def _nested(values: NDArray[np.float32]) -> Any:
    """Return an array as lists of fixed length: (n, width) or (n, tokens, width)."""
    import pyarrow

    array = pyarrow.array(np.ascontiguousarray(values).reshape(-1))
    for length in reversed(values.shape[1:]):
        array = pyarrow.FixedSizeListArray.from_arrays(array, length)
    return array


def _unicode(name: str) -> str:
    """Return a file name as text: bytes that are not Unicode are spelled out."""
    return name.encode("utf-8", "backslashreplace").decode()
