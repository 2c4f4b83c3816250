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
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from vitlab.data.images import Images
from vitlab.data.label_cells import join_labels
from vitlab.evaluation.answers import Floats
from vitlab.evaluation.infer import Inferred
from vitlab.evaluation.records import unicode
from vitlab.files import staged_file

WIDE = 100  # most classes that get a column each
GROUP = 10_000  # rows of a Parquet row group

Row = dict[str, Any]
Kind = Literal["text", "texts", "number", "flag"]
Kinds = dict[str, Kind]
"""The columns of a table, in order, and what stands in each."""
RowWriter = Iterator[Callable[[list[Row]], None]]
"""What a block of `with` gets to write rows, some at a time."""


@contextmanager
def table_to(file: Path | None, kinds: Kinds) -> RowWriter:
    """Yield what writes rows of such columns; the file appears when the block succeeds.

    Args:
        file: ends in .csv, .jsonl or .parquet; None to write nothing
        kinds: its columns; a row may lack some
    """
    if file is None:
        yield lambda rows: None
        return
    with staged_file(file) as draft, WRITERS[file.suffix.lower()](draft, kinds) as use:
        yield use


class RowLayout:
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
        source: Images,
        truth: bool,
        top: int = 5,
        more: dict[str, str] | None = None,
        threshold: Floats | float = 0.5,
        far: bool = False,
    ) -> None:
        self.source = source
        self.truth = truth
        self.more = more or {}
        self.threshold = threshold
        self.far = far
        self.classes = source.classes
        self.several = source.target.several
        self.column = source.target.column
        self.top = min(top, len(self.classes)) if len(self.classes) > WIDE else 0
        unique = len(set(self.classes)) == len(self.classes)
        self.chances = [
            f"p({name})" if unique else f"p({number}: {name})"
            for number, name in enumerate(() if self.top else self.classes)
        ]

    @cached_property
    def kinds(self) -> Kinds:
        """The columns."""
        text: Kind = "text"
        number: Kind = "number"
        names: Kind = "texts" if self.several else text
        found: Kinds = {"image": text} | ({self.column: names} if self.truth else {})
        found |= dict.fromkeys(self.more, text) | {"predicted": names, "confidence": number}
        if self.far:
            found |= {"distance": number, "unlike": "flag"}
        found |= {"error": text} | dict.fromkeys(self.chances, number)
        for place in range(1, self.top + 1):
            found |= {f"class_{place}": text, f"p_{place}": number}
        return found

    def rows(self, part: Inferred) -> list[Row]:
        """Return the rows of a batch, in the source's order."""
        found: dict[int, Row] = {index: {"error": text} for index, text in part.bad}
        each = zip(part.indices.tolist(), part.probabilities, part.distances, strict=True)
        for index, chances, far in each:
            found[index] = self._answer(chances)
            if self.far:
                found[index] |= {"distance": float(far), "unlike": bool(far > 1)}
        for index, row in found.items():
            row |= {"image": self.source.name(index)} | self.more
            if self.truth:
                row[self.column] = self._named(self.source.target.classes_of(index))
        return [found[index] for index in sorted(found)]

    def _answer(self, chances: Floats) -> Row:
        best = np.argsort(-chances, kind="stable")
        above = np.flatnonzero(chances > self.threshold) if self.several else best[:1]
        answer: Row = {"predicted": self._named(above), "confidence": float(chances[best[0]])}
        for place, number in enumerate(best[: self.top].tolist(), 1):
            answer |= {f"class_{place}": self.classes[number], f"p_{place}": chances[number]}
        return answer | dict(zip(self.chances, chances.tolist(), strict=bool(self.chances)))

    def _named(self, numbers: Sequence[int] | np.ndarray[Any, Any]) -> str | list[str]:
        names = [self.classes[int(number)] for number in numbers]
        return names if self.several else names[0]


@contextmanager
def _csv(draft: Path, kinds: Kinds) -> RowWriter:
    """Write CSV in UTF-8; bytes of file names that are none stay as they are."""
    with draft.open("w", encoding="utf-8", errors="surrogateescape", newline="") as stream:
        writer = csv.DictWriter(stream, [*kinds], lineterminator="\n")
        writer.writeheader()
        yield lambda rows: writer.writerows(
            {name: _cell(value) for name, value in row.items()} for row in rows
        )


def _cell(value: Any) -> Any:
    """Seven digits of a number; names with the separator of lists of images between them."""
    if isinstance(value, float):
        return f"{value:.7g}"
    return join_labels(value) if isinstance(value, list) else value


@contextmanager
def _jsonl(draft: Path, kinds: Kinds) -> RowWriter:
    """Write a JSON object per row, in ASCII, so that any file name can be read back."""
    with draft.open("w", encoding="ascii", newline="") as stream:

        def use(rows: list[Row]) -> None:
            for row in rows:
                cells = {name: row.get(name) for name in kinds}
                line = {k: float(_cell(v)) if isinstance(v, float) else v for k, v in cells.items()}
                stream.write(json.dumps(line) + "\n")

        yield use


@contextmanager
def _parquet(draft: Path, kinds: Kinds) -> RowWriter:
    """Write Parquet in row groups of about `GROUP`; probabilities are float32."""
    import pyarrow as pa
    from pyarrow import parquet

    text = pa.string()
    types = {"text": text, "texts": pa.list_(text), "number": pa.float32(), "flag": pa.bool_()}
    schema = pa.schema([(unicode(name), types[kind]) for name, kind in kinds.items()])
    waiting: list[Row] = []
    with parquet.ParquetWriter(draft, schema) as writer:

        def flush(least: int) -> None:
            if len(waiting) >= least:
                writer.write_table(pa.Table.from_pylist(waiting, schema))
                waiting.clear()

        def use(rows: list[Row]) -> None:
            waiting.extend({unicode(name): unicode(row[name]) for name in row} for row in rows)
            flush(GROUP)

        yield use
        flush(1)


WRITERS = {".csv": _csv, ".jsonl": _jsonl, ".parquet": _parquet}
"""By the ending of the file (`vitlab.places.ENDINGS`)."""
