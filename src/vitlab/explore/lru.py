"""LRU cache, bounded in bytes."""

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from typing import Generic, Protocol, TypeVar


class Sized(Protocol):
    """Something that knows how many bytes it keeps."""

    @property
    def nbytes(self) -> int:
        """How many they are."""


Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value", bound=Sized)


class Kept(Generic[Key, Value]):
    """Values by key, those used last; the newest is kept however large it is.

    Args:
        most: bytes of all of them
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._values: OrderedDict[Key, Value] = OrderedDict()

    def __iter__(self) -> Iterator[Key]:
        """Yield the keys, that which was used last at the end."""
        return iter(tuple(self._values))

    def get(self, key: Key) -> Value | None:
        """Return a value, which is now the last one used; None if it is not kept."""
        if key in self._values:
            self._values.move_to_end(key)
        return self._values.get(key)

    def peek(self, key: Key) -> Value | None:
        """Return a value without using it; None if it is not kept."""
        return self._values.get(key)

    def put(self, key: Key, value: Value) -> None:
        """Keep a value, and let go of those that were used longest ago if there are too many."""
        self._values[key] = value
        self._values.move_to_end(key)
        taken = sum(each.nbytes for each in self._values.values())
        while taken > self.most and len(self._values) > 1:
            _, gone = self._values.popitem(last=False)
            taken -= gone.nbytes
