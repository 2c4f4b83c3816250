"""Numbers of images, which regression learns; every image has every one of them."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from vitlab.data.images import Images
from vitlab.data.target import Indices, Integers, Target

Numbers = NDArray[np.float64]
LARGEST = 1e30  # beyond it, squares are not finite
UNIT = np.array([[0.0], [1.0]])


@dataclass(frozen=True, eq=False)
class NumberTargets(Target):
    """The numbers of images.

    Attributes:
        values: in their own units, float64 (n, targets); NaN where there is none
        scale: mean and standard deviation that batches are standardized by, float64 (2, targets)
    """

    values: Numbers
    scale: Numbers = field(default_factory=lambda: UNIT)
    kind: ClassVar[str] = "numbers"
    several: ClassVar[bool] = True
    again: ClassVar[str] = "with other numbers"

    @classmethod
    def of(cls, cells: Iterable[Iterable[Any]]) -> Self:
        """Return the numbers of images by their cells, which may be anything."""
        return cls(np.array([[_read_number(cell) for cell in own] for own in cells], np.float64))

    def __len__(self) -> int:
        return len(self.values)

    def take(self, places: Indices) -> Self:
        """Return the numbers of some of the images."""
        return replace(self, values=self.values[np.asarray(places, np.int64)])

    @classmethod
    def concat(cls, parts: Sequence[Self]) -> Self:
        """Return the numbers of the images of several parts, one after the other."""
        return replace(parts[0], values=np.concatenate([part.values for part in parts]))

    def reindexed(self, moved: Integers, count: int) -> Self:
        """Return the numbers in the order of other names."""
        values = np.full((len(self), count), np.nan)
        values[:, moved[moved >= 0]] = self.values[:, moved >= 0]
        return type(self)(values)

    def missing(self) -> Integers:
        """Return the rows of images that lack a number, sorted."""
        return np.flatnonzero(np.isnan(self.values).any(1))

    def classes_of(self, row: int) -> tuple[int, ...]:
        """Return the classes of one image: numbers are none."""
        return ()

    def counts(self, classes: int) -> list[int]:
        """Count the images of each number: all of them."""
        return [len(self)] * classes

    def batch(self) -> NDArray[np.float32]:
        """Return the numbers, standardized, float32 (n, targets)."""
        return ((self.values - self.scale[0]) / self.scale[1]).astype(np.float32)

    def are_equal(self, one: int, other: int) -> bool:
        """Return whether two images have the same numbers."""
        return np.array_equal(self.values[one], self.values[other])

    def shuffle_evenly(self, generator: np.random.Generator) -> tuple[Integers, int]:
        """Put the images into a random order."""
        return generator.permutation(len(self)), 1

    def content(self) -> bytes:
        """Return what a fingerprint has of them."""
        return self.values.tobytes()


def _read_number(cell: Any) -> float:
    """Return the number in a cell; NaN where there is none."""
    try:
        value = float(cell)
    except (TypeError, ValueError, OverflowError):
        return math.nan
    return value if abs(value) <= LARGEST else math.nan


def numbers_of(images: Images) -> Numbers:
    """Return the numbers of images in their own units, (n, targets)."""
    assert isinstance(images.target, NumberTargets)
    return images.target.values
