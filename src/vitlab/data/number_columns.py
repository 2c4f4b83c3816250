"""Targets: images with numbers, the columns of a table that regression learns.

A table is a list (.csv, .tsv, .jsonl), Parquet files, a data set of the Hub or rows in memory;
`digit-scenes` has `digits` (how many) and `sum` (of them). A cell that is empty or no finite number
leaves its image out; such images are counted and named.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from vitlab.data.images import Images
from vitlab.data.number_targets import Numbers, NumberTargets
from vitlab.data.splits import Splits
from vitlab.errors import DataError

ALIKE = 1e-12  # of a column's size: a deviation below it is that of rounding


def numbers_of(source: Images) -> Numbers:
    """Return the targets of a source of `open_targets` in their own units, (n, targets)."""
    assert isinstance(source.target, NumberTargets)
    return source.target.values


def standardize(splits: Splits) -> Splits:
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
