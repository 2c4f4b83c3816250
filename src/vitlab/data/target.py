"""A target: what may be learned of each image: its label, labels, numbers, boxes, or a mask."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from vitlab.data.decode.pixels import Box

Classes = tuple[str, ...]
"""Names of classes, in the order that labels index."""

Integers = NDArray[np.int64]
Indices = Sequence[int] | Integers

IGNORED = -1
"""The class of a pixel that plays no part."""


@dataclass(frozen=True, eq=False)
class Target(ABC):
    """What may be learned of each of some images, by row."""

    kind: ClassVar[str]  # label, labels, numbers, boxes or mask
    several: ClassVar[bool]  # whether an image may have several classes
    column: ClassVar[str] = "labels"  # of a table
    shared: ClassVar[str] = "the images"  # of what a share is held out
    tests_some: ClassVar[bool] = False  # whether one image at least is held out, however few
    again: ClassVar[str] = "under another class"  # how a copy with another target occurs

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of images."""

    @abstractmethod
    def take(self, places: Indices) -> Self:
        """Return the target of some of the images, in the given order."""

    @classmethod
    @abstractmethod
    def concat(cls, parts: Sequence[Self]) -> Self:
        """Return the target of the images of several parts, one after the other."""

    @abstractmethod
    def reindexed(self, moved: Integers, count: int) -> Self:
        """Return a target that indexes other classes.

        Args:
            moved: the new index of each class that it indexes now; -1 where no image has it
            count: how many classes there are
        """

    @abstractmethod
    def batch(self) -> NDArray[Any]:
        """Return what a loss sees of these images: the target of a batch, (n, …)."""

    @abstractmethod
    def counts(self, classes: int) -> list[int]:
        """Count the images of each class."""

    @abstractmethod
    def classes_of(self, row: int) -> tuple[int, ...]:
        """Return the classes of one image."""

    @abstractmethod
    def are_equal(self, one: int, other: int) -> bool:
        """Return whether two images have the same target."""

    @abstractmethod
    def shuffle_evenly(self, generator: np.random.Generator) -> tuple[Integers, int]:
        """Put the images into a random order whose every beginning may be trained on.

        Returns:
            The rows in that order, and how many of the first ones show every class.
        """

    @abstractmethod
    def content(self) -> bytes:
        """Return what a fingerprint has of it."""

    def missing(self) -> Integers:
        """Return the rows of images that have no target, sorted: here all have one."""
        return np.empty(0, np.int64)

    def truth(self, row: int, size: tuple[int, int]) -> NDArray[np.int16] | None:
        """Return the class of each pixel of an image of so many rows and columns, of masks."""
        return None

    @classmethod
    def probabilities(cls, logits: Tensor) -> Tensor:
        """Turn logits (n, classes) into probabilities.

        Those of an image sum to one (softmax); of several classes each has its own (sigmoid).
        """
        return logits.sigmoid() if cls.several else logits.softmax(-1)

    @property
    def strata(self) -> Integers:
        """The stratum of each image when a share of all is held out, (n,): here all are alike."""
        return np.zeros(len(self), np.int64)


@dataclass(frozen=True, eq=False)
class SpatialTarget(Target):
    """A target of places in images, which follows a crop and a mirror: boxes, classes of pixels."""

    several: ClassVar[bool] = True
    keeps_aspect: ClassVar[bool] = False  # whether random crops are shaped like the image

    @abstractmethod
    def cropped(
        self, row: int, box: Box, size: tuple[int, int], shape: tuple[int, int]
    ) -> NDArray[Any]:
        """Return the target, at a size, of a box of an image of that shape, (rows, columns)."""

    @staticmethod
    @abstractmethod
    def mirrored(targets: Tensor) -> Tensor:
        """Return the targets of a batch, (B, m, n), with left and right exchanged."""

    def shuffle_evenly(self, generator: np.random.Generator) -> tuple[Integers, int]:
        """Put the images into a random order."""
        return generator.permutation(len(self)), 1
