"""Identities of images: hashes of their bytes, by which the same image is found again."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from vitlab.data.altered import Altered
from vitlab.data.data_mark import MarkHash
from vitlab.data.images import Images
from vitlab.data.index import identify_files, recall_files
from vitlab.data.member_index import MemberReader, identify_members, recall_members
from vitlab.data.sources.containers import Contained
from vitlab.data.sources.image_files import ImageFiles
from vitlab.data.sources.remote import keep, read_kept
from vitlab.data.sources.shards import Shards
from vitlab.data.stores import Store, Stores
from vitlab.data.target import Integers
from vitlab.places import cache_folder
from vitlab.progress import say
from vitlab.units import storage

MOST_READ = 2**32  # bytes of images on another machine that are read to identify them
TOGETHER = 512  # images on another machine
Identities = NDArray[np.uint64]
NUMBERS = 2**32  # identities below it are numbers of images that are not stored


class Numbered:
    """Base of stores whose images are not stored: their numbers identify them."""


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
        case Altered(whole) if not whole.in_memory:
            return _identities(whole, numbers)
        case ImageFiles(root=root, paths=paths):
            return identify_files(root, paths, numbers)
        case Shards() if state := store.elsewhere():
            return _identities_elsewhere(store, state)[numbers]
    if store.in_memory:
        return MemberReader(store)(numbers).identities
    return identify_members(store, numbers)


def recall_identities(source: Images, files: MarkHash) -> Identities | None:
    """Return the identities of images where all are remembered; None else. No image is read.

    Args:
        source: the images
        files: gets what the system says of their files
    """
    return _recall(source.store, source.rows, files)


def _recall(store: Store, numbers: Integers, files: MarkHash) -> Identities | None:
    """Return the identities of some images of a store where all are remembered; None else."""
    match store:
        case Stores(parts, ends):
            every = np.empty(len(numbers), np.uint64)
            is_whole = True
            for part, end in zip(parts, ends.tolist(), strict=True):
                start = end - len(part)
                inside = (start <= numbers) & (numbers < end)
                known = _recall(part, numbers[inside] - start, files)
                is_whole &= known is not None
                every[inside] = 0 if known is None else known
            return every if is_whole else None
        case Altered(whole) if not whole.in_memory:
            return _recall(whole, numbers, files)
        case ImageFiles(root=root, paths=paths):
            return recall_files(root, paths, numbers, files)
        case Contained() if not (isinstance(store, Shards) and store.is_remote):
            return recall_members(store, numbers, files)
    files.is_whole = False
    return None


def _identities_elsewhere(source: Shards, state: str) -> Identities:
    """The identities of images on another machine: read once, together, and remembered.

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


def identified(source: Images) -> Images:
    """Return the same images with a column of their identities."""
    return replace(source, content=identities(source))
