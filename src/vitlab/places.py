"""Checks that a place can be written to, before anything is computed.

Nothing here imports PyTorch, so that the command line answers at once.
"""

import os
import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vitlab.errors import DiskError, OptionError
from vitlab.files import explained, follow_links, is_empty
from vitlab.packages import check_installed

JOB = "_job.json"  # of a folder of parts: what they are the parts of
PART = 10_000  # images of a part
ENDINGS = (".csv", ".jsonl", ".parquet")  # of files with a row per image
NOTED: list[list[Path]] = []  # files of the cache, by the block that asks for them
On = Literal["", "ray"]  # what computes: this machine, or a cluster


def exists(name: str) -> bool:
    """Return whether a file or folder of this name exists; a name that none can have does not."""
    try:
        return Path(name).expanduser().exists()
    except (OSError, ValueError, RuntimeError):  # too long, with a null character, of no user
        return False


def cache_folder(kind: str) -> Path:
    """Return where the user's cache has something: VITLAB_CACHE, or XDG_CACHE_HOME/vitlab."""
    home = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    return Path(os.environ.get("VITLAB_CACHE") or Path(home) / "vitlab") / kind


@contextmanager
def record_cache_files() -> Iterator[list[Path]]:
    """Note which files of the cache are read or written in the block, for other machines."""
    files: list[Path] = []
    NOTED.append(files)
    try:
        yield files
    finally:
        NOTED.remove(files)


def note_cache_file(file: Path) -> None:
    """Note that a file of the cache was read or written."""
    for files in NOTED:
        files.append(file)


def write_cache_file(file: Path, pieces: Iterable[bytes | memoryview]) -> bool:
    """Write a file of the cache, unless the disk refuses; return whether it is there.

    It appears when it is complete. Nothing waits for the disk: readers check it.
    """
    note_cache_file(file)
    draft = file.with_name(f".{file.name}.{os.getpid()}-{random.getrandbits(32):08x}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with draft.open("wb") as stream:
            for piece in pieces:
                stream.write(piece)
        draft.replace(file)
    except OSError:
        return False
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
    return True


def check_name(out: str | Path, whole: bool = True) -> Path:
    """Return the path of what is to be written; refuse what names nothing new.

    Args:
        out: what the user names
        whole: whether it appears as a whole once it is complete, which `.` cannot

    Raises:
        DiskError: it is empty, has a null character, is `.`, `..` or `/` if it must be new, or lies
            where nothing can be written.
    """
    path = Path(out).expanduser()
    if not str(out) or "\0" in str(out):
        raise DiskError(f"{str(out)!r} is no name that can be written to: choose another")
    if whole and path.name in ("", ".."):
        raise DiskError(f"{out} is there and cannot be replaced: name a new file or folder")
    with explained(path):
        with suppress(FileNotFoundError, NotADirectoryError):
            path.lstat()  # the name may be too long
        there = next((each for each in path.absolute().parents if each.exists()), path)
        if not there.is_dir():
            raise DiskError(f"cannot write {path}: {there} is a file")
        if not os.access(there, os.W_OK):
            raise DiskError(f"cannot write {path}: {there} is read-only for you")
    return path


def check_run_folder(folder: str | Path) -> None:
    """Refuse what names no folder of a run, which may be there.

    Raises:
        DiskError: it is empty, or has a null character.
    """
    check_name(folder, whole=False)


def check_outside(out: str | Path, source: str | Path) -> None:
    """Refuse a new folder that lies in the folder that is read for it.

    Raises:
        DiskError: it does.
    """
    if not exists(str(source)):  # images on another machine, or made ones
        return
    inner, outer = (follow_links(Path(each).expanduser()) for each in (out, source))
    if inner.is_relative_to(outer):
        raise DiskError(f"{out} lies in {source}, which is read for it: choose a folder elsewhere")


def check_new_folder(folder: str | Path) -> None:
    """Refuse a folder that is not new or empty.

    Raises:
        DiskError: it contains something, is a file, or has no name.
    """
    path = check_name(folder)
    if not is_empty(path):
        raise DiskError(f"{folder} already exists: choose a new folder")


def check_new_file(file: str | Path) -> None:
    """Refuse a file that exists.

    Raises:
        DiskError: it exists, or has no name.
    """
    if check_name(file).exists():
        raise DiskError(f"{file} already exists: choose another --out")


def check_no_folder(file: str | Path) -> None:
    """Refuse a folder where a file is to be written; an older file may be replaced.

    Raises:
        DiskError: it is a folder, or has no name.
    """
    _checked(check_name(file), replace=True)


def is_folder(out: str | Path) -> bool:
    """Return whether results go into a folder of parts: a name without an ending, or a folder."""
    path = Path(out).expanduser()
    return str(out).endswith("/") or path.is_dir() or not path.suffix


def check_parts(folder: str | Path) -> None:
    """Refuse a folder that contains anything but the parts of a job (which may be another one).

    Raises:
        DiskError: it contains something else, or is a file.
    """
    path = check_name(folder, whole=False)
    if path.exists() and not path.is_dir():
        raise DiskError(f"{folder} is a file: choose another --out")
    if not path.is_dir() or (path / JOB).is_file():
        return
    if any(not each.name.startswith((".", "_")) for each in path.iterdir()):
        raise DiskError(f"{folder} contains other files: choose another --out")


def check_new(out: str | Path) -> None:
    """Refuse a file that exists, or a folder that cannot hold parts.

    Raises:
        DiskError: it exists, or contains something else.
    """
    if is_folder(out):
        check_parts(out)
    else:
        check_new_file(out)


def check_file(file: str | Path, *, replace: bool, name: str = "out") -> Path:
    """Return the path of a file that rows can be written to.

    Args:
        file: what the user names
        replace: whether an older one may be replaced
        name: of the option, for the messages

    Raises:
        OptionError: another ending than .csv, .jsonl or .parquet, or it exists and may not be
            replaced.
        PackageError: it ends in .parquet, and pyarrow is not installed.
        DiskError: it is a folder.
    """
    path = check_name(file)
    if path.suffix.lower() not in ENDINGS:
        raise OptionError(f"{name} must end in .csv, .jsonl or .parquet, not {path.name!r}")
    if path.suffix.lower() == ".parquet":
        check_installed("pyarrow", path.name, "write a .csv file")
    return _checked(path, replace, name)


def check_page(file: str | Path, *, replace: bool) -> Path:
    """Return the path of a page that can be written.

    Raises:
        OptionError: another ending than .html, or it exists and may not be replaced.
        DiskError: it is a folder.
    """
    path = check_name(file)
    if path.suffix.lower() != ".html":
        raise OptionError(f"out must be a file name that ends in .html, not {str(file)!r}")
    return _checked(path, replace)


def check_drawing(file: str | Path, *, replace: bool) -> Path:
    """Return the path of a drawing that can be written.

    Raises:
        OptionError: another ending than .svg, .pdf or .png, or it exists and may not be replaced.
        DiskError: it is a folder.
    """
    path = check_name(file)
    if path.suffix.lower() not in (".svg", ".pdf", ".png"):
        raise OptionError(
            f"figure must be a file name that ends in .svg, .pdf or .png, not {str(file)!r}"
        )
    return _checked(path, replace, "figure")


def _checked(path: Path, replace: bool, name: str = "out") -> Path:
    """Return the path of a file that is no folder, and new unless it may be replaced."""
    if path.is_dir():
        raise DiskError(f"cannot write {path}: it is a folder")
    if path.exists() and not replace:
        other = f"--{name.replace('_', '-')}"
        raise OptionError(f"{path} already exists: pass --replace, or choose another {other}")
    return path


@dataclass(frozen=True)
class Files:
    """Where the rows of an evaluation go; None for nowhere.

    Attributes:
        rows: a row per image
        label_errors: a row per image whose label is likely wrong
    """

    rows: Path | None = None
    label_errors: Path | None = None


NO_FILES = Files()


def check_files(out: str | Path | None, label_errors: str | Path | None, *, replace: bool) -> Files:
    """Return two files that rows can be written to, each as `check_file` does.

    Raises:
        OptionError: they are the same, or as `check_file`.
        PackageError: as `check_file`.
        DiskError: as `check_file`.
    """
    first, second = (
        None if each is None else check_file(each, replace=replace, name=name)
        for each, name in ((out, "out"), (label_errors, "label_errors"))
    )
    if first is not None and second is not None and first.absolute() == second.absolute():
        raise OptionError("out and label_errors must be different files")
    return Files(first, second)
