"""Entries: which tensors of a file make which of a model, read and written alike."""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from torch import Tensor

Tensors = list[Tensor]
Conversion = Callable[[Tensors], Tensors]


class Entry(NamedTuple):
    """Some tensors of one model and the same numbers under other names.

    Attributes:
        ours: names in our model's state dict
        theirs: names in the other format; empty for computed values
        read: their tensors to ours
        write: ours to theirs
    """

    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    read: Conversion
    write: Conversion

    def renamed(self, rename: Callable[[str], str]) -> "Entry":
        """Return the same entry with their names changed."""
        return self._replace(theirs=tuple(map(rename, self.theirs)))


def same(ours: str, theirs: str) -> Entry:
    """Map one tensor as it is."""
    return Entry((ours,), (theirs,), list, list)


def written(entries: Iterable[Entry], state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a model's tensors as they are stored, by their names there."""
    tensors: dict[str, Tensor] = {}
    for entry in entries:
        made = entry.write([state[name].detach() for name in entry.ours])
        tensors |= zip(entry.theirs, made, strict=True)
    return tensors
