"""A source: labeled images by number; and sources made of others.

Some of the images, several sources in a row, other labels, groups, changed pixels.
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from vitlab.data.class_names import spell_name
from vitlab.data.decode.pixels import Pixels
from vitlab.data.decode.stored import StoredImage
from vitlab.data.labels import (
    Classes,
    Integers,
    Labels,
    MultiLabels,
    SingleLabels,
    TargetLabels,
    check_classes,
)

DIGEST = 16  # bytes


@runtime_checkable
class Source(Protocol):
    """Labeled images by number. Cheap to pickle: each worker process gets a copy."""

    @property
    def in_memory(self) -> bool:
        """Whether the images are pixels in memory, so that no process is needed to decode them."""

    @property
    def classes(self) -> Classes:
        """Names of the classes, in the order that the labels index."""

    @property
    def labels(self) -> Labels:
        """The labels of all images."""

    def __len__(self) -> int:
        """Return the number of images."""

    def image(self, index: int) -> StoredImage:
        """Return one image, not yet decoded; may raise `ImageError`."""

    def name(self, index: int) -> str:
        """Return the name of an image in a message."""


@dataclass(frozen=True)
class Wrapped:
    """A source made from another one; what it does not say itself is as there, but its labels."""

    whole: Source

    @property
    def in_memory(self) -> bool:
        """As the whole source."""
        return self.whole.in_memory

    def __len__(self) -> int:
        return len(self.whole)

    def image(self, index: int) -> StoredImage:
        """As the whole source."""
        return self.whole.image(index)

    def name(self, index: int) -> str:
        """As the whole source."""
        return self.whole.name(index)


@dataclass(frozen=True)
class Relabeled(Wrapped):
    """The images of another source under other labels."""

    labels: Labels
    classes: Classes


def numbered(bare: Source, cells: Iterable[Iterable[Any]], names: Sequence[str]) -> Source:
    """Return images with the numbers in some columns, whose cells may be anything."""
    return Relabeled(bare, TargetLabels.of(cells), tuple(names))


@dataclass(frozen=True)
class Derived(Wrapped):
    """A source with the labels of another one."""

    @property
    def classes(self) -> Classes:
        """As the whole source."""
        return self.whole.classes

    @property
    def labels(self) -> Labels:
        """As the whole source."""
        return self.whole.labels


@dataclass(frozen=True)
class Subset(Derived):
    """Some images of another source, by their numbers there."""

    indices: Integers

    @cached_property
    def labels(self) -> Labels:
        """The labels of these images."""
        return self.whole.labels.take(self.indices)

    def __len__(self) -> int:
        return len(self.indices)

    def image(self, index: int) -> StoredImage:
        """Return the image that the whole source has there."""
        return self.whole.image(int(self.indices[index]))

    def name(self, index: int) -> str:
        """Return the name that the whole source has for it."""
        return self.whole.name(int(self.indices[index]))


def counts(source: Source) -> dict[str, int]:
    """Count the images of each class."""
    return dict(zip(source.classes, source.labels.counts(len(source.classes)), strict=True))


def present(source: Source) -> list[str]:
    """Return the classes that a source has images of."""
    return [name for name, count in counts(source).items() if count]


def reindexed(source: Source, classes: Sequence[str], title: str) -> Source:
    """Return a source whose labels index other classes, matched by name.

    Args:
        source: its labels index its own classes
        classes: must have every class of which the source has images
        title: what to call the source in an error

    Raises:
        UnknownClassError: they do not.
        DataError: several of them have the same name.
    """
    order = tuple(classes)
    if source.classes == order and len(set(order)) == len(order):
        return source
    check_classes(present(source), order, title)
    place = {spell_name(name): number for number, name in enumerate(order)}
    moved = np.array([place.get(spell_name(name), -1) for name in source.classes], np.int64)
    labels: Labels
    if isinstance(source.labels, SingleLabels):
        labels = SingleLabels(moved[source.labels.values])
    else:
        table = np.zeros((len(source), len(order)), np.uint8)
        table[:, moved[moved >= 0]] = source.labels.values[:, moved >= 0]
        labels = MultiLabels(table)
    return Relabeled(source, labels, order)


@dataclass(frozen=True)
class Joined:
    """The images of several sources, one after the other; all have the same classes."""

    parts: tuple[Source, ...]

    @property
    def in_memory(self) -> bool:
        """Whether all parts are pixels in memory."""
        return all(part.in_memory for part in self.parts)

    @property
    def classes(self) -> Classes:
        """As each part."""
        return self.parts[0].classes

    @cached_property
    def labels(self) -> Labels:
        """The labels of all images."""
        every: list[Any] = [part.labels for part in self.parts]
        joined: Labels = type(every[0]).concat(every)
        return joined

    @cached_property
    def _ends(self) -> Integers:
        return np.cumsum([len(part) for part in self.parts], dtype=np.int64)

    def _find(self, index: int) -> tuple[Source, int]:
        """Return the part that has an image, and the image's number there."""
        place = int(np.searchsorted(self._ends, index, side="right"))
        return self.parts[place], index - (int(self._ends[place - 1]) if place else 0)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def image(self, index: int) -> StoredImage:
        """Return the image that its part has."""
        part, number = self._find(index)
        return part.image(number)

    def name(self, index: int) -> str:
        """Return the name that its part has for it."""
        part, number = self._find(index)
        return part.name(number)


@dataclass(frozen=True)
class Noted(Derived):
    """A source that knows a number of each image: of its group, or of its content.

    Attributes:
        kind: images of one group (a patient, a scene, a day) belong together; those of one content
            are copies
        numbers: hashes, (n,)
    """

    kind: Literal["group", "content"]
    numbers: NDArray[np.uint64]


def noted(source: Source, kind: Literal["group", "content"]) -> NDArray[np.uint64] | None:
    """Return the numbers that a source, or its parts, know of their images; None without any."""
    match source:
        case Noted(kind=own, numbers=numbers) if own == kind:
            return numbers
        case Subset(whole, indices):
            found = noted(whole, kind)
            return None if found is None else found[indices]
        case Joined(parts):
            every = [found for part in parts if (found := noted(part, kind)) is not None]
            return np.concatenate(every) if len(every) == len(parts) else None
        case Wrapped(whole=whole):
            return noted(whole, kind)
    return None


def grouped(source: Source, names: Iterable[object]) -> Source:
    """Return a source whose images are in groups, named for each image."""
    return Noted(source, "group", digests(map(str, names)))


def digests(texts: Iterable[str]) -> NDArray[np.uint64]:
    """Return 8 bytes for each text, (n,)."""
    return np.array([number_of(text.encode()) for text in texts], np.uint64)


def number_of(content: bytes) -> int:
    """Return the number of 8 bytes that identifies some content."""
    return int.from_bytes(digest(content, 8))


def digest(content: bytes, size: int = DIGEST) -> bytes:
    """Return a checksum of some bytes."""
    return hashlib.blake2b(content, digest_size=size).digest()


@dataclass(frozen=True)
class Altered(Derived):
    """A source whose images pass through a function once they are decoded.

    Attributes:
        whole: the source
        change: takes and returns pixels (rows, columns, channels); a function of a module, so that
            worker processes can receive it
    """

    change: Callable[[Pixels], Pixels]

    def image(self, index: int) -> "AlteredImage":
        """Return the image, to be changed when it is decoded."""
        image = self.whole.image(index)
        return AlteredImage(image, image.name, self.change)


@dataclass(frozen=True)
class AlteredImage(StoredImage):
    """A stored image, and what happens to its pixels before a box is cut from them."""

    stored: StoredImage
    name: str
    change: Callable[[Pixels], Pixels]

    def shape(self) -> tuple[int, int, int]:
        """Return rows, columns and channels after the change."""
        empty = np.broadcast_to(np.uint8(0), self.stored.shape())
        rows, columns, channels = self.change(empty).shape
        return rows, columns, channels

    def decode(self, channels: int) -> Pixels:
        """Return the whole image, changed."""
        return self.change(self.stored.decode(channels))

    def content(self) -> bytes:
        """Return the stored bytes."""
        return self.stored.content()


def groups_known(source: Source) -> bool:
    """Return whether the data names groups."""
    return noted(source, "group") is not None


def origin(part: Source, whole: Source | None = None) -> tuple[Source, Integers]:
    """Return the source that a part was taken from, and the numbers of its images there.

    Args:
        part: any source
        whole: one to stop at; without it, the first source that has images of its own
    """
    if part is not whole:
        match part:
            case Subset(inner, indices):
                found, numbers = origin(inner, whole)
                return found, numbers[indices]
            case Relabeled(whole=inner) | Noted(whole=inner):
                return origin(inner, whole)
    return part, np.arange(len(part))


def without(source: Source, images: Sequence[int] | Integers) -> Source:
    """Return a source without some of its images."""
    if not len(images):
        return source
    return Subset(source, np.setdiff1d(np.arange(len(source)), images))
