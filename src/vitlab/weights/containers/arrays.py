"""Files of arrays by name, safetensors and NumPy's .npz; the sizes that a zip archive states."""

import io
import math
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.lib import format as npy
from safetensors import SafetensorError, safe_open
from torch import Tensor

from vitlab.errors import WeightsError
from vitlab.units import storage
from vitlab.weights.sharded import HEADER, Fields
from vitlab.weights.source import Kind, Shape, readable

INTEGERS = ("I64", "I32", "I16", "I8", "U8", "U16", "U32", "U64", "BOOL")
SMALLEST = 4  # what is less than a patch's side, and as many channels as MLX's images have
RATIO = 20  # of a zip archive: weights hardly shrink; what is all zeros does, but is small
ALWAYS = 2**28  # bytes that any archive may hold
DEEPEST = 1000  # blocks in one array


@dataclass(frozen=True)
class Stored:
    """A tensor in a file.

    Attributes:
        shape: as the file states it
        read: returns its numbers
        whole: it is of whole numbers
    """

    shape: Shape
    read: Callable[[], Tensor]
    whole: bool = False

    def channels_first(self) -> "Stored":
        """Return a kernel of patches as (D, C, P, P), which MLX stores as (D, P, P, C)."""
        width, *sides, channels = self.shape if len(self.shape) == 4 else (0, 0, 1, 0)
        if sides[0] != sides[1] or sides[0] <= SMALLEST or channels > SMALLEST:
            return self
        turned = lambda: self.read().permute(0, 3, 1, 2)  # noqa: E731
        return replace(self, shape=(width, channels, *sides), read=turned)


@dataclass(frozen=True)
class Content:
    """All that one container holds.

    Attributes:
        kind: of container
        root: nested dictionaries whose leaves are `Stored` tensors and plain values
        metadata: texts in the header of a safetensors file
    """

    kind: Kind
    root: Fields
    metadata: dict[str, str] = field(default_factory=dict)


def read_safetensors(path: Path) -> Content:
    """Describe the tensors in one file, from its header.

    Raises:
        WeightsError: it is damaged, or its header is implausibly large.
    """
    with path.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
    if length > HEADER:
        raise WeightsError(f"{path} is damaged: its header has an implausible {length:,} bytes")
    if (size := path.stat().st_size) < 8 + length:
        raise WeightsError(
            f"{path} is cut short: its header alone has {length:,} bytes, the file {size:,}; "
            "download it again"
        )
    try:
        opened: Any = safe_open(path, framework="pt")
    except SafetensorError as error:
        cut = "not fully covered" in str(error)
        reason = "it is not as long as its header states; download it again" if cut else error
        raise WeightsError(f"{path} is damaged: {reason}") from error
    found = {}
    for name in opened.keys():  # noqa: SIM118 - it is no dictionary
        part = opened.get_slice(name)
        read = partial(opened.get_tensor, name)
        found[name] = Stored(tuple(part.get_shape()), read, part.get_dtype() in INTEGERS)
    return Content("safetensors", found, opened.metadata() or {})


def read_npz(path: Path) -> Content:
    """Describe the arrays of an archive, without pickles; what a header states must be true.

    Raises:
        WeightsError: an array is damaged, or is a pickled object.
    """
    found: Fields = {}
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            name = info.filename.removesuffix(".npy")
            with readable(path, name), archive.open(info) as stream:
                old = npy.read_magic(stream) == (1, 0)
                header = npy.read_array_header_1_0 if old else npy.read_array_header_2_0
                shape, _, dtype = header(stream)
                if dtype.hasobject:
                    raise WeightsError(
                        f"{path}: {name} is a pickled object, which is unsafe to load"
                    )
                if math.prod(shape) * dtype.itemsize != info.file_size - stream.tell():
                    raise WeightsError(
                        f"{path}: {name} does not have the size that its header states"
                    )
            if name in found:
                raise WeightsError(f"{path}: tensor {name} occurs twice")
            found[name] = Stored(shape, partial(_array, path, name), dtype.kind in "iub")
    arrays: Fields = {}
    for name, stored in found.items():
        arrays |= _unstacked(name, stored)
    return Content("npz", arrays)


def _unstacked(name: str, stored: Stored) -> Fields:
    """An array of Flax's scan, which holds those of all blocks, as one for each block."""
    before, scanned, after = name.partition("/encoderblock/")
    if not scanned or not stored.shape:
        return {name: stored}
    return {
        f"{before}/encoderblock_{n}/{after}": Stored(stored.shape[1:], partial(_block, stored, n))
        for n in range(min(stored.shape[0], DEEPEST))
    }


def _block(stored: Stored, number: int) -> Tensor:
    return stored.read()[number]


def _array(path: Path, name: str) -> Tensor:
    """One array as a tensor; two bytes without a type are how bfloat16 arrives."""
    with zipfile.ZipFile(path) as archive, archive.open(f"{name}.npy") as stream:
        array = npy.read_array(stream, allow_pickle=False)
    if array.dtype.kind == "V" and array.dtype.itemsize == 2:
        return torch.from_numpy(array.view(np.uint16).copy()).view(torch.bfloat16)
    return torch.from_numpy(np.ascontiguousarray(array))


class _InSteps(io.BufferedReader):
    """A file of which no more than a header is read at once, such as a zip's list of files."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > HEADER:
            raise WeightsError(
                f"{self.name} is a zip archive whose list of files has {size:,} bytes; the limit "
                f"is {HEADER:,}"
            )
        return super().read(size)


def names_in_zip(path: Path) -> list[str]:
    """List the files in an archive, without their folders.

    Raises:
        WeightsError: it is cut short, would take far more memory or time than its size suggests,
            or its files overlap.
    """
    size = path.stat().st_size
    with _InSteps(io.FileIO(path)) as stream:
        if not zipfile.is_zipfile(stream):
            raise WeightsError(
                f"{path} is cut short: a zip archive of {size:,} bytes without its end; download "
                "it again"
            )
        with zipfile.ZipFile(stream) as archive:
            found = archive.infolist()
    if sum(info.compress_size for info in found) > size:
        raise WeightsError(f"{path} is a zip archive whose files overlap: not weights")
    total = sum(info.file_size for info in found)
    if total > max(ALWAYS, RATIO * size):
        raise WeightsError(
            f"{path} is a zip archive of {storage(size)} that unpacks to {storage(total)}: not "
            "weights; if they are, save them again without compression"
        )
    return [info.filename.rpartition("/")[2] for info in found]
