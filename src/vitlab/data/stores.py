"""Stores: where images lie, by number; and several stores in a row.

A store is one of files, arrays, objects in memory, a table's column or archives: `data/sources/`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from vitlab.data.decode.stored import StoredImage
from vitlab.data.target import Integers


@runtime_checkable
class Store(Protocol):
    """Where images lie: files, arrays, objects, a table's column or archives; images by number.

    Cheap to pickle: each worker process gets a copy. A store of another machine has a method
    `read_ahead(numbers)`, which reads many images together.
    """

    @property
    def in_memory(self) -> bool:
        """Whether the images are pixels in memory, so that no process is needed to decode them."""

    def __len__(self) -> int:
        """Return the number of images."""

    def image(self, number: int) -> StoredImage:
        """Return one image, not yet decoded; may raise `ImageError`."""

    def name(self, number: int) -> str:
        """Return the name of an image in a message."""


@dataclass(frozen=True, eq=False)
class Stores:
    """Several stores in a row.

    Attributes:
        parts: the stores
        ends: the number of the image after the last one of each, (parts,)
    """

    parts: tuple[Store, ...]
    ends: Integers

    @property
    def in_memory(self) -> bool:
        """Whether all parts are pixels in memory."""
        return all(part.in_memory for part in self.parts)

    def __len__(self) -> int:
        return int(self.ends[-1])

    def _find(self, number: int) -> tuple[Store, int]:
        """Return the store that has an image, and the image's number there."""
        place = int(np.searchsorted(self.ends, number, side="right"))
        return self.parts[place], number - (int(self.ends[place - 1]) if place else 0)

    def image(self, number: int) -> StoredImage:
        """Return the image that its store has."""
        store, own = self._find(number)
        return store.image(own)

    def name(self, number: int) -> str:
        """Return the name that its store has for it."""
        store, own = self._find(number)
        return store.name(own)

    def read_ahead(self, numbers: Integers) -> None:
        """Let the stores on other machines read images together."""
        for store, _, part_numbers in split_by_store(self, numbers):
            if len(part_numbers):
                read_ahead_in(store, part_numbers)


def read_ahead_in(store: Store, numbers: Integers) -> None:
    """Let a store read images together, if it can."""
    read = getattr(store, "read_ahead", None)
    if read is not None and not store.in_memory:
        read(numbers)


def _parts_of(store: Store) -> tuple[Store, ...]:
    """Return the stores that a store is made of."""
    return store.parts if isinstance(store, Stores) else (store,)


def _ends_of(parts: Sequence[Store]) -> Integers:
    """Return the number of the image after the last one of each store in a row."""
    return np.cumsum([len(part) for part in parts], dtype=np.int64)


def join_stores(stores: Sequence[Store]) -> Store:
    """Return one store of several; one that occurs again is there once."""
    if all(store is stores[0] for store in stores):
        return stores[0]
    parts = tuple({id(part): part for store in stores for part in _parts_of(store)}.values())
    return Stores(parts, _ends_of(parts))


def split_by_store(
    store: Store, numbers: Integers
) -> Iterator[tuple[Store, NDArray[np.bool_], Integers]]:
    """Yield each part of a store, which of some images it has, (n,), and their numbers there."""
    parts = _parts_of(store)
    for part, end in zip(parts, _ends_of(parts).tolist(), strict=True):
        start = end - len(part)
        is_there = (start <= numbers) & (numbers < end)
        yield part, is_there, numbers[is_there] - start


def numbers_in(joined: Store, store: Store, numbers: Integers) -> Integers:
    """Return the numbers that a store's images have in one made of it; -1: it is not there."""
    if store is joined:
        return numbers
    parts = _parts_of(joined)
    starts = dict(zip(map(id, parts), [0, *_ends_of(parts).tolist()], strict=False))
    joined_numbers = np.full(len(numbers), -1)
    for part, is_there, part_numbers in split_by_store(store, numbers):
        if id(part) in starts:
            joined_numbers[is_there] = part_numbers + starts[id(part)]
    return joined_numbers
