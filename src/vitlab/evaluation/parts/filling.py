"""Filling a folder of parts: whoever is there takes the next part that nobody works on."""

import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from os import fsencode
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from vitlab.data.composed import Joined, Relabeled
from vitlab.data.holdout import identities
from vitlab.data.sources.folders import Files
from vitlab.data.sources.protocol import Derived, Source
from vitlab.data.turns import turned
from vitlab.distributed.world import World
from vitlab.errors import DataError, DiskError, UnfinishedError
from vitlab.evaluation.parts.part_folder import LOCK, PartFolder
from vitlab.files import Lock
from vitlab.places import JOB
from vitlab.progress import Meter

POLL = 0.5  # seconds between two attempts to take what others have
LOOK = 5.0  # seconds between two looks at what others have done, while there is work
NAMES, CONTENTS = 1000, 8  # images whose name, or content, tells one data set from another


@dataclass(frozen=True)
class Parts:
    """Which images each part has; the parts of a split follow each other.

    Attributes:
        splits: number of images, by name
        images: of a whole part
    """

    splits: dict[str, int]
    images: int

    @cached_property
    def stretches(self) -> list[range]:
        """The numbers of each split's parts."""
        ends = np.cumsum([-(-count // self.images) for count in self.splits.values()]).tolist()
        return [range(start, end) for start, end in zip([0, *ends], ends, strict=False)]

    @cached_property
    def names(self) -> list[str]:
        """The name of each part."""
        both = zip(self.splits, self.stretches, strict=True)
        return [f"{split}-{number:05d}" for split, own in both for number in range(len(own))]

    @cached_property
    def sizes(self) -> list[int]:
        """The images of each part."""
        both = zip(self.splits.values(), self.stretches, strict=True)
        return [
            min(self.images, count - number * self.images)
            for count, own in both
            for number in range(len(own))
        ]


class Job(Protocol):
    """What computes the parts."""

    @property
    def title(self) -> str:
        """What is being done, for the progress."""

    @property
    def ending(self) -> str:
        """Of the files, such as `.parquet`."""

    @property
    def parts(self) -> Parts:
        """Which images they have."""

    @property
    def about(self) -> dict[str, Any]:
        """What decides the results."""

    def write(
        self,
        folder: PartFolder,
        stretch: int,
        numbers: Iterable[int],
        progress: Callable[[int], None],
    ) -> Iterator[int]:
        """Write parts of one stretch with `folder.writing`; yield the number of each.

        Args:
            folder: where they go
            stretch: which one
            numbers: of the parts; taken when needed, a few batches ahead
            progress: called after every batch with the images of its part that are done
        """


@dataclass
class Queue:
    """The parts that are not there yet.

    Attributes:
        folder: of all parts
        lock: of part n, whose results are right without it, under the number n + 1
        left: parts that are not complete, as far as this process has seen
        mine: those of them that it has claimed
        written: parts that it has completed
        looked: when it last looked at what others have completed
    """

    folder: PartFolder
    lock: Lock
    left: set[int]
    mine: set[int]
    written: list[int]
    looked: float = 0.0

    def claimed(self, numbers: range) -> Iterator[int]:
        """Claim parts one by one, until others have all that is left."""
        for number in turned(numbers):
            if number not in self.left or number in self.mine or not self.lock.take(number + 1):
                continue
            # only now: who had it before has let go of it, complete or not
            if self.folder.receipt(number) is not None:
                self.left.discard(number)
                self.lock.release(number + 1)
                continue
            if self.lock.supported:
                self.folder.tidy(number)
            self.mine.add(number)
            yield number

    def complete(self, number: int) -> None:
        """Note that a part was written, let go of it, and now and then look at the others."""
        self.written.append(number)
        self.left.discard(number)
        self.mine.discard(number)
        self.lock.release(number + 1)
        if time.monotonic() - self.looked > LOOK:
            self.left -= self.folder.finished()
            self.looked = time.monotonic()


def fill(out: Path, job: Job, world: World, timeout: float) -> dict[str, Any]:
    """Complete a folder, together with all processes that do the same; return what it holds.

    Args:
        out: the folder: new, or with parts of the same job
        job: what computes the parts
        world: the processes of torchrun, of which only the first returns anything; there may be
            others of which this one knows nothing
        timeout: seconds to wait at the end for a part of another process

    Raises:
        DataError: the folder has the parts of another job, or not one image can be used.
        DiskError: the folder cannot be read or written.
        UnfinishedError: the parts that are left are others', and took too long.
    """
    begin = time.monotonic()
    with world.agreed():
        about = json.loads(json.dumps(job.about))  # as it will be read
        folder = PartFolder(out, job.parts.names, job.ending, about)
        lock = Lock(out / LOCK, "some parts may be made twice")
        if world.first:
            with lock.opened():
                folder.prepare(lock)
    with lock.opened():
        with world.agreed():
            if not (folder.path / JOB).is_file():
                raise DiskError(
                    f"process {world.rank} cannot see {folder.path}: choose an --out on storage "
                    "shared by all machines"
                )
            folder.check(sorted(folder.finished())[world.rank :: world.size])
        before = folder.finished()
        left = set(range(len(folder.names))) - before
        queue = Queue(folder, lock, set(left), set(), [])
        try:
            _work(queue, job, world, timeout)
        except KeyboardInterrupt:
            raise _stopped(folder, world) from None
    if not world.first:
        return {}
    seconds = time.monotonic() - begin
    new = sum(job.parts.sizes[number] for number in left)
    own = sum(job.parts.sizes[number] for number in queue.written)
    return _contents(folder) | {
        "own_parts": len(queue.written),
        "own_images": own,
        "seconds": seconds,
        "images_per_second": new / seconds,
    }


def _work(queue: Queue, job: Job, world: World, timeout: float) -> None:
    """Compute what nobody else computes, until all is there."""
    total = sum(job.parts.sizes)

    def done() -> int:
        return total - sum(job.parts.sizes[number] for number in queue.left)

    with Meter(total, done(), job.title, shown=world.first) as meter:

        def progress(images: int) -> None:
            meter.show(done() + images, "images")

        seen, since = len(queue.left), time.monotonic()
        while queue.left:
            for place, stretch in enumerate(job.parts.stretches):
                mine = queue.claimed(stretch)
                for number in job.write(queue.folder, place, mine, progress):
                    queue.complete(number)
            if len(queue.left) < seen:
                seen, since = len(queue.left), time.monotonic()
                progress(0)
            elif time.monotonic() - since > timeout:
                raise UnfinishedError(
                    f"{len(queue.left):,} of {len(queue.folder.names):,} parts of "
                    f"{queue.folder.path} are with other processes, which finished none for "
                    f"{timeout:g} s: repeat the command later"
                )
            else:
                time.sleep(min(POLL, timeout))


def _stopped(folder: PartFolder, world: World) -> KeyboardInterrupt:
    there, parts = len(folder.finished()), len(folder.names)
    error = KeyboardInterrupt(
        f"stopped with {there:,} of {parts:,} parts: run the same command again to continue"
    )
    error.quiet = not world.first  # type: ignore[attr-defined]
    return error


def _contents(folder: PartFolder) -> dict[str, Any]:
    """Return what all parts together hold."""
    size = images = 0
    bad: list[str] = []
    for number in range(len(folder.names)):
        receipt = folder.receipt(number)
        if receipt is None:
            raise DiskError(f"{folder.path} has lost {folder.file(number).name}: run this again")
        size, images = size + receipt.bytes, images + receipt.images
        bad += receipt.bad
    if not images:
        raise DataError(next(iter(bad), "there are no images"))
    return {
        "out": str(folder.path),
        "images": images,
        "damaged": len(bad),
        "parts": len(folder.names),
        "bytes": size,
        "notes": [f"skipped: {message}" for message in bad],
    }


def _alone(source: Source) -> bool:
    """Whether each image is a file of its own, or in memory, so that a part of it can be read."""
    match source:
        case Joined(parts):
            return all(map(_alone, parts))
        case Derived(whole=whole) | Relabeled(whole=whole):
            return _alone(whole)
    return source.in_memory or isinstance(source, Files)


def identity(source: Source, *, labeled: bool) -> str:
    """Return a checksum of a source: its length, many names, its contents, and its labels.

    Of image files, and images in memory, the contents are what `data.holdout.identities` finds; of
    those inside other files, a few.
    """
    digest = sha256(repr((len(source), source.classes if labeled else ())).encode())
    if _alone(source):
        digest.update(identities(source).data)
    last = max(0, len(source) - 1)
    for index in np.linspace(0, last, min(NAMES, len(source)), dtype=int):
        digest.update(fsencode(source.name(int(index))) + b"\n")
    for index in np.linspace(0, last, min(CONTENTS, len(source)), dtype=int):
        try:
            digest.update(source.image(int(index)).content())
        except DataError:  # an image that cannot be read is named when it is decoded
            continue
    if labeled:
        digest.update(np.ascontiguousarray(source.labels.values).data)
    return digest.hexdigest()
