"""PyTorch's distributed checkpoints: a folder with `.metadata` and `.distcp` files.

`torch.distributed.checkpoint.load` unpickles `.metadata`. Here that file is only described
(`inert.py`); the chunks of each tensor are read by PyTorch's restricted reader.
"""

import io
import math
from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitlab.errors import WeightsError
from vitlab.weights.containers.archives import check_sizes
from vitlab.weights.containers.contents import Content, Stored
from vitlab.weights.containers.pickled.inert import Global, Made, described
from vitlab.weights.containers.pickled.pickles import Counted, restricted
from vitlab.weights.sharded import HEADER, MOST
from vitlab.weights.source import Shape, readable

METADATA, SHARD = ".metadata", ".distcp"
ROOM = "torch.distributed.checkpoint.metadata."
DTYPES = {
    f"torch.{name}": getattr(torch, name)
    for name in ("float32", "float16", "bfloat16", "float64", "int64", "int32", "int16", "int8",
                 "uint8", "bool")
}  # fmt: skip


@dataclass(frozen=True)
class Chunk:
    """A part of a tensor, in a file.

    Attributes:
        offsets: of its first number in the tensor
        shape: of the part
        file, start, length: where it is; bytes
    """

    offsets: Shape
    shape: Shape
    file: Path
    start: int
    length: int


def read_distributed(folder: Path) -> Content:
    """Describe the tensors of a distributed checkpoint, under the keys that they were saved with.

    Raises:
        WeightsError: it is damaged, or of an unknown kind.
    """
    file = folder / METADATA
    if file.stat().st_size > HEADER:
        raise WeightsError(f"{file} is too large: {_convert(folder)}")
    with readable(file):
        top = _state(described(file.read_bytes()), "Metadata")
        tensors, places = top["state_dict_metadata"], _places(folder, top["storage_data"])
        keys = top.get("planner_data") or {}
        if len(tensors) > 3 * MOST:
            raise WeightsError(f"{file} has {len(tensors):,} entries")
        root: dict[str, Any] = {}
        for name, about in tensors.items():
            if isinstance(about, Made) and about.name == f"{ROOM}TensorStorageMetadata":
                path = keys.get(name) if isinstance(keys, dict) else None
                _put(root, path or (name,), _tensor(folder, name, about, places))
    return Content("distributed", root)


def _state(made: object, name: str) -> dict[str, Any]:
    """The attributes of one of the checkpoint's own records."""
    if not isinstance(made, Made) or not made.name.endswith(f".{name}"):
        raise ValueError(f"no {name} where one is expected")
    return dict(made.state)


def _size(made: object) -> Shape:
    """A `torch.Size`."""
    match made:
        case Made(Global("torch.Size"), (tuple(shape),)) | Made(
            Global("torch.Size"), (list(shape),)
        ):
            if all(type(number) is int and number >= 0 for number in shape):
                return tuple(shape)
    raise ValueError("something other than a size")


def _places(
    folder: Path, stored: dict[Made, Any]
) -> dict[tuple[str, Shape], tuple[Path, int, int]]:
    """Where each chunk is, by the tensor's name and the chunk's offsets."""
    places: dict[tuple[str, Shape], tuple[Path, int, int]] = {}
    taken: dict[Path, int] = defaultdict(int)
    for index, info in stored.items():
        key, place = _state(index, "MetadataIndex"), _state(info, "_StorageInfo")
        if key.get("offset") is None:  # something other than a tensor
            continue
        name, start, length = place["relative_path"], place["offset"], place["length"]
        file = folder / str(name)
        if place.get("transform_descriptors"):
            raise WeightsError(f"{folder} is compressed: {_convert(folder)}")
        if file.parent != folder or file.suffix != SHARD or file.is_symlink() or not file.is_file():
            raise WeightsError(f"{folder} lists {name!r}, which is not a {SHARD} file in it")
        size = file.stat().st_size
        taken[file] += length
        if not (start >= 0 and length > 0 and start + length <= size and taken[file] <= size):
            raise WeightsError(f"{file} is damaged: shorter than its parts; download it again")
        places[str(key["fqn"]), _size(key["offset"])] = file, start, length
    return places


def _tensor(
    folder: Path, name: str, about: Made, places: dict[tuple[str, Shape], tuple[Path, int, int]]
) -> Stored:
    """Describe one tensor, whose chunks must make up all of it."""
    state = _state(about, "TensorStorageMetadata")
    shape, kind = _size(state["size"]), state["properties"].state[0]
    dtype = DTYPES.get(kind.name) if isinstance(kind, Global) else None
    if dtype is None:
        raise WeightsError(f"{folder}: tensor {name} has an unsupported type")
    chunks = []
    for each in state["chunks"]:
        part = _state(each, "ChunkStorageMetadata")
        offsets, size = _size(part["offsets"]), _size(part["sizes"])
        if (name, offsets) not in places or len(offsets) != len(shape) or len(size) != len(shape):
            raise WeightsError(f"{folder}: a part of tensor {name} is missing")
        file, start, length = places[name, offsets]
        inside = all(o + n <= whole for o, n, whole in zip(offsets, size, shape, strict=True))
        if not inside or math.prod(size) * dtype.itemsize > length:
            raise WeightsError(f"{folder}: a part of tensor {name} does not fit")
        chunks.append(Chunk(offsets, size, file, start, length))
    if sum(math.prod(chunk.shape) for chunk in chunks) != math.prod(shape):
        raise WeightsError(f"{folder}: parts of tensor {name} are missing")
    read = partial(_numbers, shape, dtype, tuple(chunks))
    return Stored(shape, read, not dtype.is_floating_point)


def _numbers(shape: Shape, dtype: torch.dtype, chunks: tuple[Chunk, ...]) -> Tensor:
    """All of a tensor; what overlapping parts would leave out is NaN, which no model accepts."""
    whole = torch.full(shape, torch.nan if dtype.is_floating_point else 0, dtype=dtype)
    for chunk in chunks:
        with chunk.file.open("rb") as stream:
            stream.seek(chunk.start)
            raw = io.BytesIO(stream.read(chunk.length))
        check_sizes(chunk.file, raw)
        with Counted(raw) as counted:
            part = restricted(chunk.file, counted)
        if not isinstance(part, Tensor) or tuple(part.shape) != chunk.shape or part.dtype != dtype:
            raise WeightsError(f"{chunk.file}: the part at {chunk.start} is another one")
        place = tuple(slice(o, o + n) for o, n in zip(chunk.offsets, chunk.shape, strict=True))
        whole[place] = part.detach()
    return whole


def _put(root: dict[str, Any], path: tuple[object, ...], tensor: Stored) -> None:
    """Put a tensor where the checkpoint's dictionaries had it."""
    node = root
    for key in path[:-1]:
        inner = node.setdefault(str(key), {})
        if not isinstance(inner, dict):
            raise ValueError("a key of both a tensor and a dictionary")
        node = inner
    node[str(path[-1])] = tensor


def _convert(folder: Path) -> str:
    return (
        "whoever made it can convert it with python -m torch.distributed.checkpoint.format_utils "
        f"dcp_to_torch {folder} FILE"
    )
