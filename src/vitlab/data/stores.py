"""Stores: where images lie, by number; and several stores in a row.

A store is one of files, arrays, objects in memory, a table's column or archives: `data/sources/`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

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
        for store, end in zip(self.parts, self.ends.tolist(), strict=True):
            start = end - len(store)
            if len(own := numbers[(start <= numbers) & (numbers < end)]):
                read_ahead_in(store, own - start)


def read_ahead_in(store: Store, numbers: Integers) -> None:
    """Let a store read images together, if it can."""
    read = getattr(store, "read_ahead", None)
    if read is not None and not store.in_memory:
        read(numbers)


def _parts_of(store: Store) -> tuple[Store, ...]:
    """Return the stores that a store is made of."""
    return store.parts if isinstance(store, Stores) else (store,)


def join_stores(stores: Sequence[Store]) -> tuple[Store, list[int]]:
    """Return one store of several, and the number of each one's first image there.

    A store that occurs again is there once.
    """
    if all(store is stores[0] for store in stores):
        return stores[0], [0] * len(stores)
    parts = list[Store]()
    starts = list[int]()
    size = 0
    for store in stores:
        known = start_of(store, Stores(tuple(parts), _ends(parts))) if parts else -1
        starts.append(size if known < 0 else known)
        if known < 0:
            parts += _parts_of(store)
            size += len(store)
    return Stores(tuple(parts), _ends(parts)), starts


def _ends(parts: Sequence[Store]) -> Integers:
    """Return the number of the image after the last one of each store."""
    return np.cumsum([len(part) for part in parts], dtype=np.int64)


def start_of(store: Store, joined: Store) -> int:
    """Return the number that a store's first image has in a joined store; -1: it is not there."""
    own = _parts_of(store)
    parts = _parts_of(joined)
    starts = [0, *_ends(parts).tolist()]
    for place in range(len(parts) - len(own) + 1):
        if all(one is other for one, other in zip(own, parts[place:], strict=False)):
            return int(starts[place])
    return -1
