"""The tensors of a TorchScript archive, such as OpenAI's CLIP, without the program in it.

`torch.jit.load` restores code. Here the archive's `data.pkl` is only described (`inert.py`): a
module is a dictionary of its attributes, a tensor names a file of numbers in the archive.
"""

import math
import zipfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitlab.errors import WeightsError
from vitlab.weights.containers.contents import Content, Stored
from vitlab.weights.containers.pickled.inert import Global, Made, Outside, described
from vitlab.weights.containers.pickled.pickles import check_archive
from vitlab.weights.sharded import HEADER, MOST
from vitlab.weights.source import Shape

CONSTANTS = "constants.pkl"  # in every archive of TorchScript, and in none of torch.save
MODULE = "__torch__."
TENSOR = "torch._utils._rebuild_tensor_v2"
DEEPEST = 50  # modules within one another
DTYPES = {
    "torch.FloatStorage": torch.float32, "torch.HalfStorage": torch.float16,
    "torch.BFloat16Storage": torch.bfloat16, "torch.DoubleStorage": torch.float64,
    "torch.LongStorage": torch.int64, "torch.IntStorage": torch.int32,
    "torch.ShortStorage": torch.int16, "torch.CharStorage": torch.int8,
    "torch.ByteStorage": torch.uint8, "torch.BoolStorage": torch.bool,
}  # fmt: skip


def read_torchscript(path: Path) -> Content:
    """Describe the parameters and buffers of a scripted or traced module, by their usual names.

    Raises:
        WeightsError: it is damaged.
    """
    check_archive(path)
    with zipfile.ZipFile(path) as archive:
        stored = [i for i in archive.infolist() if i.compress_type == zipfile.ZIP_STORED]
        sizes = {info.filename: info.file_size for info in stored}  # numbers are not compressed
        place = next(n for n in archive.namelist() if n.endswith(CONSTANTS)).removesuffix(CONSTANTS)
        if sizes.get(f"{place}data.pkl", HEADER + 1) > HEADER:
            raise WeightsError(f"{path} is damaged: its data.pkl is missing or too large")
        if f"{place}byteorder" in sizes and archive.read(f"{place}byteorder") != b"little":
            raise WeightsError(f"{path} was written on a machine with another order of bytes")
        root = described(archive.read(f"{place}data.pkl"))
    found: dict[str, Any] = {}
    for name, each in _tensors(path, root):
        if len(found) > MOST:
            raise WeightsError(f"{path} has more than {MOST:,} tensors")
        found[name] = stored_in(path, f"{place}data/", each, sizes)
    return Content("torchscript", found)


def _tensors(path: Path, root: object) -> Iterator[tuple[str, Made]]:
    """The tensors of a module and of the modules in it, each of which may occur many times."""
    waiting, count = [("", root)], 0
    while waiting:
        prefix, module = waiting.pop()
        if not isinstance(module, Made) or not isinstance(module.state, dict):
            continue
        for name, value in module.state.items():
            count += 1
            if count > 10 * MOST or prefix.count(".") > DEEPEST:
                raise WeightsError(f"{path} has too many modules, or too deep ones")
            if isinstance(value, Made) and isinstance(name, str):
                if value.name == TENSOR:
                    yield prefix + name, value
                elif value.name.startswith(MODULE):
                    waiting.append((f"{prefix}{name}.", value))


def stored_in(path: Path, folder: str, tensor: Made, sizes: dict[str, int]) -> Stored:
    """Describe one tensor of an archive; what it claims must fit the file with its numbers.

    Args:
        path: of the archive
        folder: in it, with a file of numbers per storage
        tensor: as the pickle would make it
        sizes: bytes of the archive's files that are not compressed

    Raises:
        WeightsError: it does not fit.
    """
    match tensor.args:
        case (
            Outside(("storage", Global(kind), str(key), _, int(count))),
            int(offset),
            tuple(shape),
            tuple(strides),
            *_,
        ) if kind in DTYPES and len(shape) == len(strides):
            numbers = (count, offset, *shape, *strides)
            if all(type(number) is int and number >= 0 for number in numbers):
                dtype, file = DTYPES[kind], f"{folder}{key}"
                last = offset + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
                fits = last < count or not math.prod(shape)
                # no number is shown twice: an expanded tensor could be larger than any memory
                fits = fits and math.prod(shape) <= count
                if fits and count * dtype.itemsize == sizes.get(file):
                    read = partial(_numbers, path, file, dtype, (offset, shape, strides))
                    whole = not dtype.is_floating_point
                    return Stored(shape, read, whole)
    raise WeightsError(f"{path} is damaged: a tensor does not fit its numbers")


def _numbers(path: Path, file: str, dtype: torch.dtype, view: tuple[int, Shape, Shape]) -> Tensor:
    with zipfile.ZipFile(path) as archive:
        raw = bytearray(archive.read(file))
    offset, shape, strides = view
    if not math.prod(shape):
        return torch.zeros(shape, dtype=dtype)
    return torch.frombuffer(raw, dtype=dtype).as_strided(shape, strides, offset)
