"""Boxes: the objects of images, a class and a box each, which follow crops and mirrors.

A box is left, top, right, bottom in shares of the image's sides, so that it stays as it is where
the whole image is resized.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitlab.data.decode.pixels import Box
from vitlab.data.images import Images
from vitlab.data.labels import MultiLabels
from vitlab.data.target import Indices, Integers, SpatialTarget
from vitlab.errors import DataError

MOST_PLACES = 50_000_000  # images times the most objects in one of them: 1 GB of boxes
MOST_NAMED = 2**32  # images times classes: bytes
Boxes = NDArray[np.float32]
"""(n, most, 5): class, left, top, right, bottom of each object; class -1 where there is none."""


@dataclass(frozen=True, eq=False)
class BoxTargets(SpatialTarget):
    """The objects of images: a class and a box each.

    Attributes:
        boxes: of each image
        count: how many classes there are
    """

    boxes: Boxes
    count: int
    kind: ClassVar[str] = "boxes"
    again: ClassVar[str] = "with other boxes"
    keeps_aspect: ClassVar[bool] = True

    def __len__(self) -> int:
        return len(self.boxes)

    @classmethod
    def concat(cls, parts: Sequence[Self]) -> Self:
        """Return the objects of the images of several parts, one after the other."""
        every = [own[own[:, 0] >= 0] for part in parts for own in part.boxes]
        return cls.of(every, parts[0].count)

    def reindexed(self, moved: Integers, count: int) -> Self:
        """Return the objects under other classes."""
        boxes = self.boxes.copy()
        classes = self.boxes[..., 0].astype(np.int64)
        boxes[..., 0] = np.where(classes < 0, -1, moved[classes])
        return type(self)(boxes, count)

    @cached_property
    def labels(self) -> MultiLabels:
        """The classes that the objects of each image have."""
        image, place = np.nonzero(self.boxes[..., 0] >= 0)
        table = np.zeros((len(self), self.count), np.uint8)
        table[image, self.boxes[image, place, 0].astype(np.int64)] = 1
        return MultiLabels.of_table(table)

    def classes_of(self, row: int) -> tuple[int, ...]:
        """Return the classes that an image's objects have."""
        return self.labels.classes_of(row)

    def counts(self, classes: int) -> list[int]:
        """Count the images that have an object of each class."""
        return self.labels.counts(classes)

    def shuffle_evenly(self, generator: np.random.Generator) -> tuple[Integers, int]:
        """Put the images into a random order that begins with an object of each class."""
        return self.labels.shuffle_evenly(generator)

    def are_equal(self, one: int, other: int) -> bool:
        """Return whether two images have the same objects, in whatever order."""
        both = (sorted(map(tuple, self.boxes[each].tolist())) for each in (one, other))
        return next(both) == next(both)

    @classmethod
    def of(cls, objects: Sequence[Any], classes: int) -> Self:
        """Return the objects of images from the rows of `Boxes` of each."""
        most = max((len(own) for own in objects), default=0)
        boxes = np.zeros((len(objects), max(most, 1), 5), np.float32)
        boxes[..., 0] = -1
        for number, own in enumerate(objects):
            if len(own):
                boxes[number, : len(own)] = own
        return cls(boxes, classes)

    @classmethod
    def from_objects(
        cls, images: int, image: Integers, rows: NDArray[np.float64], classes: int
    ) -> Self:
        """Return the objects of images from those of all, in any order.

        Args:
            images: how many there are
            image: the number of each object's image, (m,)
            rows: class, left, top, right, bottom of each object, (m, 5)
            classes: how many there are

        Raises:
            DataError: too many objects in one of too many images.
        """
        counts = np.bincount(image, minlength=images)
        most = max(int(counts.max(initial=0)), 1)
        if images * most > MOST_PLACES or images * classes > MOST_NAMED:
            raise DataError(
                f"{images:,} images with up to {most:,} objects of {classes:,} classes take more "
                "memory than boxes may: split the data, or cut the images with the most objects"
            )
        order = np.argsort(image, kind="stable")
        image = image[order]
        rows = rows[order]
        starts = np.cumsum(counts) - counts
        boxes = np.zeros((images, most, 5), np.float32)
        boxes[..., 0] = -1
        boxes[image, np.arange(len(image)) - starts[image]] = rows
        return cls(boxes, classes)

    def take(self, places: Indices) -> Self:
        """Return the objects of some of the images."""
        return type(self)(self.boxes[np.asarray(places, np.int64)], self.count)

    def batch(self) -> Boxes:
        """Return the objects, float32 (n, most, 5)."""
        return self.boxes

    def content(self) -> bytes:
        """Return what a fingerprint has of them."""
        return self.labels.content() + self.boxes.tobytes()

    def cropped(self, row: int, box: Box, size: tuple[int, int], shape: tuple[int, int]) -> Boxes:
        """Return the objects within a box, (most, 5), those that are not there at the end.

        Boxes end where the crop does; objects whose center is outside are left out (SSD: Liu et
        al., 2016, section 2.2), where DETR keeps every sliver.
        """
        low, high = np.reshape(np.divide(box, (*shape[::-1], *shape[::-1])), (2, 2))
        edges = (self.boxes[row, :, 1:].astype(np.float64).reshape(-1, 2, 2) - low) / (high - low)
        centers = edges.mean(1)
        names = np.where(((centers >= 0) & (centers < 1)).all(-1), self.boxes[row, :, 0], -1)
        found = np.concatenate([names[:, None], edges.clip(0, 1).reshape(-1, 4)], -1)
        return found[np.argsort(names < 0, kind="stable")].astype(np.float32)

    @staticmethod
    def mirrored(targets: Tensor) -> Tensor:
        """Return objects with left and right exchanged."""
        name, left, top, right, bottom = targets.unbind(-1)
        return torch.stack([name, 1 - right, top, 1 - left, bottom], -1)


def boxes_of(images: Images) -> Boxes:
    """Return the objects of images with boxes."""
    assert isinstance(images.target, BoxTargets)
    return images.target.boxes
