"""Images in tar files, read by place and size: shards, on a disk or over a network, as a store.

An image is read by its number, so that batch k stays a pure function of (seed, k). The index of a
shard is made in `tar_shards.py`.
"""

import hashlib
import itertools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from vitlab.data.decode.headers import MAX_BYTES
from vitlab.data.decode.stored import EncodedImage
from vitlab.data.hashes import digests
from vitlab.data.sources.containers import Container
from vitlab.data.sources.paths import Names, reason
from vitlab.data.sources.remote import KeptParts, read_parts
from vitlab.data.sources.urls import is_url
from vitlab.data.target import Integers
from vitlab.errors import ImageError

AHEAD = 2**27  # bytes of images that are read before they are asked for
ODD = 0x9E3779B97F4A7C15  # spreads places over all bits


@dataclass(frozen=True, eq=False)
class Shards:
    """Images in tar files, read by place and size. Its arrays are shared with worker processes.

    Attributes:
        places: of the shards
        states: of the shards, when they were indexed
        shard: which of them each image is in, (n,)
        offsets, sizes: of the images, (n,)
        kept: where parts of remote shards are kept
    """

    places: tuple[str, ...]
    states: tuple[str, ...]
    shard: NDArray[np.int32]
    offsets: Integers
    sizes: Integers
    keys: Names
    kept: KeptParts | None = None
    in_memory: ClassVar[bool] = False
    _ahead: dict[int, bytes] = field(default_factory=dict, init=False, repr=False)

    def __len__(self) -> int:
        return len(self.shard)

    def __getstate__(self) -> dict[str, Any]:
        """Send no images to worker processes."""
        return vars(self) | {"_ahead": {}}

    def image(self, index: int) -> EncodedImage:
        """Read the bytes of one member.

        Raises:
            ImageError: it is too large, cannot be read, or has fewer bytes than when indexed.
            SourceError: another machine, which has it, did not give it.
        """
        name = self.name(index)
        offset = int(self.offsets[index])
        size = int(self.sizes[index])
        if size > MAX_BYTES:
            raise ImageError(f"{name}: {size:,} bytes exceed the limit of {MAX_BYTES:,}")
        place = self.places[self.shard[index]]
        if is_url(place):
            data = self._ahead[index] if index in self._ahead else self._fetched([index])[0]
            return EncodedImage(data, name)
        try:
            with Path(place).open("rb", buffering=0) as file:
                data = os.pread(file.fileno(), size, offset)
        except OSError as error:
            raise ImageError(f"{name}: {reason(error)}") from None
        if len(data) != size:
            raise ImageError(f"{name}: the shard is shorter than when it was indexed")
        return EncodedImage(data, name)

    def containers(self) -> list[Container]:
        """Return the local shards, each with its images, told apart by where they begin."""
        bounds = np.searchsorted(self.shard, np.arange(len(self.places) + 1)).tolist()
        parts = [slice(start, end) for start, end in itertools.pairwise(bounds)]
        return [
            Container([place], rows, self.offsets[rows])
            for place, rows in zip(self.places, parts, strict=True)
        ]

    @property
    def is_remote(self) -> bool:
        """Whether the shards are on another machine."""
        return is_url(self.places[0])

    def excerpts(self, index: int) -> tuple[int, Callable[[int, int], bytes]]:
        """Return the size of an image in a local shard, and what reads some bytes of it.

        Raises:
            ImageError: it is too large; or, when it is read, cannot be, or has fewer bytes.
        """
        name = self.name(index)
        offset = int(self.offsets[index])
        size = int(self.sizes[index])
        place = self.places[self.shard[index]]
        if size > MAX_BYTES:
            raise ImageError(f"{name}: {size:,} bytes exceed the limit of {MAX_BYTES:,}")

        def read(start: int, count: int) -> bytes:
            with Path(place).open("rb", buffering=0) as file:
                data = os.pread(file.fileno(), count, offset + start)
            if len(data) != count:
                raise ImageError(f"{name}: the shard is shorter than when it was indexed")
            return data

        return size, read

    def elsewhere(self) -> str:
        """Return a checksum of the state of shards on another machine; empty for local ones."""
        states = "\n".join(self.states)
        return hashlib.sha256(states.encode()).hexdigest() if self.is_remote else ""

    def by_place(self) -> NDArray[np.uint64]:
        """Return 8 bytes for each image by the state of its shard and its place there, (n,)."""
        states = digests(self.states)
        mixed = states[self.shard] ^ (self.offsets.astype(np.uint64) * np.uint64(ODD))
        return (mixed ^ (mixed >> np.uint64(29))) * np.uint64(ODD)

    def read_ahead(self, indices: Integers) -> None:
        """Read images of remote shards that are asked for next: neighbors together, many at a time.

        Raises:
            SourceError: another machine, which has them, did not give them.
        """
        if not self.is_remote:
            return
        self._ahead.clear()
        own = np.unique(indices)
        own = own[self.sizes[own] <= MAX_BYTES]
        own = own[np.cumsum(self.sizes[own]) <= AHEAD]
        self._ahead.update(zip(own.tolist(), self._fetched(own.tolist()), strict=True))

    def _fetched(self, indices: Sequence[int]) -> list[bytes]:
        """The bytes of images of remote shards."""
        shards = [int(self.shard[each]) for each in indices]
        wanted = [
            (self.places[shard], int(self.offsets[each]), int(self.sizes[each]))
            for shard, each in zip(shards, indices, strict=True)
        ]
        if self.kept is None:
            return read_parts(wanted)
        return self.kept.read(wanted, [self.states[shard] for shard in shards])

    def name(self, index: int) -> str:
        """Return the shard and the key."""
        return f"{self.places[self.shard[index]]} {self.keys[index]}"
