"""Other people's files, opened safely: every tensor's name and shape first, its numbers when asked.

Nothing here runs code from a file: pickles are read by PyTorch's restricted reader, arrays without
pickles, and whatever else goes wrong inside a reader becomes one line for the user.
"""

import argparse
import json
import math
import re
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.lib import format as npy
from safetensors import safe_open
from torch import Tensor

from vitlab.errors import UserError, WeightsError
from vitlab.weights.sharded import (
    CONFIG,
    HEADER,
    INDEX,
    MOST,
    PICKLED,
    PREPROCESSOR,
    TENSORS,
    stored_names,
    tensor_files,
)

Shape = tuple[int, ...]
EXPLAINED = (TENSORS, PICKLED)  # files that a config.json beside them explains
# Entries of a training checkpoint that may hold the weights, in order of preference.
WRAPPERS = ("model_ema", "state_dict_ema", "teacher", "model", "state_dict", "module")


@dataclass
class Source:
    """Tensors by name, in one file or several.

    Attributes:
        path: as the user gave it
        kind: how the tensors are stored
        shapes: of every tensor
        numbers: reads one tensor, as it is stored
        config: config.json beside the tensors, if there is one
        preprocessor: preprocessor_config.json likewise
        metadata: texts in the header of a single safetensors file
        wrapper: the entry of a checkpoint's dictionary that the tensors were found in
    """

    path: Path
    kind: Literal["npz", "safetensors", "pickle"]
    shapes: dict[str, Shape]
    numbers: Callable[[str], Tensor]
    config: dict[str, Any] = field(default_factory=dict)
    preprocessor: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)
    wrapper: str = ""

    def shape(self, name: str) -> Shape:
        """Return the shape of a tensor, or with `name[3]` of a slice; (0,) if it is missing."""
        name, _, place = name.partition("[")
        return self.shapes.get(name, (0,))[1 if place else 0 :]

    def read(self, name: str, exact: bool = False) -> Tensor:
        """Return a copy of one tensor; floating-point numbers as float32 unless `exact`.

        `name[3]` is the fourth slice of a tensor: some formats stack all layers.

        Raises:
            WeightsError: it is damaged, is not numeric, or contains NaN or infinity.
        """
        with readable(self.path, name):
            whole, _, place = name.partition("[")
            tensor = self.numbers(whole)
            tensor = tensor[int(place[:-1])] if place else tensor
            if tensor.is_floating_point():
                tensor = tensor.to(tensor.dtype if exact else torch.float32, copy=True)
            elif tensor.dtype in (torch.int64, torch.int32):
                tensor = tensor.clone()
            else:
                raise WeightsError(
                    f"{self.path}: tensor {name} has type {tensor.dtype}, not weights"
                )
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise WeightsError(f"{self.path}: tensor {name} contains NaN or infinite numbers")
        return tensor


def open_source(path: Path) -> Source:
    """Open a file, or a folder in one of the usual layouts; no tensor is read yet.

    The kind of file is recognized by its first bytes, not by its name.

    Raises:
        WeightsError: no such file, no weights in it, or it is damaged; names file and place.
    """
    folder = path if path.is_dir() else path.parent
    source = _folder(path) if path.is_dir() else _file(path)
    if path.is_dir() or path.name in EXPLAINED:  # other files stand for themselves
        source.config = _json(folder / CONFIG)
        source.preprocessor = _json(folder / PREPROCESSOR)
    if not source.shapes and not source.metadata:
        raise WeightsError(f"{path} contains no tensors")
    if len(source.shapes) > MOST:
        raise WeightsError(f"{path} has {len(source.shapes):,} tensors; the limit is {MOST:,}")
    return source


@contextmanager
def readable(path: Path, name: str = "") -> Iterator[None]:
    """Turn whatever a reader raises into one line that names the place."""
    try:
        yield
    except UserError:
        raise
    except FileNotFoundError:
        raise WeightsError(f"no such file or folder: {path}") from None
    except Exception as error:  # readers of damaged files leak exceptions of every type
        place = f"{path}: tensor {name}" if name else str(path)
        raise WeightsError(f"{place} cannot be read: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    text = str(error)
    if found := re.search(r"Unsupported (?:global|class).*?[ `](\w+(?:\.\w+)+)", text):
        return f"its pickle contains {found[1]}, which is unsafe to load"
    if "Weights only load failed" in text:
        found = re.search(r"WeightsUnpickler error:? ?([^\n.]*)", text)
        return f"not a dictionary of tensors ({found[1].strip() if found else 'a pickle'})"
    lines = text.strip().splitlines()
    return f"{lines[0] if lines else type(error).__name__}"


def _file(path: Path) -> Source:
    with readable(path):
        with path.open("rb") as stream:
            start = stream.read(9)
        if start[:2] == b"PK":
            with zipfile.ZipFile(path) as archive:
                names = archive.namelist()
            if names and all(name.endswith(".npy") for name in names):
                return _npz(path)
            return _pickle(path)
        if start[8:9] == b"{":
            source = _safetensors(path, dict.fromkeys(stored_names(path), path))
            with safe_open(path, framework="pt") as stored:
                source.metadata = stored.metadata() or {}
            return source
        if start[:1] == b"\x80":
            return _pickle(path)
    raise WeightsError(
        f"{path} is not a weights file (.safetensors, .npz, .pth, .pt and .bin are recognized by "
        "their content)"
    )


def _folder(path: Path) -> Source:
    """A folder as the Hugging Face libraries write it, in one file or in shards."""
    if (path / TENSORS).is_file() or (path / INDEX).is_file():
        return _safetensors(path, tensor_files(path))
    if (path / PICKLED).is_file():
        return _pickle(path / PICKLED)
    if (path / f"{PICKLED}.index.json").is_file():
        raise WeightsError(f"{path}: sharded pickles are unsupported: convert to safetensors")
    if (path / CONFIG).is_file():
        raise WeightsError(f"{path} has a {CONFIG}, but {TENSORS} is missing")
    files = sorted(path.glob("*.safetensors")) + sorted(path.glob("*.npz"))
    if len(files) == 1:
        return _file(files[0])
    raise WeightsError(
        f"{path} contains no model: give a finished run, a saved folder or a weights file"
    )


def _safetensors(path: Path, files: dict[str, Path]) -> Source:
    """Tensors of one file or of several, whose headers were checked."""
    shapes: dict[str, Shape] = {}
    stored: dict[Path, Any] = {}
    for name, file in files.items():
        with readable(file):
            if file not in stored:
                stored[file] = safe_open(file, framework="pt")
            shapes[name] = tuple(stored[file].get_slice(name).get_shape())
    return Source(path, "safetensors", shapes, lambda name: stored[files[name]].get_tensor(name))


def _npz(path: Path) -> Source:
    """NumPy's archive, without pickles; what a header states must be true."""
    shapes: dict[str, Shape] = {}
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            name = info.filename.removesuffix(".npy")
            with readable(path, name), archive.open(info) as stream:
                version = npy.read_magic(stream)
                old = version == (1, 0)
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
            if name in shapes:
                raise WeightsError(f"{path}: tensor {name} occurs twice")
            shapes[name] = shape

    def numbers(name: str) -> Tensor:
        with zipfile.ZipFile(path) as archive, archive.open(f"{name}.npy") as stream:
            array = npy.read_array(stream, allow_pickle=False)
        if array.dtype.kind == "V" and array.dtype.itemsize == 2:  # how bfloat16 arrives
            return torch.from_numpy(array.view(np.uint16).copy()).view(torch.bfloat16)
        return torch.from_numpy(np.ascontiguousarray(array))

    return Source(path, "npz", shapes, numbers)


def _pickle(path: Path) -> Source:
    """A file of `torch.save`, by PyTorch's restricted reader; tensors stay on the disk for now.

    A checkpoint's settings are often an `argparse.Namespace`, which only holds values.
    """
    with readable(path), torch.serialization.safe_globals([argparse.Namespace]):
        lazily = zipfile.is_zipfile(path)
        if lazily:
            with zipfile.ZipFile(path) as archive:
                if damaged := archive.testzip():
                    raise WeightsError(f"{path}: {damaged} does not match its checksum")
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=lazily)
    wrapper = ""
    if isinstance(content, dict):
        inside = (key for key in WRAPPERS if isinstance(content.get(key), dict))
        wrapper = next(inside, "")
        content = content[wrapper] if wrapper else content
    if not isinstance(content, dict):
        raise WeightsError(
            f"{path} contains a {type(content).__name__}, not a dictionary of tensors"
        )
    tensors = {
        name: value.data
        for name, value in content.items()
        if isinstance(name, str) and isinstance(value, Tensor) and not value.is_sparse
    }
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    return Source(path, "pickle", shapes, tensors.__getitem__, wrapper=wrapper)


def _json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        if file.stat().st_size > HEADER:
            raise WeightsError(f"{file} is too large for a configuration")
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise WeightsError(f"{file} is damaged: {error}") from error
    if not isinstance(content, dict):
        raise WeightsError(f"{file} is damaged: not a JSON object")
    return content
