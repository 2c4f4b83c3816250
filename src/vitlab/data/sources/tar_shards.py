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
from operator import itemgetter
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from vitlab.data.decode.headers import MAX_BYTES
from vitlab.data.decode.stored import EncodedImage
from vitlab.data.labels import Label, Labels, SingleLabels, UnlabeledError, index_labels
from vitlab.data.sources.download_cache import KeptParts
from vitlab.data.sources.folders import holds_images
from vitlab.data.sources.paths import Names
from vitlab.data.sources.remote import THREADS, expand, is_url, read_parts, read_whole, reason
from vitlab.data.sources.request import Found, Part, Request, by_split
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

    def stored(self) -> int:
        """Return the bytes of all images."""
        return int(self.sizes.sum())

    def by_place(self) -> NDArray[np.uint64]:
        """Return 8 bytes for each image by the state of its shard and its place there, (n,)."""
        digests = [hashlib.blake2b(state.encode(), digest_size=8).digest() for state in self.states]
        states = np.array([int.from_bytes(each) for each in digests], np.uint64)
        mixed = states[self.shard] ^ (self.offsets.astype(np.uint64) * np.uint64(ODD))
        return (mixed ^ (mixed >> np.uint64(29))) * np.uint64(ODD)

    def read_ahead(self, indices: Sequence[int]) -> None:
        """Read images of remote shards that are asked for next: neighbors together, many at a time.

        Raises:
            SourceError: another machine, which has them, did not give them.
        """
        if not is_url(self.places[0]):
            return
        self._ahead.clear()
        own = np.unique(np.asarray(indices, np.int64))
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


def open_shards(request: Request) -> Found | None:
    """Open shards by name, glob, brace range or folder; None for other data."""
    data, path = request.data, request.path
    if path.is_dir() and holds_images(path):  # beside photographs, an archive is something else
        return None
    if not (places := shard_places(data)):
        return None
    kept = KeptParts.of(request.columns.cache_data, request.columns.cache_gb)
    parts = []
    for split, own in _by_split(places).items():
        if request.labels == "ignored":
            parts.append(Part(replace(unlabeled_shards(own), kept=kept), split))
            continue
        try:
            parts.append(Part(replace(shards(own, f"{data} {split}"), kept=kept), split))
        except UnlabeledError as error:
            if request.labels == "required":
                raise
            parts.append(Part(replace(unlabeled_shards(own), kept=kept), split, str(error)))
    return Found(parts)


def _by_split(places: Sequence[str]) -> dict[str, list[str]]:
    """Group shards by the split that their names mention."""
    paths = [PurePosixPath(place) for place in places]
    words = [f"{path.parent.name} {path.stem}" for path in paths]
    return by_split(list(zip(words, places, strict=True)))


def shards(places: Sequence[str], title: str, classes: Sequence[str] | None = None) -> Shards:
    """Return a source of all images in some tar files.

    Args:
        places: paths and URLs
        title: what to call them in an error
        classes: the class index to follow; None for the names in `classes.txt` beside the first
            shard, or for the labels found

    Raises:
        DataError: a shard that cannot be read, is damaged or empty; images without a label, two
            images of one name, unknown labels.
        SourceError: another machine, which has them, did not give them.
    """
    found, columns = _read_indices(places)
    raw = [label for labels, _ in columns for label in labels if label is not None]
    if unlabeled := next((line for _, line in columns if line), ""):
        raise DataError(unlabeled) if raw else UnlabeledError(unlabeled)
    labels, order = index_labels(raw, title, classes, _class_names(places[0]))
    return replace(found, labels=labels, classes=order)


def unlabeled_shards(places: Sequence[str]) -> Shards:
    """Return a source of all images in some tar files, whatever their labels: without classes.

    Raises:
        DataError: a shard that cannot be read, is damaged or empty; two images of one name.
    """
    return _read_indices(places, labeled=False)[0]


def shard_places(data: str) -> list[str]:
    """Return the shards that a name, a glob, a brace range or a folder stands for; [] for others.

    Raises:
        DataError: a glob that finds nothing.
    """
    path = Path(data).expanduser()
    if path.is_dir():
        return [str(each) for each in sorted(path.glob("*.tar"))]
    return expand(data if is_url(data) else str(path)) if data.endswith(".tar") else []


_Packed = tuple[str, NDArray[np.int64], NDArray[np.int64], Names]


def _read_indices(
    places: Sequence[str], *, labeled: bool = True
) -> tuple[Shards, list[tuple[list[Label | None], str]]]:
    """Find the images of shards; return also the labels in each, and why one may have none."""

    def packed(number: int) -> tuple[int, _Packed, tuple[list[Label | None], str]]:
        index = index_shard(places[number])
        where = index.stamp, np.array(index.offsets, np.int64), np.array(index.sizes, np.int64)
        labels = index.labels if labeled else []
        return number, (*where, Names.of(index.keys)), (labels, index.unlabeled)

    with ThreadPoolExecutor(THREADS if is_url(places[0]) else 1) as pool:  # to hide network latency
        found = sorted(pool.map(packed, turned(range(len(places)))), key=itemgetter(0))
    states, offsets, sizes, keys = zip(*(each for _, each, _ in found), strict=True)
    count = [len(each) for each in keys]
    source = Shards(
        tuple(places),
        tuple(states),
        np.repeat(np.arange(len(places), dtype=np.int32), count),
        np.concatenate(offsets),
        np.concatenate(sizes),
        Names.joined(keys),
        SingleLabels.blank(sum(count), 0),
        (),
    )
    return source, [columns for _, _, columns in found]


def _class_names(place: str) -> list[str] | None:
    """Return the lines of `classes.txt` beside a shard; None if it does not exist."""
    beside = f"{place.rpartition('/')[0] or ('.' if not place.startswith('/') else '')}/{CLASSES}"
    try:
        if is_url(place):
            text = read_whole(beside, MAX_BYTES).decode("utf-8")
        else:
            text = read_bytes(Path(beside), MAX_BYTES).decode("utf-8")
    except UnicodeDecodeError:
        raise DataError(f"{beside} is not UTF-8 text") from None
    except (OSError, RefusedError):  # it is optional
        return None
    names = text.replace("\r\n", "\n").removesuffix("\n").split("\n")
    if len(set(names)) != len(names) or not all(names):
        raise DataError(f"{beside} repeats a class, or has an empty line")
    return names


T = TypeVar("T")
GOLDEN = 0.6180339887498949  # multiples of it, modulo 1, lie far apart, however many there are
# what numbers the processes of torchrun, of SLURM (in a step, in an array) and of a Kubernetes Job
NUMBERS = ("RANK", "SLURM_PROCID", "SLURM_ARRAY_TASK_ID", "JOB_COMPLETION_INDEX")


def turned(items: Sequence[T]) -> list[T]:
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
