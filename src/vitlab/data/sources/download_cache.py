"""`--cache-data`: parts of remote files that were read before, kept in a folder of bounded size.

Each is a file of its own, named after the state of the remote file (so that what has changed there
is read anew), and ends with a checksum. Any number of processes may share the folder: a file
appears when it is complete, and those that were used longest ago go first.
"""

import hashlib
import os
import random
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from vitlab.data.sources.remote import MOST, Stamp, read_part, read_parts
from vitlab.errors import DiskError
from vitlab.files import staged_file

OWN = "vitlab-parts"  # folder in the user's
_SHARE = 0.01  # of the limit: what is written, on average, between two looks at the folder
_CHECKSUM = 4  # bytes


@dataclass(frozen=True)
class KeptParts:
    """A folder of parts, and how many bytes it may hold."""

    folder: Path
    limit: int

    @classmethod
    def of(cls, folder: str, gigabytes: float) -> "KeptParts | None":
        """Return what two options ask for; None for no folder.

        Raises:
            DiskError: it cannot be created.
        """
        if not folder:
            return None
        path = Path(folder).expanduser().resolve() / OWN  # nothing else is ever removed
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DiskError(
                f"cannot create {folder} ({error.strerror}): choose another --cache-data"
            ) from None
        return cls(path, round(gigabytes * 1e9))

    def read(self, wanted: Sequence[tuple[str, int, int]], states: Sequence[str]) -> list[bytes]:
        """Read parts of remote files as `read_parts` does, those that are kept from the folder.

        Args:
            wanted: url, offset and size of each
            states: `Stamp.text` of the file of each
        """
        files = [
            self._file(f"{state} {part[1]} {part[2]}")
            for part, state in zip(wanted, states, strict=True)
        ]
        found = [_load(file, part[2]) for file, part in zip(files, wanted, strict=True)]
        lost = [number for number, data in enumerate(found) if data is None]
        for number, data in zip(lost, read_parts([wanted[each] for each in lost]), strict=True):
            found[number] = data
            self._save(files[number], data)
        return [data for data in found if data is not None]

    def file(self, url: str, state: Stamp) -> Path:
        """Return a copy of a whole remote file, which is read now or was before."""
        path = self._file(state.text).with_suffix("") / url.rpartition("/")[2]
        if not path.is_file() or path.stat().st_size != state.size:
            self._tidy()
            with staged_file(path) as draft, draft.open("wb") as copy:
                for offset in range(0, state.size, MOST):
                    copy.write(read_part(url, offset, min(MOST, state.size - offset)))
        return path

    def _file(self, name: str) -> Path:
        digest = hashlib.blake2b(name.encode(), digest_size=16).hexdigest()
        return self.folder / digest[:2] / f"{digest[2:]}.part"

    def _save(self, file: Path, data: bytes) -> None:
        """Keep a part, unless the disk refuses."""
        draft = file.with_suffix(f".{os.getpid()}-{random.getrandbits(32):08x}")
        with suppress(OSError):  # it will be read again
            file.parent.mkdir(exist_ok=True)
            draft.write_bytes(data + zlib.crc32(data).to_bytes(_CHECKSUM))
            draft.replace(file)
        if random.random() * _SHARE * self.limit < len(data):
            self._tidy()

    def _tidy(self) -> None:
        """Remove what was used longest ago, until a tenth of the limit is free."""
        found = []
        for folder, _, names in os.walk(self.folder):
            for name in names:
                with suppress(OSError):  # another process removed it
                    path = Path(folder, name)
                    state = path.stat()
                    found.append((state.st_mtime_ns, state.st_size, path))
        size = sum(each for _, each, _ in found)
        if size <= self.limit:
            return
        for _, each, path in sorted(found):
            if size <= 0.9 * self.limit:
                return
            with suppress(OSError):
                path.unlink()
            size -= each


def _load(file: Path, size: int) -> bytes | None:
    """Return a kept part; None if it is not there, or damaged."""
    try:
        content = file.read_bytes()
        os.utime(file)
    except OSError:
        return None
    data, checksum = content[:size], content[size:]
    return data if zlib.crc32(data).to_bytes(_CHECKSUM) == checksum else None
