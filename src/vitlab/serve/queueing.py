"""Who waits, and who is next: no model's crowd keeps another model's images waiting."""

from collections import deque
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

Item = TypeVar("Item")
OPEN = 2  # times the free places: what one of several models may hold


class Rounds(Generic[Item]):
    """Items that wait, by whom they are for: these take turns; items of one keep their order."""

    def __init__(self) -> None:
        self._waiting: dict[Hashable, deque[Item]] = {}  # in the order of their turns; none empty

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def __iter__(self) -> Iterator[Hashable]:
        """Iterate over those for whom items wait, whose turn is next first."""
        return iter(list(self._waiting))

    def push(self, key: Hashable, item: Item) -> None:
        """Add an item at the end of its line."""
        self._waiting.setdefault(key, deque()).append(item)

    def line(self, key: Hashable) -> deque[Item]:
        """Return the line of one, first come first."""
        return self._waiting.get(key, deque())

    def pop(self, key: Hashable | None = None) -> Item:
        """Take the first item of whose turn it is, or of a given one, whose turn is then over."""
        if key is None:
            key = next(iter(self._waiting))
        line = self._waiting.pop(key)
        item = line.popleft()
        if line:
            self._waiting[key] = line  # at the end
        return item

    def clear(self, key: Hashable) -> list[Item]:
        """Take all items of one."""
        return list(self._waiting.pop(key, ()))


def admitted(images: int, own: int, total: int, places: int, alone: bool) -> bool:
    """Return whether images may join the queue of a service.

    One of several models may hold twice as many places as are left free, so that there are always
    some left for the others, without any being set aside (dynamic thresholds: Choudhury and Hahne,
    IEEE/ACM Transactions on Networking 6(2), 1998). A model that holds none may take what is free.

    Args:
        images: of the request
        own: places that its model holds
        total: places that all models hold
        places: of the queue
        alone: whether there is only this model
    """
    free = places - total - images
    return free >= 0 and (alone or not own or own + images <= OPEN * free)
