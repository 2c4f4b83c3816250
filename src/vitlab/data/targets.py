"""Targets: images with numbers, the columns of a table that regression learns, or of digit scenes.

    path,age,height,split        also a .jsonl list, Parquet files, a data set of the Hub
    digit-scenes                 embedded: `digits` (how many), `sum` (of them), `across` and
                                 `down` (their mean place, in shares of the image's sides)

A cell that is empty or no finite number leaves its image out; such images are counted and named.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from vitlab.data.boxes import COUNTS, SCENES, boxes_of, scenes
from vitlab.data.holdout import hold_out, without
from vitlab.data.labels import Indices, MultiLabels
from vitlab.data.settings import Data
from vitlab.data.sources.columns import check_known_columns, find_paths
from vitlab.data.sources.folders import image_paths
from vitlab.data.sources.lists import check_files, list_file, paths_of, read_rows, row_splits
from vitlab.data.sources.paths import Inside, some
from vitlab.data.sources.request import NAMES, SPLIT_OF, Splits
from vitlab.data.sources.source import Relabeled, Source, Subset, grouped
from vitlab.data.sources.tables import load_tables, places, unlabeled
from vitlab.errors import DataError

LARGEST = 1e30  # beyond it, squares are not finite
ALIKE = 1e-12  # of a column's size: a deviation below it is that of rounding
SHOWN, MOST = 40, 20  # characters of a cell, and rows, in a message
Numbers = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class TargetLabels(MultiLabels):
    """The numbers of images. As labels, every image has every target.

    Attributes:
        numbers: in their own units, float64 (n, targets)
        scale: what a batch has them less of, and divided by, float64 (2, targets)
    """

    numbers: Numbers
    scale: Numbers

    @classmethod
    def of(cls, numbers: Numbers) -> Self:
        """Return the labels of images, which batches have as they are."""
        unit = np.stack([np.zeros(numbers.shape[1]), np.ones(numbers.shape[1])])
        return cls(np.ones(numbers.shape, np.uint8), numbers, unit)

    def take(self, indices: Indices) -> Self:
        """Return the labels of some of the images."""
        chosen = np.asarray(indices, np.int64)
        return type(self)(self.values[chosen], self.numbers[chosen], self.scale)

    def targets(self) -> NDArray[np.float32]:
        """Return the targets of a batch, standardized, float32 (n, targets)."""
        mean, deviation = self.scale
        return ((self.numbers - mean) / deviation).astype(np.float32)

    def content(self) -> bytes:
        """Return what a fingerprint has of them."""
        return self.numbers.tobytes()


class Readings(NamedTuple):
    """Images of one split, with their cells: a row each, and where it is, such as `line 3`."""

    split: str
    images: Source
    cells: Sequence[Sequence[Any]]
    places: Sequence[str]


def numbers_of(source: Source) -> TargetLabels:
    """Return the targets of a source of `open_targets`."""
    assert isinstance(source.labels, TargetLabels)
    return source.labels


def open_targets(options: Data, names: Sequence[str]) -> Splits:
    """Open images with numbers, to learn from and to be tested on.

    Args:
        options: names the data, and what its columns hold; what of unsplit data is held out
        names: columns of the numbers

    Raises:
        DataError: no table, no such columns, or no image with numbers.
    """
    file = list_file(Path(options.data).expanduser())
    if not options.data:
        raise DataError(f"no data given: name a table of images and numbers, or {SCENES}")
    notes = list[str]()
    if options.data == SCENES:
        found = _scenes(names)
    elif file is not None:
        found = _listed(file, options, names, notes)
    else:
        found = _tables(options, names)
    parts = {each.split: _with_numbers(each, names, options.data, notes) for each in found}
    if not parts:
        raise DataError(f"{options.data} has no split train, validation or test")
    first, *rest = (parts[name] for name in NAMES if name in parts)
    if not rest:
        return hold_out(first, options.test_fraction, notes, split_by=options.split_by)
    return Splits(first, rest[-1], rest[0] if len(rest) > 1 else None, notes=notes)


def standardized(splits: Splits) -> Splits:
    """Return splits whose batches have targets of mean 0 and deviation 1 in training images.

    Raises:
        DataError: a target is the same in all training images.
    """
    numbers = numbers_of(splits.train).numbers
    scale = np.stack([numbers.mean(0), numbers.std(0)])
    for name, mean, deviation in zip(splits.classes, *scale.tolist(), strict=True):
        if deviation <= ALIKE * abs(mean):
            raise DataError(f"{name} is {mean:g} in every training image: there is none to learn")
    parts: dict[str, Any] = {
        name: Relabeled(each, replace(numbers_of(each), scale=scale), each.classes)
        for name, each in splits.parts.items()
    }
    return replace(splits, **parts)


def _with_numbers(rows: Readings, names: Sequence[str], title: str, notes: list[str]) -> Source:
    """Return the images whose cells are numbers; say which are not."""
    table = np.array([[_number(cell) for cell in own] for own in rows.cells], np.float64)
    table = table.reshape(-1, len(names))
    bad = np.flatnonzero(np.isnan(table).any(1))
    if len(bad):
        texts = [
            f"{rows.places[row]} ({', '.join(str(cell)[:SHOWN] for cell in rows.cells[row])})"
            for row in bad[:MOST]
        ]
        if len(bad) == len(table):
            raise DataError(
                f"{title}: no image whose {' and '.join(names)} are finite numbers: {some(texts)}"
            )
        notes.append(
            f"left out {len(bad):,} of {len(table):,} images of {title} whose "
            f"{' or '.join(names)} is no finite number: {some(texts)}"
        )
    table[bad] = 0
    return without(Relabeled(rows.images, TargetLabels.of(table), tuple(names)), bad)


def _number(cell: object) -> float:
    """Return the number in a cell; NaN where there is none."""
    try:
        value = float(cell)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return math.nan
    return value if abs(value) <= LARGEST else math.nan


def _scenes(names: Sequence[str]) -> list[Readings]:
    """Return digit scenes and what can be counted in them."""
    found = []
    for split in COUNTS:
        source, columns = scenes(split), dict[str, Numbers]()
        classes, *edges = np.moveaxis(boxes_of(source).astype(np.float64), 2, 0)
        there = classes >= 0
        columns["digits"] = there.sum(1).astype(np.float64)
        columns["sum"] = (classes * there).sum(1)
        for name, low, high in (("across", *edges[::2]), ("down", *edges[1::2])):
            columns[name] = ((low + high) / 2 * there).sum(1) / columns["digits"]
        check_known_columns(columns, SCENES, names)
        cells = np.stack([columns[name] for name in names], 1).tolist()
        where = [f"scene {number}" for number in range(len(cells))]
        found.append(Readings(split, source, cells, where))
    return found


def _listed(file: Path, options: Data, names: Sequence[str], notes: list[str]) -> list[Readings]:
    """Return the images of a list, and the cells beside them."""
    columns, lines = read_rows(file, options)
    check_known_columns(columns, file, (*names, options.group_column))
    column, where = find_paths(columns, [row for _, row in lines], file, options)
    paths = paths_of(lines, column, where, file)
    check_files(paths, where, file, options)
    splits, remarks = row_splits(lines, columns, column, file)
    notes += remarks
    if "train" not in splits:
        splits = ["train"] * len(splits)
    whole: Source = image_paths(paths, where.root)
    if group := options.group_column:
        whole = grouped(whole, [row.get(group) for _, row in lines])
    found = []
    for split in dict.fromkeys(splits):
        own = np.flatnonzero(np.array(splits) == split)
        rows = [lines[number] for number in own]
        cells = [[row.get(name) for name in names] for _, row in rows]
        found.append(Readings(split, Subset(whole, own), cells, [place for place, _ in rows]))
    return found


def _tables(options: Data, names: Sequence[str]) -> list[Readings]:
    """Return the images of Parquet files and the like, and the cells beside them."""
    data, path = options.data, Path(options.data).expanduser()
    if path.is_file() and path.suffix != ".parquet":
        raise DataError(f"{data} is no table: give a .csv, .tsv, .jsonl or .parquet file")
    loaded = load_tables(data)
    roots = (Path(options.images).expanduser(),) if options.images else places(data)
    inside = Inside(tuple(each.parent if each.is_file() else each for each in roots),
                    options.allow_outside)  # fmt: skip
    found, asked = [], [*names, *filter(None, [options.group_column])]
    for split, rows in loaded.items():
        name = SPLIT_OF.get(split.lower(), "train" if len(loaded) == 1 else "")
        if not name:
            continue
        title = f"{data} {split}"
        check_known_columns(rows.features, title, asked)
        images: Source = unlabeled(rows, title, inside, options.path_column)
        table = rows.select_columns(asked).with_format(None)[:]
        if group := options.group_column:
            images = grouped(images, table[group])
        cells = [*zip(*(table[each] for each in names), strict=True)]
        found.append(Readings(name, images, cells, [f"{split} row {n}" for n in range(len(cells))]))
    return found
