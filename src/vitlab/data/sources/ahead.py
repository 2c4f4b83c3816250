"""Reading ahead: images on another machine that are asked for next, many at a time."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from vitlab.data.labels import Integers
from vitlab.data.sources.source import Joined, Source, Subset, Wrapped


@runtime_checkable
class RemoteImages(Protocol):
    """Images on another machine, of which a source can read many together."""

    def read_ahead(self, indices: Integers) -> None:
        """Read images that are asked for next, given their numbers, int64 (n,)."""


def read_ahead(source: Source, indices: Sequence[int] | Integers) -> None:
    """Let a source whose images are on another machine read some of them together.

    Raises:
        SourceError: that machine did not give them.
    """
    own = np.asarray(indices, np.int64)
    match source:
        case Source(in_memory=True):
            return
        case Subset(whole, chosen):
            read_ahead(whole, chosen[own])
        case Joined(parts):
            ends = np.cumsum([len(part) for part in parts])
            for part, end in zip(parts, ends.tolist(), strict=True):
                start = end - len(part)
                if len(here := own[(start <= own) & (own < end)]):
                    read_ahead(part, here - start)
        case Wrapped(whole=whole):
            read_ahead(whole, own)
        case RemoteImages():
            source.read_ahead(own)
