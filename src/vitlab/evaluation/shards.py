"""Shards: results of images in a folder that is filled part by part, and continued after a kill.

    features/
        train-00000.parquet  train-00001.parquet  …  the results: part k always has the same images
        _job.json                                    what decides them
        _parts/train-00000.json                      size, checksum, and what the part holds
        _lock                                        that a process writes into the folder

Readers of tables (pyarrow, pandas, Spark) pass over names that begin with an underscore. A part is
written under another name, synced and renamed; then comes its receipt, which alone tells that the
part is complete. One file, such as `x.parquet`, is filled in the same way in the hidden folder
`.x.parquet.parts`, whose parts are then put together.

Which process computes a part is fixed by its number: processes of torchrun share what is missing,
and `ShardNumber(i, n)` is every n-th part, for arrays of SLURM and Kubernetes.
"""

import json
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from hashlib import sha256 as checksum
from itertools import groupby, islice
from os import fsencode
from pathlib import Path
from typing import Any, Self

import numpy as np

from vitlab.data.identities import identities
from vitlab.data.images import Images
from vitlab.data.sources.image_files import ImageFiles
from vitlab.data.stores import Store, Stores
from vitlab.distributed.world import World
from vitlab.documents import read_json
from vitlab.errors import DataError, DiskError, ImageError, OptionError
from vitlab.evaluation.answers import check_numbers
from vitlab.evaluation.compute import Compute, FastForm
from vitlab.evaluation.infer import Inferred, Progress, Want, batch_of, infer
from vitlab.evaluation.records import unicode
from vitlab.files import explained, is_draft, sha256, staged_file, tidy, write_text
from vitlab.locks import Lock
from vitlab.models.model import Model
from vitlab.places import JOB, check_parts
from vitlab.progress import Meter, named_if_slow, say
from vitlab.values import fits

RECEIPTS, LOCK = "_parts", "_lock"
ROWS = 2048  # most images of a row group, or of a part of features in memory
BYTES = 2**25  # of its features, unless one batch has more
NAMES, CONTENTS = 1000, 8  # images whose name, or content, tells one data set from another
Use = Callable[[Inferred], None]


def group_of(batch: int, bytes_: int, most: int = ROWS) -> int:
    """Return the images of a group of rows: whole batches, so many as fit into 32 MiB.

    Args:
        batch: images of a batch
        bytes_: of an image's features
        most: images that are wanted
    """
    return batch * max(1, min(most, ROWS, BYTES // bytes_) // batch)


@dataclass(frozen=True)
class ShardNumber:
    """The parts of one of several independent processes.

    Attributes:
        number: from 0
        count: of the processes
    """

    number: int = 0
    count: int = 1

    @classmethod
    def of(cls, text: str, option: str = "shard") -> Self:
        """Read `0/8`, the first of eight; an empty text is everything.

        Args:
            text: the value of an option
            option: its name, for the error

        Raises:
            OptionError: it is not that.
        """
        found = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text or "0/1")
        if found is None or int(found[1]) >= int(found[2]):
            raise OptionError(
                f"{option} must be a number from 0 and how many there are, 0/8, not {text!r}"
            )
        return cls(int(found[1]), int(found[2]))


WHOLE = ShardNumber()


@dataclass(frozen=True)
class Shard:
    """A part: a file, and the batches whose results it holds."""

    name: str
    split: str
    batches: range
    images: int


@dataclass(frozen=True, eq=False)
class ShardJob:
    """What a folder is filled with: what a model gives of images, and the files it is written into.

    Attributes:
        title: what is being done, for the progress
        about: what decides the results, as JSON holds it
        model: that computes
        sources: the images, by the name of their split
        compute: where and how
        want: what is computed of each image
        images: of a whole part: whole batches
        ending: of the files, such as `.parquet`
        table: opens a file for the results of batches of a split
        flips: average the probabilities over each image and its mirror image
        warn: called with a message about each damaged image
    """

    title: str
    about: dict[str, Any]
    model: Model
    sources: dict[str, Images]
    compute: Compute
    want: Want
    images: int
    ending: str
    table: Callable[[Path, str], AbstractContextManager[Use]]
    flips: bool = False
    warn: Callable[[str], None] = say

    @cached_property
    def form(self) -> FastForm:
        """What computes: for all splits, so that every process computes the same."""
        most = max(self.sources.values(), key=len)
        return self.compute.fast(self.model, most, 1 + self.flips)

    def infer(self, split: str, numbers: Sequence[int], progress: Progress) -> Iterator[Inferred]:
        """Yield batches of a split, by their numbers."""
        how = self.form.model, self.sources[split], self.compute.of(self.form), [self.want]
        for batch in infer(*how, flips=self.flips, only=numbers, progress=progress):
            check_numbers(batch.probabilities)
            yield batch

    @cached_property
    def shards(self) -> list[Shard]:
        """The parts; those of a split follow each other."""
        found = []
        batch = batch_of(self.model)
        for split, source in self.sources.items():
            for number, first in enumerate(range(0, len(source), self.images)):
                last = min(first + self.images, len(source))
                own = range(first // batch, -(-last // batch))
                found.append(Shard(f"{split}-{number:05d}", split, own, last - first))
        return found


@dataclass(frozen=True)
class Receipt:
    """What a complete part holds.

    Attributes:
        bytes: size of the file
        sha256: its checksum
        images: rows that have a result
        bad: messages about damaged images
    """

    bytes: int
    sha256: str
    images: int
    bad: list[str]


RECEIPT: dict[str, Any] = {"bytes": int, "sha256": str, "images": int, "bad": tuple[str, ...]}


@dataclass(frozen=True, eq=False)
class ShardFolder:
    """The folder of a job.

    Attributes:
        path: the folder
        job: what it is filled with
        advice: what to do where the folder is of another job
    """

    path: Path
    job: ShardJob
    advice: str = "choose another --out, or repeat its command to finish it"

    def file(self, shard: Shard) -> Path:
        """Return the file of a part."""
        return self.path / f"{shard.name}{self.job.ending}"

    @contextmanager
    def opened(self, share: ShardNumber = WHOLE, wait: bool = False) -> Iterator[bool]:
        """Hold the folder while it is filled; say in it what the job is, or check that it is that.

        Processes that share it hold it together. Yields whether no other process can be here.

        Raises:
            DataError: it is another job's; the message says what differs.
            DiskError: the folder cannot be written, contains something else, or is being filled.
        """
        check_parts(self.path)
        lock = Lock(self.path / LOCK, "some parts may be made twice")
        with lock.held(wait=wait, shared=share.count > 1) as mine:
            if not mine:
                raise DiskError(
                    f"another process is writing {self.path}: wait for it, choose another --out, "
                    "or give each process its --shard, such as 0/8"
                )
            if alone := lock.supported and share.count == 1:
                self.tidy()
            self._prepare()
            yield alone
            if share.count > 1 and lock.supported and not self.left and lock.take():
                self.tidy()  # no other process is here

    def _prepare(self) -> None:
        job, text = self.path / JOB, json.dumps(self.job.about, indent=1)
        if not job.exists():
            write_text(job, text + "\n")
        try:
            there = read_json(job, DiskError)
        except DiskError as error:
            raise DiskError(f"{error}: choose another --out") from None
        if there != (own := json.loads(text)):
            raise DataError(
                f"{self.path} has the parts of another job ({differing(there, own)}): {self.advice}"
            )

    def tidy(self) -> None:
        """Remove the drafts that killed processes left; no other process may be writing."""
        names = rf"{re.escape(JOB)}|.*{re.escape(self.job.ending)}|.*\.json"
        for folder in (self.path, self.path / RECEIPTS):
            tidy(folder, names)

    def deaths(self, shard: Shard) -> int:
        """Return how many processes were killed while they wrote a part: each has left a draft."""
        name = re.escape(self.file(shard).name)
        return sum(is_draft(each, name) for each in self.path.iterdir())

    def receipt(self, shard: Shard) -> Receipt | None:
        """Return what a part holds; None if it is not complete."""
        try:
            found = read_json(self._receipt(shard), DiskError)
            whole = all(fits(found.get(name), kind) for name, kind in RECEIPT.items())
            return Receipt(**found) if whole else None
        except (DiskError, TypeError):
            return None

    @property
    def left(self) -> list[Shard]:
        """The parts that are not complete."""
        folder = self.path / RECEIPTS
        there = {each.stem for each in folder.iterdir()} if folder.is_dir() else set()
        return [shard for shard in self.job.shards if shard.name not in there]

    def check(self, shards: Sequence[Shard]) -> None:
        """Compare parts with their receipts; those that are damaged or gone lose them.

        Raises:
            DiskError: a receipt cannot be removed.
        """
        with named_if_slow(f"checking {len(shards):,} finished parts in {self.path}"):
            for shard in shards:
                receipt = self.receipt(shard)
                file = self.file(shard)
                if receipt is None or not _matches(file, receipt):
                    what = "is damaged" if file.exists() else "is missing"
                    say(f"{file} {what}: computing it again")
                    with explained(self.path):
                        self._receipt(shard).unlink(missing_ok=True)

    def write(self, shards: Sequence[Shard], shown: bool) -> None:
        """Compute parts."""
        with Meter(sum(each.images for each in shards), 0, self.job.title, shown) as meter:
            before = 0
            for split, group in groupby(shards, lambda each: each.split):
                own = [*group]

                def progress(done: int, total: int, before: int = before) -> None:
                    meter.show(before + done, "images")

                numbers = [number for each in own for number in each.batches]
                batches = self.job.infer(split, numbers, progress)
                for shard in own:
                    self._write(shard, islice(batches, len(shard.batches)))
                before += sum(each.images for each in own)

    def _write(self, shard: Shard, batches: Iterable[Inferred]) -> None:
        """Write a part from a draft, then its receipt."""
        images = 0
        bad = list[str]()
        with staged_file(self.file(shard)) as draft:
            with self.job.table(draft, shard.split) as use:
                for batch in batches:
                    use(batch)
                    images += len(batch.indices)
                    for _, message in batch.bad:
                        bad.append(unicode(message))
                        self.job.warn(f"skipped: {message}")
            receipt = Receipt(draft.stat().st_size, sha256(draft), images, bad)
        write_text(self._receipt(shard), json.dumps(asdict(receipt)) + "\n")

    @property
    def contents(self) -> dict[str, Any]:
        """What the parts that are complete hold together.

        Raises:
            DataError: all are, and not one image can be used.
        """
        held = [found for each in self.job.shards if (found := self.receipt(each)) is not None]
        bad = [text for each in held for text in each.bad]
        images = sum(e.images for e in held)
        if not images and len(held) == len(self.job.shards):
            raise DataError(next(iter(bad), "there are no images"))
        return {
            "out": str(self.path),
            "images": images,
            "damaged": len(bad),
            "parts": len(self.job.shards),
            "left": len(self.job.shards) - len(held),
            "bytes": sum(each.bytes for each in held),
            "notes": [f"skipped: {message}" for message in bad],
        }

    def _receipt(self, shard: Shard) -> Path:
        return self.path / RECEIPTS / f"{shard.name}.json"


Write = Callable[[ShardFolder, Sequence[Shard], bool], None]
"""Computes parts of a folder, and shows how far it is if it may: `ShardFolder.write` here."""


def fill(
    folder: ShardFolder, world: World, share: ShardNumber = WHOLE, write: Write = ShardFolder.write
) -> dict[str, Any]:
    """Complete a folder, or a share of it; return what it holds.

    Args:
        folder: new, or with parts of the same job
        world: the processes of torchrun, of which only the first returns anything
        share: which parts
        write: computes them

    Raises:
        DataError: the folder has the parts of another job, or not one image can be used.
        DiskError: the folder cannot be read or written, or is being filled.
    """
    with _held(folder, world, share):
        found = _completed(folder, world, folder.job.shards[share.number :: share.count], write)
        with world.agreed():
            return folder.contents | found if world.first else {}


def fill_file(
    out: Path,
    job: ShardJob,
    world: World,
    merge: Callable[[Sequence[Path], Path], None],
    *,
    ready: Callable[[], bool] | None = None,
    write: Write = ShardFolder.write,
) -> dict[str, Any]:
    """Write one file: its parts in a hidden folder beside it, then all of them, in their order.

    Args:
        out: the file
        job: whose parts are put together
        world: the processes of torchrun, of which only the first returns anything
        merge: writes the parts into a new file
        ready: whether another process has written it, which is then waited for; None to refuse to
            begin beside another process
        write: computes parts

    Returns:
        What the file holds; nothing if it was ready.

    Raises:
        DataError: the hidden folder has the parts of another job, or not one image can be used.
        DiskError: the file cannot be written, or another process does that.
    """
    place = out.with_name(f".{out.name}.parts")
    folder = ShardFolder(place, job, "delete that folder, or choose another --out")
    with _held(folder, world, wait=ready is not None) as alone:
        if alone:
            tidy(out.parent, re.escape(out.name))
        if world.from_first(lambda: ready is not None and ready()):
            shutil.rmtree(place, ignore_errors=True)
            return {}
        found = _completed(folder, world, job.shards, write)
        with world.agreed():
            if world.first:
                try:
                    found |= folder.contents
                    with staged_file(out) as draft:
                        merge([folder.file(each) for each in job.shards], draft)
                except DataError:  # not one image can be used: nothing to go on with
                    shutil.rmtree(place, ignore_errors=True)
                    raise
                shutil.rmtree(place, ignore_errors=True)
                found |= {"out": str(out), "bytes": out.stat().st_size}
    return found


@contextmanager
def _held(
    folder: ShardFolder, world: World, share: ShardNumber = WHOLE, wait: bool = False
) -> Iterator[bool]:
    """Let the first of several processes hold a folder that all of them see."""
    alone = False
    with ExitStack() as stack:
        with world.agreed():
            if world.first:
                alone = stack.enter_context(folder.opened(share, wait))
        with world.agreed():
            if not (folder.path / JOB).is_file():
                raise DiskError(
                    f"process {world.rank} cannot see {folder.path}: choose a folder on storage "
                    "that all machines share"
                )
        yield alone


def _completed(
    folder: ShardFolder, world: World, shards: Sequence[Shard], write: Write
) -> dict[str, Any]:
    """Compute what is missing of some parts, all processes together; say what was done."""
    begin = time.monotonic()
    with world.agreed():
        missing = {each.name for each in folder.left}
        there = [each for each in shards if each.name not in missing]
        folder.check(there[world.rank :: world.size])
    missing = set(world.from_first(lambda: [each.name for each in folder.left]))
    todo = [each for each in shards if each.name in missing]
    mine = todo[world.rank :: world.size]
    try:
        with world.agreed():
            write(folder, mine, world.first)
    except KeyboardInterrupt:
        raise _stopped(folder, world) from None
    if not world.first:
        return {}
    seconds = time.monotonic() - begin
    return {
        "own_parts": len(mine),
        "own_images": sum(each.images for each in mine),
        "seconds": seconds,
        "images_per_second": sum(each.images for each in todo) / seconds,
    }


def _stopped(folder: ShardFolder, world: World) -> KeyboardInterrupt:
    parts = len(folder.job.shards)
    error = KeyboardInterrupt(
        f"stopped with {parts - len(folder.left):,} of {parts:,} parts: run the same command again "
        "to continue"
    )
    error.quiet = not world.first  # type: ignore[attr-defined]
    return error


def _matches(file: Path, receipt: Receipt) -> bool:
    try:
        return file.stat().st_size == receipt.bytes and sha256(file) == receipt.sha256
    except OSError:
        return False


def differing(theirs: Any, mine: dict[str, Any]) -> str:
    """Say how two jobs differ: `other weights; layer=2 there, 3 here`."""
    if not isinstance(theirs, dict):
        return "another kind"
    if theirs.get("job") != mine["job"]:
        return f"of vitlab {theirs.get('job')}"
    found = []
    for key in dict.fromkeys([*mine, *theirs]):
        one = theirs.get(key)
        other = mine.get(key)
        if one != other:
            long = max(len(str(one)), len(str(other))) > 40
            found.append(f"other {key}" if long else f"{key}={one} there, {other} here")
    return "; ".join(found)


def identity(source: Images, *, labeled: bool) -> str:
    """Return a checksum of a source: its length, many names, its contents, and its labels.

    Of image files, and images in memory, the contents are what `data.identities` finds; of
    those inside other files, a few.
    """
    digest = checksum(repr((len(source), source.classes if labeled else ())).encode())
    if _holds_single_files(source.store):
        digest.update(identities(source).data)
    for index in np.linspace(0, len(source) - 1, min(NAMES, len(source)), dtype=int):
        digest.update(fsencode(source.name(int(index))) + b"\n")
    digest.update(some_content(source))
    if labeled:
        digest.update(source.target.content())
    return digest.hexdigest()


def some_content(source: Images) -> bytes:
    """Return the bytes of a few images, one after the other."""
    found = []
    for index in np.linspace(0, len(source) - 1, min(CONTENTS, len(source)), dtype=int):
        with suppress(ImageError):  # an image that cannot be read is named when it is decoded
            found.append(source.image(int(index)).content())
    return b"".join(found)


def _holds_single_files(store: Store) -> bool:
    """Return whether each image is a file, or in memory, so that a part of it can be read."""
    if isinstance(store, Stores):
        return all(map(_holds_single_files, store.parts))
    whole = getattr(store, "whole", store)  # of which a store is made, with other pixels
    return whole.in_memory or isinstance(whole, ImageFiles)
