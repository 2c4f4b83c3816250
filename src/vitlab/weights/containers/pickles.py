"""Files of `torch.save`, read by PyTorch's restricted unpickler with a reviewed list of stand-ins.

The restricted reader calls only what a list names. No name of ours stands for the class itself:
each is mapped to one of two classes of this file, which keep attributes and call nothing,
so that nothing of the file's choice is constructed, imported or called, and no library is needed.
"""

import io
import re
import threading
import warnings
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitlab.errors import WeightsError
from vitlab.weights.containers.arrays import Content, Stored
from vitlab.weights.containers.members import Members
from vitlab.weights.sharded import HEADER, MOST

ONE_AT_A_TIME = threading.Lock()  # the list is PyTorch's own, for all threads
STEPS = 5_000_000  # of a pickle that is read; each tensor takes about 30
DEEPEST = 12  # dictionaries and lists within one another
LARGEST = 10 * MOST  # values in one file


class Recorded:
    """An object of any class: its attributes, if the file gives it some, and nothing else."""

    state: object = None

    def __init__(self, *args: object) -> None:
        """Drop what its class would have been called with."""

    def __setstate__(self, state: object) -> None:
        self.state = state


class Dictionary:
    """Another kind of dictionary: a plain one, without the factory of a defaultdict."""

    def __new__(cls, *args: object) -> dict[object, object]:  # type: ignore[misc]
        """Return an empty dictionary, which the file then fills."""
        return {}


_LIGHTNING = (
    "pytorch_lightning.utilities.parsing", "lightning.pytorch.utilities.parsing",
    "lightning_fabric.utilities.data", "lightning.fabric.utilities.data",
)  # fmt: skip
_DICTIONARIES = ("collections.defaultdict", *(f"{room}.AttributeDict" for room in _LIGHTNING))
_RECORDED = {
    "argparse": "Namespace",
    "types": "SimpleNamespace",
    "numpy": "dtype ndarray",
    "numpy.core.multiarray": "_reconstruct scalar",
    "numpy._core.multiarray": "_reconstruct scalar",
    "pathlib": "Path PosixPath WindowsPath PurePath PurePosixPath PureWindowsPath",
    "pathlib._local": "Path PosixPath WindowsPath PurePath PurePosixPath PureWindowsPath",
    "datetime": "datetime date time timedelta timezone",
    "builtins": "int float str bool bytes list tuple dict object",
    "torch.torch_version": "TorchVersion",
}
# What PyTorch's reader calls, and the name in a file that it stands for.
ALLOWED: tuple[tuple[Callable[..., Any], str], ...] = (
    *((Dictionary, name) for name in _DICTIONARIES),
    *((Recorded, f"{room}.{name}") for room, each in _RECORDED.items() for name in each.split()),
)


def read_pickle(path: Path, zipped: bool) -> Content:
    """Read a file of `torch.save`; of the newer kind, a zip, tensors stay on the disk for now.

    Raises:
        WeightsError: it is damaged, or holds an object that is not on the list.
    """
    if zipped:
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                if info.filename.endswith("data.pkl") and info.file_size > HEADER:
                    raise WeightsError(
                        f"{path}: its data.pkl, which describes the tensors, has "
                        f"{info.file_size:,} bytes; the limit is {HEADER:,}"
                    )
        members = Members(path)
        content = _restricted(path, path)
        plain = _Plain(path, members.check_tensor)
        found = plain.of(content)
        members.place(plain.tensors)
    else:
        with Counted(io.FileIO(path)) as stream:
            content = _restricted(path, stream)
        found = _Plain(path).of(content)
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


def _restricted(path: Path, stream: Path | Counted) -> Any:
    """What PyTorch's restricted reader makes of a file, with what `ALLOWED` adds."""
    with ONE_AT_A_TIME, torch.serialization.safe_globals(list(ALLOWED)), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lazily = isinstance(stream, Path)
        try:
            return torch.load(stream, map_location="cpu", weights_only=True, mmap=lazily)
        except Exception as error:  # the reader leaks exceptions of every type
            raise WeightsError(f"{path} {_reason(error)}") from error


@dataclass
class _Plain:
    """Turn what a restricted reader returns into plain values and `Stored` tensors.

    A small file can describe a huge tree by naming one part many times, so values are counted.
    """

    path: Path
    checked: Callable[[Tensor], Tensor] = lambda tensor: tensor  # as it is read
    left: int = LARGEST
    tensors: list[Tensor] = field(default_factory=list)

    def of(self, value: object, depth: int = 0) -> Any:
        """Return the value itself, or None for one that is neither plain nor a tensor."""
        self.left -= 1
        if self.left < 0:
            raise WeightsError(f"{self.path} has more than {LARGEST:,} values")
        match value:
            case Recorded(state=dict(attributes)):
                return self.of(attributes, depth)
            case Tensor():
                if value.layout is not torch.strided or value.is_quantized or value.is_nested:
                    return None
                data = value.detach()
                self.tensors.append(data)
                whole = not (data.is_floating_point() or data.is_complex())
                return Stored(tuple(data.shape), lambda: self.checked(data), whole)
            case None | str() | int() | float():
                return value
            case Mapping() if depth < DEEPEST:
                return {_key(key): self.of(inner, depth + 1) for key, inner in value.items()}
            case list() | tuple() | set() if depth < DEEPEST:
                return [self.of(inner, depth + 1) for inner in value]
        return None


def _key(key: object) -> str:
    return str(key) if isinstance(key, str | int) else "?"


_UNSAFE = (
    "contains {0} in its pickle, which is unsafe to load: its author can save the "
    "tensors alone, with {1}"
)
# What the restricted reader says, whose advice is to trust the file, and what is said instead.
REASONS = (
    (r"(?:GLOBAL|class|global) `?([\w.]+)`? (?:was not|whose module)", _UNSAFE),
    (r"Unsupported (?:global|class).*?[ `](\w+(?:\.\w+)+)", _UNSAFE),
    (r"(DTensor)", "has tensors that are spread over processes: its author can save whole "
     "ones, with full_state_dict=True of torch.distributed.checkpoint.state_dict.StateDictOptions"),
    (r"(Unsupported operand)", "cannot be read: not a pickle that torch.save writes by default; "
     "save it again with torch.save(model.state_dict(), FILE), without pickle_protocol"),
    (r"WeightsUnpickler error:? ?([^\n]*)", "cannot be read: not a dictionary of tensors ({0})"),
    (r"(.*)", "cannot be read: {0}"),
)  # fmt: skip


def _reason(error: Exception) -> str:
    """Return what is wrong with a pickle, by the message of its reader."""
    text = str(error).strip() or type(error).__name__
    for pattern, line in REASONS:
        if found := re.search(pattern, text):
            own = found[1].startswith("vitlab.")
            advice = "vitlab.save(model, FOLDER)" if own else "torch.save(model.state_dict(), FILE)"
            return line.format(found[1].strip() or "a pickle", advice)
    return "cannot be read"
