"""Files and folders that are either complete or not there (fsync, then rename)."""

import errno
import hashlib
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from safetensors import SafetensorError

from vitlab.errors import DiskError

MODEL_FOLDER = "model"  # of a run: RunFolder writes it, vitlab.load finds it
SWEEP_FOLDER = "sweep"  # of a run: the runs that chose its learning rate
CAMPAIGN_FILE = "campaign.json"  # of several runs: what they are and have come to
DRAFT = re.compile(r"\.(?P<name>.+)\.(?P<kind>draft|older)-[a-z0-9_]{8}")


def write_text(file: Path, text: str) -> None:
    """Write text into a file; if anything fails, the older file stays as it was.

    Raises:
        DiskError: the file cannot be written.
    """
    with staged_file(file) as draft:
        draft.write_text(text, encoding="utf-8")


@contextmanager
def staged_file(file: Path) -> Iterator[Path]:
    """Yield a draft beside `file` that replaces it if the block succeeds, and vanishes if not.

    Raises:
        DiskError: the file cannot be written.
    """
    with explained(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{file.name}.draft-", dir=file.parent)
        os.close(handle)
        draft = Path(name)
        try:
            yield draft
            draft.chmod(0o666 & ~_umask())  # mkstemp's files are private
            sync(draft)
            draft.replace(file)
            sync(file.parent)
        finally:
            draft.unlink(missing_ok=True)


@contextmanager
def staged_folder(folder: Path) -> Iterator[Path]:
    """Yield a draft folder that becomes `folder` if the block succeeds, and vanishes if not.

    An older folder of that name is replaced only when the new one is complete and on the disk.

    Raises:
        DiskError: the folder cannot be written.
    """
    with explained(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}.draft-", dir=folder.parent))
        try:
            yield draft
            draft.chmod(0o777 & ~_umask())
            for part in (*sorted(draft.rglob("*")), draft):
                sync(part)
            if folder.exists():
                _swap(draft, folder)
            else:
                draft.rename(folder)
            sync(folder.parent)
        finally:
            shutil.rmtree(draft, ignore_errors=True)


def _swap(draft: Path, folder: Path) -> None:
    """Replace an older folder by a draft; if that fails, put the older one back."""
    aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.older-", dir=folder.parent))
    folder.rename(aside / folder.name)
    try:
        draft.rename(folder)
    except OSError:
        (aside / folder.name).rename(folder)
        raise
    finally:
        if folder.exists():  # else the older one is still aside
            shutil.rmtree(aside, ignore_errors=True)


def is_draft(path: Path, names: str) -> bool:
    """Return whether this is a draft of a file or folder whose name matches `names`."""
    found = DRAFT.fullmatch(path.name)
    return found is not None and re.fullmatch(names, found["name"]) is not None


def tidy(folder: Path, names: str) -> None:
    """Remove drafts that a killed process left; nobody else may be writing into the folder.

    A folder that was moved aside, and whose successor never took its place, is put back.

    Args:
        folder: where they are
        names: regular expression of the names that the drafts are of
    """
    with suppress(OSError):  # what cannot be removed is in nobody's way
        for draft in [each for each in folder.iterdir() if is_draft(each, names)]:
            found = DRAFT.fullmatch(draft.name)
            place = folder / found["name"] if found else draft
            if (draft / place.name).is_dir() and not place.exists():
                (draft / place.name).rename(place)
            if draft.is_dir() and not draft.is_symlink():
                shutil.rmtree(draft, ignore_errors=True)
            else:
                draft.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Wait until a file, or a folder's entries, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
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
    else:
        return
    raise DiskError(f"cannot write {path}: {reason[:1].lower()}{reason[1:]}")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def is_empty(folder: Path, *besides: str) -> bool:
    """Return whether a folder is missing, or empty but for what is named in `besides`."""
    if not folder.is_dir():
        return not folder.exists()
    return all(each.name in besides for each in folder.iterdir())
