"""The tensors of a TorchScript archive, such as OpenAI's CLIP, without the program in it.

`torch.jit.load` restores code. Here the archive's `data.pkl` is only described (`inert.py`): a
module is a dictionary of its attributes, a tensor names a file of numbers in the archive.
"""

import math
import zipfile
from collections.abc import Callable, Iterable
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
TENSOR = "torch._utils._rebuild_tensor_v2"
PARAMETERS = (
    "torch._utils._rebuild_parameter", "torch._utils._rebuild_parameter_with_state",
    "torch.nn.parameter.Parameter",
)  # fmt: skip
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
        place = next(n for n in archive.namelist() if n.endswith(CONSTANTS)).removesuffix(CONSTANTS)
        info = archive.getinfo(f"{place}data.pkl")
        if info.file_size > HEADER or info.compress_type != zipfile.ZIP_STORED:
            raise WeightsError(f"{path} is damaged: its data.pkl is missing or too large")
        root = described(archive.read(info))
    return Content("torchscript", tensors_in(path, place, root, dict.items))


def tensors_in(
    path: Path, folder: str, root: object, inner: Callable[[dict[Any, Any]], Iterable[Any]]
) -> dict[str, Any]:
    """Describe the tensors of a module and of the modules in it, each of which may occur often.

    Args:
        path: of an archive that was checked
        folder: in it, with the pickle and a folder of numbers
        root: the module as the pickle would make it
        inner: names and values of the tensors and modules in a module's state

    Raises:
        WeightsError: it is damaged.
    """
    with zipfile.ZipFile(path) as archive:
        stored = [i for i in archive.infolist() if i.compress_type == zipfile.ZIP_STORED]
        sizes = {info.filename: info.file_size for info in stored}  # numbers are not compressed
        if f"{folder}byteorder" in sizes and archive.read(f"{folder}byteorder") != b"little":
            raise WeightsError(f"{path} was written on a machine with another order of bytes")
    found: dict[str, Any] = {}
    waiting, count = [("", root)], 0
    while waiting:
        prefix, module = waiting.pop()
        if not isinstance(module, Made) or not isinstance(module.state, dict):
            continue
        for name, value in inner(module.state):
            count += 1
            if count > 10 * MOST or len(found) > MOST or prefix.count(".") > DEEPEST:
                raise WeightsError(f"{path} has too many modules, or too deep ones")
            if isinstance(value, Made) and isinstance(name, str):
                if (tensor := _tensor(value)).name == TENSOR:
                    found[prefix + name] = stored_in(path, f"{folder}data/", tensor, sizes)
                else:
                    waiting.append((f"{prefix}{name}.", value))
    return found


def _tensor(value: Made) -> Made:
    """The tensor in a parameter; anything else is itself."""
    if value.name in PARAMETERS and isinstance(value.args, tuple) and value.args:
        return value.args[0] if isinstance(value.args[0], Made) else value
    return value


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
