"""Identities of images: hashes of their bytes, by which the same image is found again."""

import numpy as np
from numpy.typing import NDArray

from vitlab.data.data_mark import MarkHash
from vitlab.data.index import identify_files, recall_files
from vitlab.data.member_index import MemberReader, identify_members, recall_members
from vitlab.data.sources.ahead import read_ahead
from vitlab.data.sources.containers import Contained
from vitlab.data.sources.image_files import LabeledFiles
from vitlab.data.sources.remote import keep, read_kept
from vitlab.data.sources.shards import Shards
from vitlab.data.sources.source import Joined, Noted, Source, Subset, Wrapped, noted, origin
from vitlab.places import cache_folder
from vitlab.progress import say
from vitlab.units import storage

MOST_READ = 2**32  # bytes of images on another machine that are read to identify them
TOGETHER = 512  # images on another machine
Identities = NDArray[np.uint64]
NUMBERS = 2**32  # identities below it are numbers of images that are not stored


class Numbered:
    """Base of sources whose images are not stored: their numbers identify them."""


def identities(source: Source) -> Identities:
    """Return 8 bytes for each image, uint64 (n,): the same for the same bytes, wherever they lie.

    Of more than 24 KiB, the size, the beginning, the middle and the end are hashed. An image that
    cannot be read is identified by its name. One that a program makes anew each time has no bytes:
    it is identified by its number, and never known to another run. What was read of files is
    remembered in the cache.
    """
    if (content := noted(source, "content")) is not None:
        return content
    whole, numbers = origin(source)
    match whole:
        case Joined(parts):
            return np.concatenate([identities(part) for part in parts])[numbers]
        case Numbered():
            return numbers.astype(np.uint64)
        case Wrapped(whole=inner) if not whole.in_memory:
            return identities(Subset(inner, numbers))
        case LabeledFiles(root=root, paths=paths):
            return identify_files(root, paths, numbers)
        case Shards() if state := whole.elsewhere():
            return _identities_elsewhere(whole, state)[numbers]
    if whole.in_memory:
        return MemberReader(whole)(numbers).identities
    return identify_members(whole, numbers)


def recall_identities(source: Source, files: MarkHash) -> Identities | None:
    """Return the identities of images where all are remembered; None else. No image is read.

    Args:
        source: the images
        files: gets what the system says of their files
    """
    whole, numbers = origin(source)
    match whole:
        case Joined(parts):
            every = [recall_identities(part, files) for part in parts]
            known = [identities for identities in every if identities is not None]
            return np.concatenate(known)[numbers] if len(known) == len(parts) else None
        case Wrapped(whole=inner) if not whole.in_memory:
            return recall_identities(Subset(inner, numbers), files)
        case LabeledFiles(root=root, paths=paths):
            return recall_files(root, paths, numbers, files)
        case Contained() if not (isinstance(whole, Shards) and whole.is_remote):
            return recall_members(whole, numbers, files)
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
        read_ahead(source, rows)
        identities[rows] = read(rows).identities
    read_ahead(source, ())
    keep(file, identities.tobytes())
    return identities


def identified(source: Source) -> Source:
    """Return a source that knows the identities of its images."""
    return Noted(source, "content", identities(source))
