"""Many short texts in two arrays.

A list of a million paths is a million Python objects, and a worker process that merely reads one
updates its reference count, which copies the memory page shared with its parent. Two arrays stay
shared.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Names(Sequence[str]):
    """A sequence of texts: their bytes, concatenated, and where each ends."""

    text: NDArray[np.uint8]
    ends: NDArray[np.int64]

    @classmethod
    def of(cls, texts: Iterable[str]) -> "Names":
        """Pack texts; file names that are not valid Unicode are preserved."""
        pieces = [os.fsencode(text) for text in texts]
        text = np.frombuffer(b"".join(pieces), np.uint8)
        return cls(text, np.cumsum([len(piece) for piece in pieces], dtype=np.int64))

    @classmethod
    def joined(cls, parts: Sequence["Names"]) -> "Names":
        """Return the texts of several sequences, one after the other."""
        starts = np.cumsum([0, *(len(part.text) for part in parts)])
        ends = [part.ends + start for part, start in zip(parts, starts, strict=False)]
        return cls(np.concatenate([part.text for part in parts]), np.concatenate(ends))

    def __len__(self) -> int:
        return len(self.ends)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> "Names": ...
    def __getitem__(self, index: int | slice) -> "str | Names":
        if isinstance(index, slice):
            return Names.of(self[each] for each in range(len(self))[index])
        place = range(len(self))[index]  # resolves negative indices, refuses those out of range
        start = self.ends[place - 1] if place else 0
        return os.fsdecode(self.text[start : self.ends[place]].tobytes())

    def __iter__(self) -> Iterator[str]:
        return (self[each] for each in range(len(self)))
