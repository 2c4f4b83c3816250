"""Stretches of images that lie together in a shard, and whether they are on another machine."""

from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from vitlab.data.labels import Integers
from vitlab.data.sources.source import Joined, Source, Subset, Wrapped
from vitlab.data.sources.urls import is_url


@runtime_checkable
class InShards(Protocol):
    """Images in shards.

    Attributes:
        places: of the shards, all on this machine or on another one
        shard: the one that each image is in, (n,)
    """

    places: tuple[str, ...]
    shard: NDArray[np.int32]


def is_far(source: Source) -> bool:
    """Return whether all images lie in shards on another machine."""
    match source:
        case Joined(parts):
            return all(map(is_far, parts))
        case Wrapped(whole=whole):
            return is_far(whole)
        case InShards():
            return is_url(source.places[0])
    return False


def shard_ends(source: Source) -> Integers | None:
    """Return where each stretch of images that lie in one shard ends; None where some lie in none.

    The images of a shard are several stretches where they are not in their order there.
    """
    shards = _shards_of(source, np.arange(len(source)))
    if shards is None:
        return None
    return np.append(np.flatnonzero(np.diff(shards)) + 1, len(shards))


def _shards_of(source: Source, indices: Integers) -> Integers | None:
    """Return a number for the shard of each image; None where some lie in none."""
    match source:
        case Subset(whole, places):
            return _shards_of(whole, places[indices])
        case Joined(parts):
            every = [_shards_of(part, np.arange(len(part))) for part in parts]
            before = 0
            numbers = list[Integers]()
            for part in every:
                if part is None:
                    return None
                numbers.append(part + before)
                before = int(numbers[-1].max(initial=before)) + 1
            return np.concatenate(numbers)[indices]
        case Wrapped(whole=whole):
            return _shards_of(whole, indices)
        case InShards():
            return source.shard[indices].astype(np.int64)
    return None
