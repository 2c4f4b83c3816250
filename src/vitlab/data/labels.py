"""Labels of images: one class per image, or any number of classes; and lists of classes."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from vitlab.data.class_names import spell_name
from vitlab.data.target import Indices, Integers, Target
from vitlab.errors import DataError

MOST_CELLS = 2**32  # images times classes that a fingerprint has as a table


@dataclass(frozen=True, eq=False)
class SingleLabels(Target):
    """One class per image.

    Attributes:
        values: indices of the classes, int64 (n,)
    """

    values: Integers
    kind: ClassVar[str] = "label"
    several: ClassVar[bool] = False
    column: ClassVar[str] = "label"
    shared: ClassVar[str] = "each class"

    @classmethod
    def blank(cls, images: int, classes: int) -> Self:
        """Return labels for images whose classes are unknown."""
        return cls(np.broadcast_to(np.int64(0), images))  # takes no memory

    def __len__(self) -> int:
        return len(self.values)

    def take(self, places: Indices) -> Self:
        """Return the labels of some of the images."""
        return type(self)(self.values[np.asarray(places, np.int64)])

    @classmethod
    def concat(cls, parts: Sequence[Self]) -> Self:
        """Return the labels of the images of several parts, one after the other."""
        return cls(np.concatenate([part.values for part in parts]))

    def reindexed(self, moved: Integers, count: int) -> Self:
        """Return the labels as indices of other classes."""
        return type(self)(moved[self.values])

    def classes_of(self, row: int) -> tuple[int, ...]:
        """Return the class of one image."""
        return (int(self.values[row]),)

    def counts(self, classes: int) -> list[int]:
        """Count the images of each class."""
        return np.bincount(self.values, minlength=classes).tolist()

    def batch(self) -> Integers:
        """Return the indices, int64 (n,)."""
        return self.values

    def are_equal(self, one: int, other: int) -> bool:
        """Return whether two images have the same class."""
        return bool(self.values[one] == self.values[other])

    @property
    def strata(self) -> Integers:
        """The class of each image."""
        return self.values

    def content(self) -> bytes:
        """Return what a fingerprint has of them."""
        return self.values.tobytes()

    def parts(self, count: int, generator: np.random.Generator) -> Integers:
        """Deal the images out to parts at random; parts differ by at most one image of a class.

        Their sizes differ by at most one image in all, too.

        Returns:
            The part of each image, from 0; int64 (n,).
        """
        order = np.lexsort((generator.permutation(len(self)), self.values))
        dealt = np.empty(len(order), np.int64)
        dealt[order] = np.arange(len(order)) % count
        return dealt

    def shuffle_evenly(self, generator: np.random.Generator) -> tuple[Integers, int]:
        """Put the images into a random order whose every beginning has its share of each class.

        Returns:
            The indices in that order, and how many of the first ones show every class once.
        """
        order = generator.permutation(len(self))
        values = self.values[order]
        sizes = np.bincount(values)
        by_class = np.argsort(values, kind="stable")
        rank = np.empty(len(self), np.int64)  # among the images of the class
        rank[by_class] = np.arange(len(self)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        place = np.where(rank == 0, 0, (rank + 0.5) / sizes[values])
        return order[np.argsort(place, kind="stable")], int((sizes > 0).sum())


@dataclass(frozen=True, eq=False)
class MultiLabels(Target):
    """Any number of classes per image: 4 bytes for each, and 8 for each image.

    Attributes:
        indices: the classes of all images, one image after the other, each sorted, int32 (m,)
        ends: where in `indices` each image's classes end, int64 (n,)
        count: how many classes there are
    """

    indices: NDArray[np.int32]
    ends: Integers
    count: int
    kind: ClassVar[str] = "labels"
    several: ClassVar[bool] = True

    @classmethod
    def blank(cls, images: int, classes: int) -> Self:
        """Return labels for images whose classes are unknown."""
        return cls(np.empty(0, np.int32), np.broadcast_to(np.int64(0), images), classes)

    @classmethod
    def of_table(cls, table: NDArray[np.generic]) -> Self:
        """Return labels from a table with 1 where an image has a class, else 0, (n, classes)."""
        rows, indices = np.nonzero(table)
        ends = np.cumsum(np.bincount(rows, minlength=len(table)), dtype=np.int64)
        return cls(indices.astype(np.int32), ends, table.shape[1])

    @classmethod
    def of_sets(cls, sets: Sequence[Iterable[int]], classes: int) -> Self:
        """Return labels from the classes of each image."""
        every = [sorted(set(own)) for own in sets]
        ends = np.cumsum([len(own) for own in every], dtype=np.int64)
        return cls(np.array([each for own in every for each in own], np.int32), ends, classes)

    def __len__(self) -> int:
        return len(self.ends)

    @property
    def sizes(self) -> Integers:
        """How many classes each image has, int64 (n,)."""
        return np.diff(self.ends, prepend=0)

    @property
    def values(self) -> NDArray[np.uint8]:
        """A table of all: 1 where an image has a class, else 0, uint8 (n, classes)."""
        table = np.zeros((len(self), self.count), np.uint8)
        table[np.repeat(np.arange(len(self)), self.sizes), self.indices] = 1
        return table

    def take(self, places: Indices) -> Self:
        """Return the labels of some of the images."""
        chosen = np.asarray(places, np.int64)
        sizes = self.sizes[chosen]
        ends = np.cumsum(sizes, dtype=np.int64)
        shift = np.repeat(self.ends[chosen] - ends, sizes)
        return type(self)(self.indices[np.arange(len(shift)) + shift], ends, self.count)

    @classmethod
    def concat(cls, parts: Sequence[Self]) -> Self:
        """Return the labels of the images of several parts, one after the other."""
        starts = np.cumsum([0, *(len(part.indices) for part in parts)]).tolist()
        ends = [part.ends + start for part, start in zip(parts, starts, strict=False)]
        indices = np.concatenate([part.indices for part in parts])
        return cls(indices, np.concatenate(ends), parts[0].count)

    def reindexed(self, moved: Integers, count: int) -> Self:
        """Return the labels as indices of other classes."""
        images = np.repeat(np.arange(len(self)), self.sizes)
        indices = moved[self.indices]
        order = np.lexsort((indices, images))
        return type(self)(indices[order].astype(np.int32), self.ends, count)

    def classes_of(self, row: int) -> tuple[int, ...]:
        """Return the classes of one image."""
        row = range(len(self))[row]
        start = self.ends[row - 1] if row else 0
        return tuple(self.indices[start : self.ends[row]].tolist())

    def counts(self, classes: int) -> list[int]:
        """Count the images of each class."""
        return np.bincount(self.indices, minlength=classes).tolist()

    def batch(self) -> NDArray[np.float32]:
        """Return 0 or 1 for each class, float32 (n, classes)."""
        return self.values.astype(np.float32)

    def are_equal(self, one: int, other: int) -> bool:
        """Return whether two images have the same classes."""
        return self.classes_of(one) == self.classes_of(other)

    def shuffle_evenly(self, generator: np.random.Generator) -> tuple[Integers, int]:
        """Put the images into a random order that begins with an image of each class.

        Returns:
            The rows in that order, and how many of the first ones show every class.
        """
        order = generator.permutation(len(self))
        shuffled = self.take(order)
        images = np.repeat(np.arange(len(self)), shuffled.sizes)
        _, first = np.unique(shuffled.indices, return_index=True)
        front = np.unique(images[first])  # the first image of each class
        places = np.concatenate([front, np.setdiff1d(np.arange(len(self)), front)])
        return order[places], len(front)

    def content(self) -> bytes:
        """Return what a fingerprint has of them: the table, or the indices of a very large one."""
        if len(self) * self.count <= MOST_CELLS:
            return self.values.tobytes()
        return self.indices.tobytes() + self.ends.tobytes()


Labels = SingleLabels | MultiLabels


def labels_of(target: Target) -> Labels:
    """Return a target that is labels: that of images of which classes are measured."""
    assert isinstance(target, SingleLabels | MultiLabels)
    return target


def classes_of_images(target: Target) -> Integers:
    """Return the class of each image, (n,).

    Raises:
        DataError: images have several labels, or other targets.
    """
    if not isinstance(target, SingleLabels):
        raise DataError("the images have several labels each: data with one class each is needed")
    return target.values


def kind_of(provenance: Mapping[str, Any]) -> type[SingleLabels] | type[MultiLabels]:
    """Return the kind of labels that a model was trained with, as its provenance says."""
    return MultiLabels if provenance.get("multi_label", False) else SingleLabels


class UnlabeledError(DataError):
    """Images without labels, where labels are needed."""


class UnknownClassError(DataError):
    """Images of a class that is not in the training data."""


def check_classes(found: Iterable[str], known: Sequence[str], title: str) -> None:
    """Refuse classes that the training images do not have.

    Raises:
        UnknownClassError: the first unknown class, by name.
        DataError: a class whose name several outputs have.
    """
    spelled = {*map(spell_name, known)}
    if unknown := sorted(name for name in set(found) if spell_name(name) not in spelled):
        raise UnknownClassError(
            f"{title} contains class {unknown[0]!r}, which is not in the training data"
        )
    if len(set(known)) < len(known):
        twice = {name for name, count in Counter(known).items() if count > 1}
        if doubtful := sorted(twice & set(found)):
            raise DataError(
                f"{title} contains class {doubtful[0]!r}, the name of several of the model's "
                "outputs: rename them with --labels"
            )
