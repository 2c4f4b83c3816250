"""Identities of images in shards, here or on another machine."""

import numpy as np

from vitlab.data.identifier import Identifier, Identities
from vitlab.data.mark_hash import MarkHash
from vitlab.data.member_index import MemberReader, identify_members, recall_members
from vitlab.data.sources.remote import keep, read_kept
from vitlab.data.sources.shards import Shards
from vitlab.data.target import Integers
from vitlab.places import cache_folder
from vitlab.progress import say
from vitlab.units import storage

MOST_READ = 2**32  # bytes of images on another machine that are read to identify them
TOGETHER = 512  # images on another machine


def identify_in_shards(store: Shards, numbers: Integers) -> Identities:
    """Return what identifies some images, uint64 (n,)."""
    if state := store.elsewhere():
        return _identify_elsewhere(store, state)[numbers]
    return identify_members(store, numbers)


def recall_in_shards(store: Shards, numbers: Integers, files: MarkHash) -> Identities | None:
    """Return what identifies some images of local shards where all are remembered; else None."""
    if store.is_remote:
        files.is_whole = False
        return None
    return recall_members(store, numbers, files)


def _identify_elsewhere(source: Shards, state: str) -> Identities:
    """Return what identifies images on another machine: read once, together, and remembered.

    Of many bytes none are read: the state of a shard and the place in it identify an image.
    """
    if (size := int(source.sizes.sum())) > MOST_READ:
        say(
            f"{storage(size)} of images on another machine are identified by their places "
            "in their shards, not by their bytes: copies elsewhere are not recognized"
        )
        return source.by_place()
    file = cache_folder("identities") / state
    if (before := read_kept(file, 8 * len(source))) is not None:
        return np.frombuffer(before, np.uint64)
    identities = np.empty(len(source), np.uint64)
    read = MemberReader(source)
    for first in range(0, len(source), TOGETHER):
        rows = np.arange(first, min(first + TOGETHER, len(source)))
        source.read_ahead(rows)
        identities[rows] = read(rows).identities
    source.read_ahead(np.empty(0, np.int64))
    keep(file, identities.tobytes())
    return identities


SHARDS = Identifier(identify_in_shards, recall_in_shards)
