"""Standardized numbers: batches of regression have mean 0 and deviation 1 in training images."""

from dataclasses import replace
from typing import Any

import numpy as np

from vitlab.data.images import Images
from vitlab.data.number_targets import NumberTargets, numbers_of
from vitlab.data.splits import Splits
from vitlab.errors import DataError

ALIKE = 1e-12  # of a column's size: a deviation below it is that of rounding


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
