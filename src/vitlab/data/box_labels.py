"""Labels of objects: a class and a box each, which follow crops and mirrors.

A box is left, top, right, bottom in shares of the image's sides, so that it stays as it is where
the whole image is resized.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitlab.data.decode.pixels import Box
from vitlab.data.labels import Indices, Integers, PlacedLabels
from vitlab.errors import DataError

MOST_PLACES = 50_000_000  # images times the most objects in one of them: 1 GB of boxes
MOST_NAMED = 2**32  # images times classes: bytes
Boxes = NDArray[np.float32]
"""(n, most, 5): class, left, top, right, bottom of each object; class -1 where there is none."""


@dataclass(frozen=True, eq=False)
class BoxLabels(PlacedLabels):
    """The objects of images: a class and a box each. As labels they are the classes there are.

    Attributes:
        boxes: of each image
    """

    boxes: Boxes
    again: ClassVar[str] = "with other boxes"
    keeps_aspect: ClassVar[bool] = True

    @classmethod
    def concat(cls, parts: Sequence[Self]) -> Self:
        """Return the labels of the images of several parts, one after the other."""
        every = [own[own[:, 0] >= 0] for part in parts for own in part.boxes]
        return cls.of(every, parts[0].values.shape[1])

    def are_equal(self, one: int, other: int) -> bool:
        """Return whether two images have the same objects, in whatever order."""
        both = (sorted(map(tuple, self.boxes[each].tolist())) for each in (one, other))
        return next(both) == next(both)

    @classmethod
    def of(cls, objects: Sequence[Any], classes: int) -> Self:
        """Return the labels of images from the rows of `Boxes` of each."""
        most = max((len(own) for own in objects), default=0)
        boxes = np.zeros((len(objects), max(most, 1), 5), np.float32)
        boxes[..., 0] = -1
        values = np.zeros((len(objects), classes), np.uint8)
        for number, own in enumerate(objects):
            if len(own):
                boxes[number, : len(own)] = own
                values[number, boxes[number, : len(own), 0].astype(np.int64)] = 1
        return cls(values, boxes)

    @classmethod
    def from_objects(
        cls, images: int, image: Integers, rows: NDArray[np.float64], classes: int
    ) -> Self:
        """Return the labels of images from the objects of all, in any order.

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
        values = np.zeros((images, classes), np.uint8)
        values[image, rows[:, 0].astype(np.int64)] = 1
        return cls(values, boxes)

    def take(self, indices: Indices) -> Self:
        """Return the labels of some of the images."""
        chosen = np.asarray(indices, np.int64)
        return type(self)(self.values[chosen], self.boxes[chosen])

    def targets(self) -> Boxes:
        """Return the targets of a batch, float32 (n, most, 5)."""
        return self.boxes

    def content(self) -> bytes:
        """Return what a fingerprint has of them."""
        return super().content() + self.boxes.tobytes()

    def inside(self, index: int, size: tuple[int, int], shape: tuple[int, int], box: Box) -> Boxes:
        """Return the objects within a box, (most, 5), those that are not there at the end.

        Boxes end where the crop does; objects whose center is outside are left out (SSD: Liu et
        al., 2016, section 2.2), where DETR keeps every sliver.
        """
        low, high = np.reshape(np.divide(box, (*shape[::-1], *shape[::-1])), (2, 2))
        edges = (self.boxes[index, :, 1:].astype(np.float64).reshape(-1, 2, 2) - low) / (high - low)
        centers = edges.mean(1)
        names = np.where(((centers >= 0) & (centers < 1)).all(-1), self.boxes[index, :, 0], -1)
        found = np.concatenate([names[:, None], edges.clip(0, 1).reshape(-1, 4)], -1)
        return found[np.argsort(names < 0, kind="stable")].astype(np.float32)

    @staticmethod
    def mirrored(targets: Tensor) -> Tensor:
        """Return objects with left and right exchanged."""
        name, left, top, right, bottom = targets.unbind(-1)
        return torch.stack([name, 1 - right, top, 1 - left, bottom], -1)
