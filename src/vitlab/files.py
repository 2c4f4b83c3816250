"""Files and folders that are complete or not there (fsync, then rename).

What is unfinished is noted before it is made, until it is gone: an interruption may come at any
moment, also between the end of a block and the removal of its draft.
"""

import atexit
import errno
import fcntl
import hashlib
import os
import re
import secrets
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from safetensors import SafetensorError

from vitlab.errors import DiskError

SEEN = "seen.npy"  # in a folder of weights: what they have learned from
MODEL_FOLDER = "model"  # of a run: RunFolder writes it, vitlab.load finds it
SEGMENT = "segment.safetensors"  # of a run that segments: the classifier of patches
DETECT = "detect.safetensors"  # of a run that detects: queries and heads
REGRESS = "regress.safetensors"  # of a run that answers with numbers: the layer and their scale
HEADS = {SEGMENT: "masks", DETECT: "boxes", REGRESS: "numbers"}  # what such a run answers with
SWEEP_FOLDER = "sweep"  # of a run: the runs that chose its learning rate
LOCK = ".lock"  # of a run or a campaign
CAMPAIGN_FILE = "campaign.json"  # of several runs: what they are and have come to
WRITTEN = (  # names in such folders of what is a draft first
    r"run\.toml|metrics\.jsonl|duplicates\.json|model|guide|fault|report\.html|campaign\.json|"
    r"(delta|predictions|segment|detect|regress)\.safetensors"
)
PAUSES = (0.05, 0.2, 0.5, 0.0)  # seconds after a try to remove a folder that is written to
FULL_SYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)  # macOS's fsync asks the drive only
DRAFT = re.compile(r"\.(?P<name>.+)\.draft-[a-z0-9_]{8}")


def head_of(weights: str | Path) -> str:
    """Return what the head of a run answers with: masks, boxes, numbers; empty for classes."""
    return next((kind for file, kind in HEADS.items() if (Path(weights) / file).is_file()), "")


def write_text(file: Path, text: str) -> None:
    """Write text into a file; if anything fails, the older file stays as it was.

    Raises:
        DiskError: the file cannot be written.
    """
    with staged_file(file) as draft:
        draft.write_text(text, encoding="utf-8")


@contextmanager
def staged_folder(folder: Path) -> Iterator[Path]:
    """Yield a draft folder that becomes `folder` if the block succeeds, and vanishes if not.

    An older folder of that name is replaced only when the new one is complete and on the disk.

    Raises:
        DiskError: the folder cannot be written.
    """
    with staged_file(folder) as draft:
        draft.mkdir()
        yield draft


@contextmanager
def staged_file(place: Path) -> Iterator[Path]:
    """Yield where to write a draft that replaces `place` if the block succeeds, else vanishes.

    It is in a folder of its own, which always vanishes: some writers (safetensors) write a private
    file beside the draft, and rename it.

    Raises:
        DiskError: the file cannot be written.
    """
    if place.name in ("", ".."):
        raise DiskError(f"{place} is there and cannot be replaced: name a new file or folder")
    with explained(place):
        place.parent.mkdir(parents=True, exist_ok=True)
        own = place.with_name(f".{place.name}.draft-{secrets.token_hex(4)}")
        draft = own / place.name
        _UNFINISHED[own] = place
        try:
            own.mkdir()
            yield draft
            for part in (*sorted(draft.rglob("*")), draft):
                _make_readable(part, own.stat().st_mode)
                sync(part)
            if draft.is_dir() and place.is_dir():
                place.rename(_older(own, place))
            draft.rename(place)
            sync(place.parent)
        finally:
            _discard(own, place)
            _UNFINISHED.pop(own, None)


@contextmanager
def vanishing_folder(prefix: str = "vitlab-", within: Path | None = None) -> Iterator[Path]:
    """Yield a new private folder that vanishes with the block.

    Args:
        prefix: of its name
        within: where it is made; None for the system's folder of temporary files

    Raises:
        DiskError: it cannot be made.
    """
    place = (within or Path(tempfile.gettempdir())) / f"{prefix}{secrets.token_hex(4)}"
    _UNFINISHED[place] = place
    try:
        with explained(place):
            place.mkdir(mode=0o700)
        yield place
    finally:
        _remove(place)
        _UNFINISHED.pop(place, None)


def remove_unfinished() -> None:
    """Remove every draft and scratch folder of this process, which is about to end.

    Processes that work for it have nothing to save in a scratch folder: they end with it.
    """
    processes = sys.modules.get("multiprocessing.process")
    if processes and any(own == place for own, place in _UNFINISHED.items()):
        for each in processes.active_children():
            each.kill()
    for own, place in [*_UNFINISHED.items()]:
        with suppress(OSError, ValueError):  # of a name that no system takes
            if own == place:
                _remove(own)
            else:
                _discard(own, place)
        _UNFINISHED.pop(own, None)


_UNFINISHED: dict[Path, Path] = {}  # a draft's folder, and what it is of; a scratch folder: itself
atexit.register(remove_unfinished)
os.register_at_fork(after_in_child=_UNFINISHED.clear)


def _remove(folder: Path) -> None:
    """Remove a folder; other processes that are about to end may still write into it."""
    for pause in PAUSES:
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(pause)


def _make_readable(file: Path, mode: int) -> None:
    """Give a file the permissions that the umask gave a folder of this mode."""
    own = file.stat().st_mode
    if stat.S_ISREG(own) and mode & 0o666 & ~own:
        file.chmod(stat.S_IMODE(own) | mode & 0o666)


def _older(own: Path, place: Path) -> Path:
    """Return where, within its draft's folder, a folder waits for its successor."""
    return own / f"{place.name}.older"


def _discard(own: Path, place: Path) -> None:
    """Remove a draft; an older folder whose successor never took its place is put back."""
    older = _older(own, place)
    if older.is_dir() and not place.exists():
        older.rename(place)
    if own.is_dir() and not own.is_symlink():
        shutil.rmtree(own, ignore_errors=True)
    else:
        own.unlink(missing_ok=True)


def is_draft(path: Path, names: str) -> bool:
    """Return whether this is a draft of a file or folder whose name matches `names`."""
    found = DRAFT.fullmatch(path.name)
    return found is not None and re.fullmatch(names, found["name"]) is not None


def tidy(folder: Path, names: str) -> None:
    """Remove drafts that a killed process left; no other process may be writing into the folder.

    Args:
        folder: where they are
        names: regular expression of the names that the drafts are of
    """
    with suppress(OSError):  # what cannot be removed does no harm
        for own in [each for each in folder.iterdir() if is_draft(each, names)]:
            _discard(own, folder / DRAFT.sub(r"\g<name>", own.name))


def sync(path: Path) -> None:
    """Wait until a file, or a folder's entries, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        with suppress(OSError):  # a file system that knows fsync only
            if FULL_SYNC is not None:
                fcntl.fcntl(handle, FULL_SYNC)
                return
        os.fsync(handle)
    finally:
        os.close(handle)


def check_regular(file: Path, limit: int | None = None) -> int:
    """Return the size of a file that is to be read: a regular one, of at most `limit` bytes.

    A pipe would be waited for, and a device may never end.

    Raises:
        OSError: it is missing, something else or larger; `strerror` says which.
    """
    state = file.stat()
    if stat.S_ISDIR(state.st_mode):
        raise IsADirectoryError(errno.EISDIR, "a folder, not a file", str(file))
    if not stat.S_ISREG(state.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(file))
    if limit is not None and state.st_size > limit:
        reason = f"{state.st_size:,} bytes exceed the limit of {limit:,}"
        raise OSError(errno.EFBIG, reason, str(file))
    return state.st_size


def read_bytes(file: Path, limit: int) -> bytes:
    """Return the content of a regular file of at most `limit` bytes.

    Raises:
        OSError: it cannot be read; `strerror` says why.
    """
    size = check_regular(file, limit)
    with file.open("rb") as stream:
        return stream.read(size)


def sha256(file: Path) -> str:
    """Return the SHA-256 checksum of a file, in hexadecimal."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn a disk's refusals (full, no permission, read-only) into one line for the user.

    Raises:
        DiskError: the disk refused something in the block.
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
    except SafetensorError as error:  # the same, as that library reports it
        found = re.search(r"I/O error: (.+?) \(os error", str(error))
        reason = found[1] if found else str(error)
    except ValueError as error:
        if "null byte" not in str(error):
            raise
        reason = "its name has a null character"
    else:
        return
    raise DiskError(f"cannot write {path}: {reason[:1].lower()}{reason[1:]}")


def follow_links(path: str | Path) -> Path:
    """Return where a path leads; a ring of links, which leads nowhere, counts as a file.

    So does `Path.resolve` from Python 3.13 on; before, it raises RuntimeError.
    """
    return Path(os.path.realpath(path))


def is_empty(folder: Path, *besides: str) -> bool:
    """Return whether a folder is missing, or empty but for a run's drafts and these names."""
    if not folder.is_dir():
        return not folder.exists()
    return all(each.name in besides or is_draft(each, WRITTEN) for each in folder.iterdir())


def with_new_parents(folder: Path) -> list[Path]:
    """Return a folder, and its parents as far as they are missing, from the innermost on."""
    return [folder, *(each for each in folder.parents if not each.exists())]


def remove_empty(folders: Iterable[Path]) -> None:
    """Remove those of some folders, in their order, that are there and empty."""
    for each in folders:
        with suppress(OSError):
            each.rmdir()
