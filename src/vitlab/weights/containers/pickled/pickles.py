"""Files of `torch.save`, by PyTorch's restricted reader and the reviewed list of `allowed.py`."""

import io
import re
import threading
import warnings
import zipfile
from pathlib import Path
from typing import IO, Any

import torch

from vitlab.errors import WeightsError
from vitlab.weights.containers.contents import Content, Plain
from vitlab.weights.containers.pickled.allowed import ALLOWED
from vitlab.weights.sharded import HEADER

ONE_AT_A_TIME = threading.Lock()  # the list is PyTorch's own, for all threads
STEPS = 5_000_000  # of a pickle that is read; each tensor takes about 30
PROTOCOLS = "Unsupported operand"  # of a pickle that PyTorch's restricted reader cannot read


def read_pickle(path: Path) -> Content:
    """Read a file of `torch.save`; of the newer kind, tensors stay on the disk for now.

    Raises:
        WeightsError: it is damaged, or holds an object that is not on the list.
    """
    lazily = zipfile.is_zipfile(path)
    if lazily:
        _check_description(path)
        check_archive(path)
        content = restricted(path, path)
    else:
        with Counted(io.FileIO(path)) as stream:
            content = restricted(path, stream)
    found = Plain(path).of(content)
    if not isinstance(found, dict):
        raise WeightsError(
            f"{path} contains a {type(content).__name__}, not a dictionary of tensors"
        )
    return Content("pickle", found)


class Counted(io.BufferedReader):
    """A file that is read a limited number of times: once or more for each step of a pickle."""

    left = STEPS

    def read(self, size: int | None = -1, /) -> bytes:
        """Read some bytes.

        Raises:
            ValueError: too many times.
        """
        self.left -= 1
        if self.left < 0:
            raise ValueError(f"a pickle of more than {STEPS:,} steps")
        return super().read(size)


def restricted(path: Path, stream: Path | Counted) -> Any:
    """Return what PyTorch's restricted reader makes of a pickle, with what `ALLOWED` adds.

    Args:
        path: for messages
        stream: an archive, whose tensors stay on the disk; or a part of one, or another file

    Raises:
        WeightsError: it is damaged, or holds an object that is not on the list.
    """
    lazily = isinstance(stream, Path)
    with (
        ONE_AT_A_TIME,
        torch.serialization.safe_globals(list(ALLOWED)),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        try:
            return torch.load(stream, map_location="cpu", weights_only=True, mmap=lazily)
        except Exception as error:  # the reader leaks exceptions of every type
            raise WeightsError(f"{path} {_reason(path, error)}") from error


def check_archive(path: Path) -> None:
    """Compare every file of a zip with its checksum.

    Raises:
        WeightsError: one is damaged.
    """
    with zipfile.ZipFile(path) as archive:
        if damaged := archive.testzip():
            raise WeightsError(f"{path}: {damaged} does not match its checksum; download it again")


def _check_description(path: Path) -> None:
    """Refuse a description of the tensors that would take too long to read."""
    with zipfile.ZipFile(path) as archive:
        sizes = [i.file_size for i in archive.infolist() if i.filename.endswith("data.pkl")]
    if max(sizes, default=0) > HEADER:
        raise WeightsError(
            f"{path}: its data.pkl, which describes the tensors, has {max(sizes):,} bytes; the "
            f"limit is {HEADER:,}"
        )


def _reason(path: Path, error: Exception) -> str:
    """Return what is wrong with a pickle; never the advice of its reader, which is to trust it."""
    text = str(error)
    if found := re.search(r"(?:GLOBAL|class|global) `?([\w.]+)`? (?:was not|whose module)", text):
        return _unsafe(path, found[1])
    if found := re.search(r"Unsupported (?:global|class).*?[ `](\w+(?:\.\w+)+)", text):
        return _unsafe(path, found[1])
    if "DTensor" in text:
        return (
            "has tensors that are spread over processes: whoever made it can save whole ones, with "
            "full_state_dict=True of torch.distributed.checkpoint.state_dict.StateDictOptions"
        )
    if PROTOCOLS in text:
        return (
            "cannot be read: not a pickle that torch.save writes by default; save it again with "
            "torch.save(model.state_dict(), FILE), without pickle_protocol"
        )
    if found := re.search(r"WeightsUnpickler error:? ?([^\n]*)", text):
        return f"cannot be read: not a dictionary of tensors ({found[1].strip() or 'a pickle'})"
    lines = text.strip().splitlines()
    return f"cannot be read: {lines[0] if lines else type(error).__name__}"


def _unsafe(path: Path, name: str) -> str:
    """The line about an object that only its own class's code could restore."""
    if name == _outermost(path):
        what = f"is a whole pickled object of class {name}"
    else:
        what = f"contains {name} in its pickle"
    own = name.startswith("vitlab.")
    advice = "vitlab.save(model, FOLDER)" if own else "torch.save(model.state_dict(), FILE)"
    return (
        f"{what}, which is unsafe to load: whoever made the file can save its tensors alone, with "
        f"{advice}"
    )


def _outermost(path: Path) -> str:
    """Return the class that a pickle begins with; empty if it begins with plain values."""
    stream: IO[bytes]
    start = b""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if name.endswith("/data.pkl")]
            if names:
                with archive.open(names[0]) as stream:
                    start = stream.read(300)
    else:
        with path.open("rb") as stream:
            start = stream.read(300)
    found = re.match(rb"\x80.c([\w.]+)\n([\w.]+)\n", start, re.DOTALL)
    return ".".join(part.decode("ascii") for part in found.groups()) if found else ""
