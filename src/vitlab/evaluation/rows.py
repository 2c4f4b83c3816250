"""A row per image in a CSV, JSON Lines or Parquet file, written while a model predicts.

| column | content |
| --- | --- |
| image | the file's path, or the source's name for the image |
| label, labels | the true class or classes (of an evaluation) |
| predicted | the likeliest class |
| confidence | its probability |
| distance | how far the image is from the training images, where the model knows it |
| unlike | whether that is above 1 |
| error | why the image could not be used; the columns around it are then empty |
| p(CLASS) | the probability of each class, if there are at most 100 |
| class_1, p_1, … | else the likeliest classes and their probabilities, best first |

Where images have several labels, `labels` and `predicted` are lists (in CSV with `|` between the
names, as in lists of images), and classes with a probability above their threshold are predicted;
`confidence` is that of the likeliest class.
"""

import csv
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from vitlab.data.sources.columns import SEPARATOR
from vitlab.data.sources.source import Source
from vitlab.evaluation.answers import Floats
from vitlab.evaluation.infer import Inferred
from vitlab.files import staged_file

WIDE = 100  # most classes that get a column each
GROUP = 10_000  # rows of a Parquet row group

Columns = dict[str, list[Any]]
Use = Callable[[Inferred], None]


@contextmanager
def rows_to(file: Path | None, layout: "Layout") -> Iterator[Use]:
    """Yield what writes the rows of each batch; the file appears when the block succeeds.

    Args:
        file: ends in .csv or .parquet; None to write nothing
        layout: its columns
    """
    if file is None:
        yield lambda part: None
        return
    with table_to(file, layout) as use:
        yield lambda part: use(layout.columns(part))


class Columned(Protocol):
    """The columns of a table: what a writer needs to know."""

    @property
    def names(self) -> list[str]:
        """The columns, in order."""

    @property
    def numbers(self) -> set[str]:
        """Those of numbers."""

    @property
    def lists(self) -> set[str]:
        """Those of lists of names."""


@contextmanager
def table_to(file: Path, layout: Columned) -> Iterator[Callable[[Columns], None]]:
    """Yield what writes rows of such columns; the file appears when the block succeeds."""
    write = WRITERS[file.suffix.lower()]
    with staged_file(file) as draft, write(draft, layout) as use:
        yield use


class Layout:
    """Which columns there are, and their content for a batch.

    Args:
        source: the images
        truth: whether its labels are the true ones
        top: classes per row, of more classes than `WIDE`
        more: further columns, and what stands in each row of them
        threshold: above which a class is predicted where images have several
        far: whether the model knows how far images are from its training images
    """

    def __init__(
        self,
        source: Source,
        truth: bool,
        top: int = 5,
        more: dict[str, str] | None = None,
        threshold: Floats | float = 0.5,
        far: bool = False,
    ) -> None:
        self.threshold, self.far = threshold, ("distance", "unlike") if far else ()
        self.source, self.truth, self.more = source, truth, more or {}
        self.several, self.column = source.labels.several, source.labels.column
        self.classes = source.classes
        self.top = min(top, len(self.classes)) if len(self.classes) > WIDE else 0
        unique = len(set(self.classes)) == len(self.classes)
        self.chances = [
            f"p({name})" if unique else f"p({number}: {name})"
            for number, name in enumerate(() if self.top else self.classes)
        ]

    @property
    def names(self) -> list[str]:
        """The columns, in order."""
        best = [f"{what}_{place + 1}" for place in range(self.top) for what in ("class", "p")]
        truth = [self.column] if self.truth else []
        return [
            "image",
            *truth,
            *self.more,
            "predicted",
            "confidence",
            *self.far,
            "error",
            *self.chances,
            *best,
        ]

    @property
    def numbers(self) -> set[str]:
        """The columns of probabilities."""
        return {
            "confidence",
            "distance",
            *self.chances,
            *(f"p_{place + 1}" for place in range(self.top)),
        }

    @property
    def lists(self) -> set[str]:
        """The columns of lists."""
        return {self.column, "predicted"} if self.several else set()

    def columns(self, part: Inferred) -> Columns:
        """Return the rows of a batch, column by column, in the source's order."""
        indices = [*part.indices.tolist(), *(index for index, _ in part.bad)]
        order = np.argsort(indices, kind="stable").tolist()
        usable = len(part.indices)
        table: Columns = {name: [] for name in self.names}
        for place in order:
            index = indices[place]
            row: dict[str, Any] = {"image": self.source.name(index)} | self.more
            if self.truth:
                row[self.column] = self._named(self.source.labels.classes_of(index))
            if place < usable:
                far = float(part.distances[place])
                row |= self._answer(part.probabilities[place])
                row |= {"distance": far, "unlike": far > 1}
            else:
                row["error"] = part.bad[place - usable][1]
            for name, values in table.items():
                values.append(row.get(name))
        return table

    def _answer(self, chances: Sequence[float]) -> dict[str, Any]:
        row = np.asarray(chances)
        best = np.argsort(-row, kind="stable")
        predicted = (np.flatnonzero(row > self.threshold) if self.several else best[:1]).tolist()
        answer = {"predicted": self._named(predicted), "confidence": float(row[best[0]])}
        for place, number in enumerate(best[: self.top].tolist()):
            answer |= {f"class_{place + 1}": self.classes[number], f"p_{place + 1}": row[number]}
        return answer | dict(zip(self.chances, row.tolist(), strict=bool(self.chances)))

    def _named(self, numbers: Sequence[int]) -> str | list[str]:
        names = [self.classes[int(number)] for number in numbers]
        return names if self.several else names[0]


@contextmanager
def _csv(draft: Path, layout: Columned) -> Iterator[Callable[[Columns], None]]:
    """Write CSV in UTF-8; bytes of file names that are none stay as they are."""
    with draft.open("w", encoding="utf-8", errors="surrogateescape", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(layout.names)

        def use(columns: Columns) -> None:
            writer.writerows(
                [_cell(value) for value in row] for row in zip(*columns.values(), strict=True)
            )

        yield use


def _cell(value: Any) -> Any:
    """Seven digits of a number; names with the separator of lists of images between them."""
    if isinstance(value, float):
        return f"{value:.7g}"
    return SEPARATOR.join(value) if isinstance(value, list) else value


@contextmanager
def _jsonl(draft: Path, layout: Columned) -> Iterator[Callable[[Columns], None]]:
    """Write a JSON object per row, in ASCII, so that any file name can be read back."""
    with draft.open("w", encoding="ascii", newline="") as stream:

        def use(columns: Columns) -> None:
            for row in zip(*columns.values(), strict=True):
                cells = (float(_cell(v)) if isinstance(v, float) else v for v in row)
                line = dict(zip(columns, cells, strict=True))
                stream.write(json.dumps(line) + "\n")

        yield use


@contextmanager
def _parquet(draft: Path, layout: Columned) -> Iterator[Callable[[Columns], None]]:
    """Write Parquet in row groups of about `GROUP`; probabilities are float32."""
    import pyarrow as pa
    from pyarrow import parquet

    kinds = {
        name: pa.float32()
        if name in layout.numbers
        else pa.list_(pa.string())
        if name in layout.lists
        else pa.bool_()
        if name == "unlike"
        else pa.string()
        for name in layout.names
    }
    schema = pa.schema([(_text(name), kind) for name, kind in kinds.items()])
    waiting: Columns = {name: [] for name in layout.names}

    def flush(writer: Any) -> None:
        arrays = [pa.array(_text(waiting[name]), kind) for name, kind in kinds.items()]
        writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
        for values in waiting.values():
            values.clear()

    with parquet.ParquetWriter(draft, schema) as writer:

        def use(columns: Columns) -> None:
            for name, values in columns.items():
                waiting[name] += values
            if len(waiting["image"]) >= GROUP:
                flush(writer)

        yield use
        if waiting["image"]:
            flush(writer)


def unicode(text: str) -> str:
    """Spell out, as Python does, the bytes of names that are not UTF-8, which Parquet requires."""
    return text.encode("utf-8", "backslashreplace").decode()


def _text(value: Any) -> Any:
    """The same of lists, too; what is no text stays as it is."""
    if isinstance(value, list):
        return [_text(each) for each in value]
    return unicode(value) if isinstance(value, str) else value


WRITERS = {".csv": _csv, ".jsonl": _jsonl, ".parquet": _parquet}
"""By the ending of the file (`vitlab.places.ENDINGS`)."""
