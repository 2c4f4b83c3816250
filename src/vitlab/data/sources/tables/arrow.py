"""Tables with an image column and a label column, memory-mapped."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from vitlab.data.decode.headers import MAX_BYTES
from vitlab.data.decode.stored import EncodedImage
from vitlab.data.labels import Labels, SingleLabels
from vitlab.data.settings import Columns
from vitlab.data.sources.inside import Inside
from vitlab.data.sources.remote import reason
from vitlab.data.sources.tables.column_labels import labels_of
from vitlab.errors import DataError, ImageError
from vitlab.files import read_bytes
from vitlab.options import nearest
from vitlab.packages import needed

SHOWN = 200  # characters of a path in a message

BYTES = ("binary", "large_binary")  # encoded images without a type of their own


@dataclass(frozen=True)
class Table:
    """Rows of a Hugging Face data set, memory-mapped: an image column and a label column."""

    rows: Any  # datasets.Dataset in Arrow format
    column: str
    labels: Labels
    classes: tuple[str, ...]
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
        return EncodedImage(self._read(path, name), name)

    def _read(self, path: str, name: str) -> bytes:
        """Read a file that a cell names."""
        root, shown = self.inside.roots[0], path[:SHOWN]
        if not self.inside.holds(root / path):
            raise ImageError(
                f"{name}: {shown} is outside of {root}: name the folder of the images with "
                "--images, or pass --allow-outside if you trust the data"
            )
        try:
            return read_bytes(root / path, MAX_BYTES)
        except (OSError, ValueError) as error:
            raise ImageError(f"{name}: {shown}: {reason(error)}") from None

    def name(self, index: int) -> str:
        """Return the title and the row."""
        return f"{self.title} row {index}"


def table(
    rows: Any,
    title: str,
    inside: Inside,
    classes: Sequence[str] | None = None,
    known: Columns | None = None,
) -> Table:
    """Return a source of a `datasets.Dataset`, its image and label columns found by type and name.

    Labels map to `classes` by name where given, as for a test split.

    Args:
        rows: the data set
        title: what to call it in an error
        inside: where files are that it may name
        classes: the class index to follow; None for the data's own
        known: what the user says of the columns

    Raises:
        DataError: no image column, no label column, or labels that fit no class.
    """
    known = known or Columns()
    for name in (known.path_column, *known.label_column):
        if name and name not in rows.features:
            raise DataError(f"{title} has no column {name!r}: {nearest(name, rows.features)}")
    if len(known.label_column) > 1:
        raise DataError(f"{title} is a table: it needs one --label-column, perhaps of lists")
    found = unlabeled(rows, title, inside, (), known.path_column)
    labels, order = labels_of(rows, title, classes, "".join(known.label_column[:1]))
    return replace(found, labels=labels, classes=order)


def unlabeled(
    rows: Any, title: str, inside: Inside, classes: tuple[str, ...], column: str = ""
) -> Table:
    """Return a source of a `datasets.Dataset` whose labels are not in a column.

    Args:
        rows: the data set
        title: what to call it in an error
        inside: where files are that it may name
        classes: of its labels
        column: of the images; empty to find it

    Raises:
        DataError: no image column.
    """
    import datasets

    kinds = rows.features
    binary = [key for key, kind in kinds.items() if getattr(kind, "dtype", "") in BYTES]
    images = [key for key, kind in kinds.items() if _is_image(kind)]
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
    blank = SingleLabels.blank(len(rows), len(classes))
    return Table(encoded, image, blank, classes, title, inside)


def _is_image(kind: Any) -> bool:
    import datasets

    return isinstance(kind, datasets.Image) or (
        isinstance(kind, dict) and {"bytes", "path"} <= set(kind)
    )


def quietly(load: Callable[[], Any], failed: str) -> Any:
    """Call into `datasets`, with progress bars on a terminal only and any failure as one line."""
    datasets = needed("datasets", "a table of images")

    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    level = datasets.logging.get_verbosity()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    try:
        return load()
    except Exception as error:  # the library raises dozens of kinds; each means the same here
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise DataError(f"{failed}: {lines[0]}") from error
    finally:
        datasets.logging.set_verbosity(level)
        datasets.enable_progress_bars()
