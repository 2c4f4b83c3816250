"""A folder of parts: a file each, what the job is, and a receipt for every part that is complete.

    features/
        train-00000.parquet  train-00001.parquet  …  the results: part k always has the same images
        _job.json                                    what decides them
        _parts/train-00000.json                      size, checksum, and what the part holds
        _lock                                        who works on what

Readers of tables (pyarrow, pandas, Spark) pass over names that begin with an underscore. A part is
written under another name, synced and renamed; then comes its receipt, which alone tells that the
part is complete. Two processes that write the same part leave one file.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from vitlab.errors import DataError, DiskError
from vitlab.files import Lock, explained, sha256, staged_file, tidy, write_text
from vitlab.places import JOB, check_parts
from vitlab.progress import named_if_slow, say

RECEIPTS, LOCK = "_parts", "_lock"


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


@dataclass
class Draft:
    """A part that is being written.

    Attributes:
        file: to write into
        images: rows that have a result, so far
        bad: messages about damaged images
    """

    file: Path
    images: int = 0
    bad: list[str] = field(default_factory=list)

    def take(self, images: int, bad: Iterable[str]) -> None:
        """Count rows, and name damaged images."""
        self.images += images
        for message in bad:
            self.bad.append(_unicode(message))
            say(f"skipped: {message}")


@dataclass(frozen=True)
class PartFolder:
    """The parts of one job.

    Attributes:
        path: the folder
        names: of the parts, without their ending
        ending: of their files, such as `.parquet`
        about: what decides the results, as JSON holds it
    """

    path: Path
    names: Sequence[str]
    ending: str
    about: dict[str, Any]

    def file(self, number: int) -> Path:
        """Return the file of a part."""
        return self.path / f"{self.names[number]}{self.ending}"

    def prepare(self, lock: Lock) -> None:
        """Say in the folder what the job is, or check that it is the same job.

        Args:
            lock: opened; its part 0 is for this

        Raises:
            DataError: it is another one; the message says what differs.
            DiskError: the folder cannot be written, or contains something else.
        """
        check_parts(self.path)
        lock.take(0, wait=True)
        job = self.path / JOB
        if lock.supported:
            tidy(self.path, re.escape(JOB))
        if not job.exists():
            write_text(job, json.dumps(self.about, indent=1) + "\n")
        try:
            there = json.loads(job.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise DiskError(f"cannot read {job} ({error}): choose another --out") from None
        lock.release(0)
        if there != self.about:
            raise DataError(
                f"{self.path} has the parts of another job ({differing(there, self.about)}): "
                "choose another --out, or repeat its command to finish it"
            )

    def receipt(self, number: int) -> Receipt | None:
        """Return what a part holds; None if it is not complete."""
        try:
            return Receipt(**json.loads(self._receipt(number).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None

    def finished(self) -> set[int]:
        """Return the parts that have a receipt."""
        folder = self.path / RECEIPTS
        found = {each.stem for each in folder.iterdir()} if folder.is_dir() else set()
        return {number for number, name in enumerate(self.names) if name in found}

    def check(self, numbers: Sequence[int]) -> None:
        """Compare parts with their receipts; those that are damaged or gone lose them.

        Raises:
            DiskError: a receipt cannot be removed.
        """
        with named_if_slow(f"checking {len(numbers):,} finished parts in {self.path}"):
            for number in numbers:
                receipt, file = self.receipt(number), self.file(number)
                if receipt is None or not _matches(file, receipt):
                    what = "is damaged" if file.exists() else "is gone"
                    say(f"{file} {what}: it is made once more")
                    with explained(self.path):
                        self._receipt(number).unlink(missing_ok=True)

    @contextmanager
    def writing(self, number: int) -> Iterator[Draft]:
        """Yield a draft that becomes the part if the block succeeds.

        Raises:
            DiskError: it cannot be written.
        """
        file = self.file(number)
        with staged_file(file) as place:
            draft = Draft(place)
            yield draft
            receipt = Receipt(place.stat().st_size, sha256(place), draft.images, draft.bad)
        write_text(self._receipt(number), json.dumps(asdict(receipt)) + "\n")

    def tidy(self, number: int) -> None:
        """Remove the drafts that a killed process left of a part; nobody else may write it now."""
        for file in (self.file(number), self._receipt(number)):
            tidy(file.parent, re.escape(file.name))

    def _receipt(self, number: int) -> Path:
        return self.path / RECEIPTS / f"{self.names[number]}.json"


def _unicode(text: str) -> str:
    """Return a message as text: bytes of file names that are not Unicode are spelled out."""
    return text.encode("utf-8", "backslashreplace").decode()


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
        one, other = theirs.get(key), mine.get(key)
        if one != other:
            long = max(len(str(one)), len(str(other))) > 40
            found.append(f"other {key}" if long else f"{key}={one} there, {other} here")
    return "; ".join(found)
