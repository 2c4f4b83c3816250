"""Identities of images: hashes of their bytes, by which the same image is found again."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from vitlab.data.hashes import number_of
from vitlab.data.images import Images
from vitlab.data.sources.image_files import ImageFiles
from vitlab.data.sources.remote import keep, read_kept
from vitlab.data.sources.shards import Shards
from vitlab.data.stores import Store, Stores
from vitlab.data.target import Integers
from vitlab.errors import DataError
from vitlab.places import cache_folder
from vitlab.progress import say
from vitlab.units import storage

PIECE = 8192  # bytes of the beginning, the middle and the end of a file that identify it
MOST_READ = 2**32  # bytes of images on another machine that are read to identify them
THREADS = 8  # that read files
TOGETHER = 512  # images on another machine
Identities = NDArray[np.uint64]
NUMBERS = 2**32  # identities below it are numbers of images that are not stored


class Numbered:
    """Base of stores whose images are not stored: their numbers identify them."""


def identities(source: Images) -> Identities:
    """Return 8 bytes for each image, uint64 (n,): the same for the same bytes, wherever they lie.

    Of more than 24 KiB, the size, the beginning, the middle and the end are hashed. An image that
    cannot be read is identified by its name. One that a program makes anew each time has no bytes:
    it is identified by its number, and never known to another run.
    """
    return _identities(source.store, source.rows) if source.content is None else source.content


def _identities(store: Store, numbers: Integers) -> Identities:
    """Return the identities of some images of a store."""
    match store:
        case Stores(parts, ends):
            found = np.empty(len(numbers), np.uint64)
            for part, end in zip(parts, ends.tolist(), strict=True):
                start = end - len(part)
                inside = (start <= numbers) & (numbers < end)
                found[inside] = _identities(part, numbers[inside] - start)
            return found
        case Shards() if state := store.elsewhere():
            return _identities_elsewhere(store, state)[numbers]
    one = partial(_identity, store)
    images = numbers.tolist()
    if store.in_memory:
        return np.fromiter(map(one, images), np.uint64, len(images))
    with ThreadPoolExecutor(THREADS) as pool:
        return np.fromiter(pool.map(one, images), np.uint64, len(images))


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
    found = np.empty(len(source), np.uint64)
    for first in range(0, len(source), TOGETHER):
        own = range(first, min(first + TOGETHER, len(source)))
        source.read_ahead(np.array(own, np.int64))
        found[first : own.stop] = [_identity(source, index) for index in own]
    source.read_ahead(np.empty(0, np.int64))
    keep(file, found.tobytes())
    return found


def _identity(store: Store, number: int) -> int:
    """The identity of one image."""
    if isinstance(store, Numbered):
        return number
    try:
        if isinstance(store, ImageFiles):
            with (store.root / store.paths[number]).open("rb", buffering=0) as file:
                handle = file.fileno()
                size = os.fstat(handle).st_size
                content = _excerpt(size, lambda start: os.pread(handle, PIECE, start))
        else:
            whole = store.image(number).content()
            content = _excerpt(len(whole), lambda start: whole[start : start + PIECE])
    except (DataError, OSError):
        content = os.fsencode(store.name(number))
    return number_of(content)


def _excerpt(size: int, read: Callable[[int], bytes]) -> bytes:
    """The size, and the pieces that identify some bytes, each read from where it starts."""
    starts = [0, (size - PIECE) // 2, size - PIECE] if size > 3 * PIECE else range(0, size, PIECE)
    return b"".join([size.to_bytes(8), *map(read, starts)])


def identified(source: Images) -> Images:
    """Return the same images with a column of their identities."""
    return replace(source, content=identities(source))
