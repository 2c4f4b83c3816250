"""Files that hold tensors by name and nothing else: safetensors, and NumPy's archives."""

import math
import zipfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.lib import format as npy
from safetensors import safe_open
from torch import Tensor

from vitlab.errors import WeightsError
from vitlab.weights.containers.contents import Content, Stored
from vitlab.weights.sharded import stored_names
from vitlab.weights.source import Shape, readable

INTEGERS = ("I64", "I32", "I16", "I8", "U8", "U16", "U32", "U64", "BOOL")


def read_safetensors(path: Path) -> Content:
    """Read the header of one file.

    Raises:
        WeightsError: it is damaged or too large.
    """
    found = read_shards(dict.fromkeys(stored_names(path), path))
    with readable(path), safe_open(path, framework="pt") as stored:
        return Content("safetensors", found.root, stored.metadata() or {})


def read_shards(files: dict[str, Path]) -> Content:
    """Describe tensors of one file or of several, whose headers were checked."""
    found: dict[str, Any] = {}
    opened: dict[Path, Any] = {}
    for name, file in files.items():
        with readable(file):
            if file not in opened:
                opened[file] = safe_open(file, framework="pt")
            part = opened[file].get_slice(name)
            whole = part.get_dtype() in INTEGERS
            read = partial(opened[file].get_tensor, name)
            found[name] = Stored(tuple(part.get_shape()), read, whole)
    return Content("safetensors", found)


def read_npz(path: Path) -> Content:
    """Describe NumPy's archive, without pickles; what a header states must be true.

    Raises:
        WeightsError: an array is damaged, or is a pickled object.
    """
    found: dict[str, Any] = {}
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            name = info.filename.removesuffix(".npy")
            with readable(path, name), archive.open(info) as stream:
                shape, dtype = _header(stream)
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
    return Content("npz", found)


def _header(stream: Any) -> tuple[Shape, "np.dtype[Any]"]:
    old = npy.read_magic(stream) == (1, 0)
    shape, _, dtype = (npy.read_array_header_1_0 if old else npy.read_array_header_2_0)(stream)
    return shape, dtype


def _array(path: Path, name: str) -> Tensor:
    with zipfile.ZipFile(path) as archive, archive.open(f"{name}.npy") as stream:
        return as_tensor(npy.read_array(stream, allow_pickle=False))


def as_tensor(array: "np.ndarray[Any, Any]") -> Tensor:
    """Return an array as a tensor; two bytes without a type are how bfloat16 arrives."""
    if array.dtype.kind == "V" and array.dtype.itemsize == 2:
        return torch.from_numpy(array.view(np.uint16).copy()).view(torch.bfloat16)
    return torch.from_numpy(np.ascontiguousarray(array))
