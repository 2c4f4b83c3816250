"""Targets: images with numbers, the columns of a table that regression learns.

A table is a list (.csv, .tsv, .jsonl), Parquet files, a data set of the Hub or rows in memory;
`digit-scenes` has `digits` (how many) and `sum` (of them). A cell that is empty or no finite number
leaves its image out; such images are counted and named.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from vitlab.data.images import Images
from vitlab.data.labels import check_class_names
from vitlab.data.number_targets import Numbers, NumberTargets
from vitlab.data.open import open_images
from vitlab.data.settings import Data
from vitlab.data.sources.paths import some
from vitlab.data.sources.request import Given, Splits
from vitlab.data.splits import split_opened
from vitlab.errors import DataError, OptionError

ALIKE = 1e-12  # of a column's size: a deviation below it is that of rounding


def numbers_of(source: Images) -> Numbers:
    """Return the targets of a source of `open_targets` in their own units, (n, targets)."""
    assert isinstance(source.target, NumberTargets)
    return source.target.values


def open_targets(data: Given, names: Sequence[str], options: Data) -> Splits:
    """Open images with numbers, to learn from and to be tested on.

    Args:
        data: a table by its name, or in memory
        names: columns of the numbers
        options: what other columns hold, and what of unsplit data is held out

    Raises:
        OptionError: no columns are named.
        DataError: no table, no such columns, or no image with numbers.
    """
    if not names:
        raise OptionError("task=regress learns columns of numbers: name them, targets=age,height")
    check_class_names(names, "targets", "target")
    opened = open_images(data, "numbers", columns=replace(options, label_column=tuple(names)))
    parts = dict[str, Images]()
    notes = [*opened.notes]
    what = " or ".join(names)
    for name, source in opened.parts.items():
        if not isinstance(source.target, NumberTargets):
            raise DataError(
                f"{opened.title} has no columns of numbers: give a table, such as a .csv"
            )
        bad = np.flatnonzero(np.isnan(numbers_of(source)).any(1))
        if len(bad):
            line = f"of {len(source):,} images of {opened.title} whose {what} is not finite"
            listed = some([source.name(each) for each in bad.tolist()])
            notes.append(f"left out {len(bad):,} {line}: {listed}")
        if len(bad) == len(source):
            raise DataError(f"no image is left to learn from: {notes[-1]}")
        parts[name] = source.without(bad)
    found = replace(opened, parts=parts, notes=notes)
    return split_opened(found, options.test_fraction)


def standardized(splits: Splits) -> Splits:
    """Return splits whose batches have targets of mean 0 and deviation 1 in training images.

    Raises:
        DataError: a target is the same in all training images.
    """
    numbers = numbers_of(splits.train)
    scale = np.stack([numbers.mean(0), numbers.std(0)])
    for name, mean, deviation in zip(splits.classes, *scale.tolist(), strict=True):
        if deviation <= ALIKE * abs(mean):
            raise DataError(f"{name} is {mean:g} in every training image: there is none to learn")

    def scale_numbers(source: Images) -> Images:
        return source.with_target(NumberTargets(numbers_of(source), scale), source.classes)

    parts: dict[str, Any] = {name: scale_numbers(each) for name, each in splits.parts.items()}
    if splits.whole is not None:
        parts["whole"] = scale_numbers(splits.whole)
    return replace(splits, **parts)
