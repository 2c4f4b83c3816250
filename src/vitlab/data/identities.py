"""Identities of images: hashes of their bytes, by which the same image is found again."""

from dataclasses import replace

import numpy as np

from vitlab.by_name import load_object
from vitlab.data.identifier import Identifier, Identities
from vitlab.data.images import Images
from vitlab.data.mark_hash import MarkHash
from vitlab.data.stores import Store, Stores, split_by_store
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


def _find_identifier(store: Store) -> Identifier:
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
    return (
        identify_in_store(source.store, source.rows) if source.content is None else source.content
    )


def identify_in_store(store: Store, numbers: Integers) -> Identities:
    """Return the identities of some images of a store, uint64 (n,)."""
    match store:
        case Stores():
            every = np.empty(len(numbers), np.uint64)
            for part, is_there, part_numbers in split_by_store(store, numbers):
                every[is_there] = identify_in_store(part, part_numbers)
            return every
        case Numbered():
            return numbers.astype(np.uint64)
    return _find_identifier(store).identify(store, numbers)


def recall_identities(source: Images, files: MarkHash) -> Identities | None:
    """Return the identities of images where all are remembered; None else. No image is read.

    Args:
        source: the images
        files: gets what the system says of their files
    """
    return recall_in_store(source.store, source.rows, files)


def recall_in_store(store: Store, numbers: Integers, files: MarkHash) -> Identities | None:
    """Return the identities of some images of a store where all are remembered; None else."""
    if isinstance(store, Stores):
        every = np.zeros(len(numbers), np.uint64)
        is_whole = True
        for part, is_there, part_numbers in split_by_store(store, numbers):
            if (remembered := recall_in_store(part, part_numbers, files)) is None:
                is_whole = False
            else:
                every[is_there] = remembered
        return every if is_whole else None
    return _find_identifier(store).recall(store, numbers, files)


def with_content(source: Images) -> Images:
    """Return the same images with a column of their identities."""
    return replace(source, content=identities(source))
