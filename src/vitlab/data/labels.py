"""Labels of images: one class per image, several, numbers, or places; what depends on the kind."""

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from vitlab.data.class_names import spell_name
from vitlab.data.decode.pixels import Box
from vitlab.errors import DataError, ImageError, OptionError
from vitlab.values import check_names

Label = str | tuple[str, ...] | list[str]
"""The label of one image as data spells it: one class, or any number of them."""

IGNORED = -1
"""The class of a pixel that plays no part."""

Classes = tuple[str, ...]
"""Names of classes, in the order that labels index."""

Integers = NDArray[np.int64]
Indices = Sequence[int] | Integers


@dataclass(frozen=True, eq=False)
class _AnyLabels:
    """Base of labels of all kinds."""

    values: NDArray[Any]  # one row for each image
    shared: ClassVar[str]  # of what a share is held out
    again: ClassVar[str] = "under another class"  # how a copy with other labels occurs

    def __len__(self) -> int:
        return len(self.values)

    @classmethod
    def concat(cls, parts: Sequence[Self]) -> Self:
        """Return the labels of the images of several parts, one after the other."""
        return replace(parts[0], values=np.concatenate([part.values for part in parts]))

    def are_equal(self, one: int, other: int) -> bool:
        """Return whether two images have the same labels."""
        return np.array_equal(self.values[one], self.values[other])

    def take(self, indices: Indices) -> Self:
        """Return the labels of some of the images."""
        return replace(self, values=self.values[np.asarray(indices, np.int64)])

    @property
    def strata(self) -> Integers:
        """The stratum of each image when a share of all is held out, (n,): here all are alike."""
        return np.zeros(len(self), np.int64)

    def content(self) -> bytes:
        """Return what a fingerprint has of them."""
        return self.values.tobytes()


@dataclass(frozen=True, eq=False)
class SingleLabels(_AnyLabels):
    """One class per image.

    Attributes:
        values: indices of the classes, int64 (n,)
    """

    values: Integers
    several: ClassVar[bool] = False
    column: ClassVar[str] = "label"  # of a table
    shared: ClassVar[str] = "each class"

    @classmethod
    def blank(cls, images: int, classes: int) -> Self:
        """Return labels for images whose classes are unknown."""
        return cls(np.broadcast_to(np.int64(0), images))  # takes no memory

    def classes_of(self, index: int) -> tuple[int, ...]:
        """Return the classes of one image."""
        return (int(self.values[index]),)

    def counts(self, classes: int) -> list[int]:
        """Count the images of each class."""
        return np.bincount(self.values, minlength=classes).tolist()

    def targets(self) -> Integers:
        """Return the targets of a batch: the indices, int64 (n,)."""
        return self.values

    @staticmethod
    def probabilities(logits: Tensor) -> Tensor:
        """Turn logits (n, classes) into probabilities that sum to one (softmax)."""
        return logits.softmax(-1)

    @property
    def strata(self) -> Integers:
        """The class of each image."""
        return self.values

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

    def nested(self, generator: np.random.Generator) -> tuple[Integers, int]:
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
class MultiLabels(_AnyLabels):
    """Any number of classes per image.

    Attributes:
        values: 1 where an image has a class, else 0, uint8 (n, classes)
    """

    several: ClassVar[bool] = True
    column: ClassVar[str] = "labels"
    shared: ClassVar[str] = "the images"

    @classmethod
    def blank(cls, images: int, classes: int) -> Self:
        """Return labels for images whose classes are unknown."""
        return cls(np.broadcast_to(np.uint8(0), (images, classes)))  # takes no memory

    def classes_of(self, index: int) -> tuple[int, ...]:
        """Return the classes of one image."""
        return tuple(np.flatnonzero(self.values[index]).tolist())

    def counts(self, classes: int) -> list[int]:
        """Count the images of each class."""
        return self.values.sum(axis=0, dtype=np.int64).tolist()

    def targets(self) -> NDArray[np.float32]:
        """Return the targets of a batch: 0 or 1 for each class, float32 (n, classes)."""
        return self.values.astype(np.float32)

    @staticmethod
    def probabilities(logits: Tensor) -> Tensor:
        """Turn logits (n, classes) into one probability for each class (sigmoid)."""
        return logits.sigmoid()

    def nested(self, generator: np.random.Generator) -> tuple[Integers, int]:
        """Put the images into a random order that begins with an image of each class.

        Returns:
            The indices in that order, and how many of the first ones show every class.
        """
        order = generator.permutation(len(self))
        table = self.values[order]
        front = np.unique(table.argmax(0)[table.any(0)])  # the first image of each class
        places = np.concatenate([front, np.setdiff1d(np.arange(len(self)), front)])
        return order[places], len(front)


Numbers = NDArray[np.float64]
LARGEST = 1e30  # beyond it, squares are not finite
UNIT = np.array([[0.0], [1.0]])


@dataclass(frozen=True, eq=False)
class TargetLabels(MultiLabels):
    """The numbers of images, of which regression learns; every image has every target.

    Attributes:
        values: in their own units, float64 (n, targets); NaN where there is none
        scale: what batches have them less of, and divided by, float64 (2, targets)
    """

    scale: Numbers = field(default_factory=lambda: UNIT)
    again: ClassVar[str] = "with other numbers"

    @classmethod
    def of(cls, cells: Iterable[Iterable[Any]]) -> Self:
        """Return the labels of images by their cells, which may be anything."""
        return cls(np.array([[_number(cell) for cell in own] for own in cells], np.float64))

    def classes_of(self, index: int) -> tuple[int, ...]:
        """Return the classes of one image: numbers are none."""
        return ()

    def counts(self, classes: int) -> list[int]:
        """Count the images of each target: all of them."""
        return [len(self)] * classes

    def targets(self) -> NDArray[np.float32]:
        """Return the targets of a batch, standardized, float32 (n, targets)."""
        return ((self.values - self.scale[0]) / self.scale[1]).astype(np.float32)

    def nested(self, generator: np.random.Generator) -> tuple[Integers, int]:
        """Put the images into a random order."""
        return generator.permutation(len(self)), 1


@dataclass(frozen=True, eq=False)
class PlacedLabels(MultiLabels, ABC):
    """Labels of places in images, which follow a crop and a mirror: boxes, or classes of pixels."""

    keeps_aspect: ClassVar[bool] = False  # whether random crops are shaped like the image

    @abstractmethod
    def inside(
        self, index: int, size: tuple[int, int], shape: tuple[int, int], box: Box
    ) -> NDArray[Any]:
        """Return the targets, at a size, of a box of an image of that shape."""

    @staticmethod
    @abstractmethod
    def mirrored(targets: Tensor) -> Tensor:
        """Return the targets of a batch, (B, m, n), with left and right exchanged."""


@dataclass(frozen=True, eq=False)
class PixelLabels(PlacedLabels):
    """The classes of images' pixels, each read when its image is.

    Attributes:
        values: numbers of the images, int64 (n, 1)
        read: the classes of an image's pixels by its number and its rows and columns
        stored: an image's mask by its number
    """

    read: Callable[[int, tuple[int, int]], NDArray[np.int16]]
    stored: Callable[[int], NDArray[Any]]
    again: ClassVar[str] = "with another mask"

    @classmethod
    def concat(cls, parts: Sequence[Self]) -> Self:
        """Return the labels of the images of several parts, one after the other."""
        every = _SeveralMasks(tuple(parts), np.cumsum([0, *map(len, parts)]))
        return cls(np.arange(sum(map(len, parts)))[:, None], every.read, every.read_stored)

    def are_equal(self, one: int, other: int) -> bool:
        """Return whether two images have the same mask; one that cannot be read equals any."""
        try:
            mask = self.stored(int(self.values[one, 0]))
            return np.array_equal(mask, self.stored(int(self.values[other, 0])))
        except ImageError:  # it is reported where it is used
            return True

    def classes_of(self, index: int) -> tuple[int, ...]:
        """Return the classes of one image: none, as long as its pixels are not read."""
        return ()

    def counts(self, classes: int) -> list[int]:
        """Count the images of each class: all of them, as long as none is read."""
        return [len(self)] * classes

    def inside(
        self, index: int, size: tuple[int, int], shape: tuple[int, int], box: Box
    ) -> NDArray[np.int16]:
        """Return the classes of the nearest pixels, (rows, columns)."""
        left, top, right, bottom = map(round, box)  # as training cuts images
        sides = zip((top, left), (bottom, right), size, shape, strict=True)
        rows, columns = (
            np.clip(first + (np.arange(out) + 0.5) * (last - first) / out, 0, most - 1)
            for first, last, out, most in sides
        )
        whole = self.read(int(self.values[index, 0]), shape)
        return whole[np.ix_(rows.astype(np.int64), columns.astype(np.int64))]

    @staticmethod
    def mirrored(targets: Tensor) -> Tensor:
        """Return classes of pixels with left and right exchanged."""
        return targets.flip(-1)


@dataclass(frozen=True, eq=False)
class _SeveralMasks:
    """The masks of several parts: their labels, and the number of the first image of each."""

    parts: tuple[PixelLabels, ...]
    starts: Integers

    def _find(self, number: int) -> tuple[PixelLabels, int]:
        """Return the labels that have an image, and its number there."""
        place = int(np.searchsorted(self.starts, number, side="right")) - 1
        own = self.parts[place]
        return own, int(own.values[number - int(self.starts[place]), 0])

    def read(self, number: int, size: tuple[int, int]) -> NDArray[np.int16]:
        """Return the classes of an image's pixels."""
        own, index = self._find(number)
        return own.read(index, size)

    def read_stored(self, number: int) -> NDArray[Any]:
        """Return an image's mask."""
        own, index = self._find(number)
        return own.stored(index)


def _number(cell: Any) -> float:
    """Return the number in a cell; NaN where there is none."""
    try:
        value = float(cell)
    except (TypeError, ValueError, OverflowError):
        return math.nan
    return value if abs(value) <= LARGEST else math.nan


Labels = SingleLabels | MultiLabels


def index_labels(
    raw: Sequence[Label], title: str, names: Sequence[str] | None = None
) -> tuple[Labels, Classes]:
    """Return labels as indices of a list of classes, and that list.

    Args:
        raw: the label of each image; one list among them makes them `MultiLabels`
        title: what to call the data in an error
        names: the classes, which whole numbers among the labels index; None for those that occur,
            sorted (numbers by value)

    Raises:
        DataError: a label that is not among `names`, or that several of them are.
    """
    sets = [[label] if isinstance(label, str) else list(label) for label in raw]
    found = dict.fromkeys(label for own in sets for label in own)
    if names is not None:
        names = _spell_all(names)
        spelled = {label: _name(label, names, title) for label in found}
        sets = [[spelled[label] for label in own] for own in sets]
        found = dict.fromkeys(spelled.values())
    order = tuple(names or sorted(found, key=by_value))
    check_classes(found, order, title)
    place = {name: number for number, name in enumerate(order)}
    if all(isinstance(label, str) for label in raw):
        return SingleLabels(np.array([place[own[0]] for own in sets], np.int64)), order
    table = np.zeros((len(sets), len(order)), np.uint8)
    for row, own in enumerate(sets):
        table[row, [place[label] for label in own]] = 1
    return MultiLabels(table), order


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


def _spell_all(names: Sequence[str]) -> Sequence[str]:
    """Return the names of classes as labels are compared, unless two would be one."""
    spelled = [*map(spell_name, names)]
    return spelled if len({*spelled}) == len(spelled) else names


def check_class_names(names: Sequence[str], title: str, what: str = "class") -> None:
    """Refuse names that no model could have, as those of folders are refused.

    Args:
        names: of classes or columns, in order
        title: what to call the data
        what: each of them is

    Raises:
        DataError: a name is empty, very long, there twice, or has a control character.
    """
    try:
        check_names(names, what)
    except OptionError as error:
        raise DataError(f"{title}: {error}") from None


def _name(label: str, names: Sequence[str], title: str) -> str:
    """Return the name that a label indexes, or is."""
    if label in names and not label.isdecimal():
        return label
    if label.isdecimal() and int(label) < len(names):
        return names[int(label)]
    raise DataError(f"{title}: label {label!r} is not one of its {len(names)} classes")


def by_value(label: str) -> tuple[int, int, str]:
    """Sort whole numbers first, by value; then words."""
    is_whole = label.removeprefix("-").isdecimal()
    return (0, int(label), label) if is_whole else (1, 0, label)
