"""Identities of images: hashes of their bytes, by which the same image is found again."""

from dataclasses import replace

import numpy as np

from vitlab.by_name import load_object
from vitlab.data.identifier import Identifier, Identities
from vitlab.data.images import Images
from vitlab.data.mark_hash import MarkHash
from vitlab.data.stores import Store, Stores
from vitlab.data.target import Integers

NUMBERS = 2**32  # identities below it are numbers of images that are not stored


class Numbered:
    """Base of stores whose images are not stored: their numbers identify them."""


IDENTIFIERS: dict[str, str] = {
    "ImageFiles": "vitlab.data.index:FILES",
    "Shards": "vitlab.data.shard_identities:SHARDS",
    "Altered": "vitlab.data.altered:AS_STORED",
}
"""What identifies the images of a store, by its class; `MEMBERS` those of all others."""

MEMBERS = "vitlab.data.member_index:MEMBERS"


def find_identifier(store: Store) -> Identifier:
    """Return what identifies the images of a store."""
    identifier: Identifier = load_object(IDENTIFIERS.get(type(store).__name__, MEMBERS))
    return identifier


def identities(source: Images) -> Identities:
    """Return 8 bytes for each image, uint64 (n,): the same for the same bytes, wherever they lie.

    Of more than 24 KiB, the size, the beginning, the middle and the end are hashed. An image that
    cannot be read is identified by its name. One that a program makes anew each time has no bytes:
    it is identified by its number, and never known to another run. What was read of files is
    remembered in the cache.
    """
    return _identities(source.store, source.rows) if source.content is None else source.content


def _identities(store: Store, numbers: Integers) -> Identities:
    """Return the identities of some images of a store."""
    match store:
        case Stores(parts, ends):
            every = np.empty(len(numbers), np.uint64)
            for part, end in zip(parts, ends.tolist(), strict=True):
                start = end - len(part)
                inside = (start <= numbers) & (numbers < end)
                every[inside] = _identities(part, numbers[inside] - start)
            return every
        case Numbered():
            return numbers.astype(np.uint64)
    return find_identifier(store).identify(store, numbers)


def recall_identities(source: Images, files: MarkHash) -> Identities | None:
    """Return the identities of images where all are remembered; None else. No image is read.

    Args:
        source: the images
        files: gets what the system says of their files
    """
    return _recall(source.store, source.rows, files)


def _recall(store: Store, numbers: Integers, files: MarkHash) -> Identities | None:
    """Return the identities of some images of a store where all are remembered; None else."""
    if isinstance(store, Stores):
        every = np.empty(len(numbers), np.uint64)
        is_whole = True
        for part, end in zip(store.parts, store.ends.tolist(), strict=True):
            start = end - len(part)
            inside = (start <= numbers) & (numbers < end)
            known = _recall(part, numbers[inside] - start, files)
            is_whole &= known is not None
            every[inside] = 0 if known is None else known
        return every if is_whole else None
    return find_identifier(store).recall(store, numbers, files)


def with_content(source: Images) -> Images:
    """Return the same images with a column of their identities."""
    return replace(source, content=identities(source))
