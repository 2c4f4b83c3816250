"""Files and folders that are either whole or not there at all (fsync, then rename)."""

import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from vitlab.errors import DiskError

MODEL_FOLDER = "model"  # of a run: RunFolder writes it, vitlab.load finds it


def write_text(file: Path, text: str) -> None:
    """Put text into a file; whatever goes wrong, the older file stays as it was."""
    with staged_file(file) as draft:
        draft.write_text(text, encoding="utf-8")


@contextmanager
def staged_file(file: Path) -> Iterator[Path]:
    """A draft beside `file` that takes its place when the block ends well, and vanishes if not."""
    with explained(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)
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
    """A draft folder that becomes `folder` when the block ends well, and vanishes if not.

    An older folder of that name makes room only when the new one is whole and on the disk.
    """
    with explained(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
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
    """Put a draft in the place of an older folder, or the older one back if that fails."""
    aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.old.", dir=folder.parent))
    folder.rename(aside / folder.name)
    try:
        draft.rename(folder)
    except OSError:
        (aside / folder.name).rename(folder)
        raise
    finally:
        if folder.exists():  # else the older one is still aside
            shutil.rmtree(aside, ignore_errors=True)


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sha256(file: Path) -> str:
    """The checksum of a file's bytes, in hexadecimal."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn what a disk can refuse (no room, no right, read-only) into one line for the user."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
    except SafetensorError as error:  # how that library tells of the same
        found = re.search(r"I/O error: (.+?) \(os error", str(error))
        reason = found[1] if found else str(error)
    else:
        return
    raise DiskError(f"cannot write {path}: {reason[:1].lower()}{reason[1:]}")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def is_empty(folder: Path, besides: str = "") -> bool:
    """Whether there is no such folder, or nothing in it but a file of the name `besides`."""
    if not folder.is_dir():
        return not folder.exists()
    return all(each.name == besides for each in folder.iterdir())
