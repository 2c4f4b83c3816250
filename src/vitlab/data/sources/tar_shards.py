"""WebDataset shards: tar files in which an image and its label share a name.

    00000017.jpg  00000017.cls        00000018.jpg  00000018.json ({"label": …} or {"labels": […]})

Every shard is indexed once, so that any image can then be read by its number, from a disk or over a
network: batch k stays a pure function of (seed, k), which no stream of shards through a shuffling
buffer can be. Nothing is unpacked, unpickled or run.
"""

import hashlib
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import chain
from operator import itemgetter
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from vitlab.data.decode.headers import MAX_BYTES
from vitlab.data.decode.stored import EncodedImage
from vitlab.data.labels import Label, Labels, UnlabeledError, index_labels
from vitlab.data.sources.download_cache import KeptParts
from vitlab.data.sources.folders import holds_images
from vitlab.data.sources.paths import Names
from vitlab.data.sources.remote import THREADS, expand, is_url, read_parts, read_whole, reason
from vitlab.data.sources.request import Found, Part, Request, blank, by_split
from vitlab.data.sources.source import Joined, Source, Subset, Wrapped, digests
from vitlab.data.sources.tar_index import index_shard
from vitlab.errors import DataError, ImageError, RefusedError
from vitlab.files import read_bytes

AHEAD = 2**27  # bytes of images that are read before they are asked for
ODD = 0x9E3779B97F4A7C15  # spreads places over all bits
CLASSES = "classes.txt"  # beside the shards: the classes by number, one name per line


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
    offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]
    keys: Names
    labels: Labels
    classes: tuple[str, ...]
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
        offset, size = int(self.offsets[index]), int(self.sizes[index])
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

    def elsewhere(self) -> str:
        """Return what tells the images from others, if they are on another machine; else empty."""
        states = "\n".join(self.states)
        return hashlib.sha256(states.encode()).hexdigest() if is_url(self.places[0]) else ""

    def by_place(self) -> NDArray[np.uint64]:
        """Return 8 bytes for each image by the state of its shard and its place there, (n,)."""
        states = digests(self.states)
        mixed = states[self.shard] ^ (self.offsets.astype(np.uint64) * np.uint64(ODD))
        return (mixed ^ (mixed >> np.uint64(29))) * np.uint64(ODD)

    def read_ahead(self, indices: NDArray[np.int64]) -> None:
        """Read images of remote shards that are asked for next: neighbors together, many at a time.

        Raises:
            SourceError: another machine, which has them, did not give them.
        """
        if not is_url(self.places[0]):
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


def read_ahead(source: Source, indices: Sequence[int] | NDArray[np.int64]) -> None:
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
        case Shards():
            source.read_ahead(own)


def open_shards(request: Request) -> Found | None:
    """Open shards by name, glob, brace range or folder; None for other data."""
    data, path = request.data, request.path
    if path.is_dir():  # beside photographs, an archive is something else
        places = [] if holds_images(path) else [str(each) for each in sorted(path.glob("*.tar"))]
    else:
        places = expand(data if is_url(data) else str(path)) if data.endswith(".tar") else []
    if not places:
        return None
    kept = KeptParts.of(request.columns.cache_data, request.columns.cache_gb)
    words = [f"{each.parent.name} {each.stem}" for each in map(PurePosixPath, places)]
    splits = by_split(list(zip(words, places, strict=True)))
    return Found([_part(own, split, request, kept) for split, own in splits.items()])


def _part(places: Sequence[str], split: str, request: Request, kept: KeptParts | None) -> Part:
    """Return all images in some shards, with the labels beside them.

    Raises:
        UnlabeledError: labels are required, and no image has one.
        DataError: a shard that cannot be read, is damaged or empty; some images without a label,
            two images of one name, unknown labels.
        SourceError: another machine, which has them, did not give them.
    """
    found, labels, lacks = _indexed(places, kept)
    if request.labels == "ignored":
        return Part(found, split)
    raw = [label for label in labels if label is not None]
    if not lacks:
        title, names = f"{request.data} {split}", _class_names(places[0])
        values, order = index_labels(raw, title, None, names)
        return Part(replace(found, labels=values, classes=order), split)
    if raw:
        raise DataError(lacks)
    if request.labels == "required":
        raise UnlabeledError(lacks)
    return Part(found, split, lacks)


def _indexed(
    places: Sequence[str], kept: KeptParts | None
) -> tuple[Shards, list[Label | None], str]:
    """Find the images of shards; return also their labels, and why the first without has none."""

    def packed(number: int) -> tuple[Any, ...]:
        index = index_shard(places[number])
        where = np.array(index.offsets, np.int64), np.array(index.sizes, np.int64)
        return number, index.stamp, *where, Names.of(index.keys), index.labels, index.unlabeled

    with ThreadPoolExecutor(THREADS if is_url(places[0]) else 1) as pool:  # to hide network latency
        found = sorted(pool.map(packed, turned(range(len(places)))), key=itemgetter(0))
    _, states, offsets, sizes, keys, labels, lacks = zip(*found, strict=True)
    count = [len(each) for each in keys]
    source = Shards(
        tuple(places),
        states,
        np.repeat(np.arange(len(places), dtype=np.int32), count),
        np.concatenate(offsets),
        np.concatenate(sizes),
        Names.joined(keys),
        blank(sum(count)),
        (),
        kept,
    )
    return source, list(chain.from_iterable(labels)), next(filter(None, lacks), "")


def _class_names(place: str) -> list[str] | None:
    """Return the lines of `classes.txt` beside a shard; None if it does not exist."""
    beside = f"{place.rpartition('/')[0] or ('.' if not place.startswith('/') else '')}/{CLASSES}"
    try:
        content = (
            read_whole(beside, MAX_BYTES) if is_url(place) else read_bytes(Path(beside), MAX_BYTES)
        )
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        raise DataError(f"{beside} is not UTF-8 text") from None
    except (OSError, RefusedError):  # it is optional
        return None
    names = text.replace("\r\n", "\n").removesuffix("\n").split("\n")
    if len(set(names)) != len(names) or not all(names):
        raise DataError(f"{beside} repeats a class, or has an empty line")
    return names


GOLDEN = 0.6180339887498949  # multiples of it, modulo 1, lie far apart, however many there are
# what numbers the processes of torchrun, of SLURM (in a step, in an array) and of a Kubernetes Job
NUMBERS = ("RANK", "SLURM_PROCID", "SLURM_ARRAY_TASK_ID", "JOB_COMPLETION_INDEX")


def turned(items: Sequence[int]) -> list[int]:
    """Return a list from where this process begins, and then what comes before it.

    What one process does need not be done by the others when they come to it.
    """
    first = int(len(items) * place_among(os.environ))
    return [*items[first:], *items[:first]]


def place_among(environment: Mapping[str, str]) -> float:
    """Return where a process begins, from 0 to below 1; the first one at 0."""
    if "RANK" in environment:  # torchrun's number counts the processes of all tasks
        environment = {"RANK": environment["RANK"]}
    numbers = [environment.get(name, "") for name in NUMBERS]
    return sum(int(number) for number in numbers if number.isdecimal()) * GOLDEN % 1
