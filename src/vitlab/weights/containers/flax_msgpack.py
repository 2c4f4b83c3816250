"""Flax's `.msgpack` files: nested dictionaries of arrays in MessagePack, nothing that runs.

Layout: https://github.com/msgpack/msgpack/blob/master/spec.md; arrays are its extension type 1 (3
for scalars), a packed (shape, type, bytes); larger ones are in chunks (google/flax,
flax/serialization.py). Numbers stay on the disk until they are read.
"""

import math
import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitlab.errors import WeightsError
from vitlab.weights.containers.contents import LARGEST, Content, Stored
from vitlab.weights.sharded import MOST
from vitlab.weights.source import Shape

ARRAY, SCALAR = 1, 3  # Flax's extension types
DEEPEST = 30  # dictionaries and lists within one another
CHUNKED = "__msgpack_chunked_array__"
TYPES = ("float32", "float16", "bfloat16", "float64", "int64", "int32", "int16", "int8", "uint8",
         "bool")  # fmt: skip
# How many bytes the length of a text, of bytes, of an extension, a list or a dictionary has.
LENGTHS = {
    0xC4: 1, 0xC5: 2, 0xC6: 4, 0xC7: 1, 0xC8: 2, 0xC9: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4, 0xDC: 2,
    0xDD: 4, 0xDE: 2, 0xDF: 4,
}  # fmt: skip
NUMBERS = {
    0xCA: ">f", 0xCB: ">d", 0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q", 0xD0: ">b", 0xD1: ">h",
    0xD2: ">i", 0xD3: ">q",
}  # fmt: skip
CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}
OF_TRANSFORMERS = ("patch_embeddings/projection/kernel", "embeddings/patch_embedding/kernel")


class Span(NamedTuple):
    """Bytes of the file that are not yet read."""

    start: int
    length: int


def is_msgpack(start: bytes) -> bool:
    """Return whether a file begins with a dictionary whose first key is text."""
    key = {0xDE: 3, 0xDF: 5}.get(start[0], 1 if 0x81 <= start[0] <= 0x8F else 0)
    return bool(key) and len(start) > key and (0xA0 <= start[key] <= 0xBF or start[key] == 0xD9)


def read_msgpack(path: Path) -> Content:
    """Describe the arrays of a file, whose names are the keys that lead to them: `head/kernel`.

    Raises:
        WeightsError: it is damaged, or has the unsupported names of transformers.
    """
    with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
        decoder = _Decoder(path, data)
        root = decoder.value(0)
        if decoder.place != len(data) or not isinstance(root, dict):
            raise WeightsError(f"{path} is damaged: it is not one dictionary")
    found = dict(_leaves(root, ""))
    if any(name.endswith(OF_TRANSFORMERS) for name in found):
        raise WeightsError(
            f"{path} is a Flax model of transformers, whose names are unsupported: give the "
            "model.safetensors or pytorch_model.bin of the same model"
        )
    if len(found) > MOST:
        raise WeightsError(f"{path} has {len(found):,} tensors; the limit is {MOST:,}")
    return Content("msgpack", found)


@dataclass
class _Decoder:
    """A place in a file, from which values are read one after the other."""

    path: Path
    data: mmap.mmap
    place: int = 0
    count: int = 0

    def take(self, length: int) -> Span:
        """Return the next bytes."""
        if not 0 <= length <= len(self.data) - self.place:
            raise WeightsError(f"{self.path} is cut short; download it again")
        self.place += length
        return Span(self.place - length, length)

    def bytes_of(self, length: int) -> bytes:
        start, length = self.take(length)
        return self.data[start : start + length]

    def value(self, depth: int) -> Any:
        """Read one value; arrays are `Stored`, other bytes a `Span`."""
        self.count += 1
        if self.count > LARGEST or depth > DEEPEST:
            raise WeightsError(f"{self.path} has too many values, or too deep ones")
        kind = self.bytes_of(1)[0]
        if kind < 0x80 or kind >= 0xE0:
            return kind if kind < 0x80 else kind - 0x100
        if kind in CONSTANTS:
            return CONSTANTS[kind]
        if kind in NUMBERS:
            form = NUMBERS[kind]
            return struct.unpack(form, self.bytes_of(struct.calcsize(form)))[0]
        if kind < 0xC0:
            count = kind & (0x1F if kind >= 0xA0 else 0x0F)
        elif 0xD4 <= kind <= 0xD8:
            count = 1 << (kind - 0xD4)
        elif kind in LENGTHS:
            count = int.from_bytes(self.bytes_of(LENGTHS[kind]))
        else:
            raise WeightsError(f"{self.path} is damaged: an unknown kind of value, {kind:#x}")
        return self._several(kind, count, depth)

    def _several(self, kind: int, count: int, depth: int) -> Any:
        """Read text, bytes, an extension, a list or a dictionary."""
        if 0xA0 <= kind <= 0xBF or 0xD9 <= kind <= 0xDB:
            return str(self.bytes_of(count), "utf-8")
        if 0xC4 <= kind <= 0xC6:
            return self.take(count)
        if 0xC7 <= kind <= 0xC9 or 0xD4 <= kind <= 0xD8:
            return self._extension(self.bytes_of(1)[0], count, depth)
        if 0x90 <= kind <= 0x9F or kind in (0xDC, 0xDD):
            return [self.value(depth + 1) for _ in range(count)]
        found: dict[object, Any] = {}
        for _ in range(count):
            key = self.value(depth + 1)
            found[key] = self.value(depth + 1)
        return _joined(self.path, found) if CHUNKED in found else found

    def _extension(self, code: int, length: int, depth: int) -> Any:
        end = self.place + length
        if code not in (ARRAY, SCALAR):
            self.take(length)
            return None
        match self.value(depth + 1):
            case [list(shape), str() | Span() as name, Span() as raw] if self.place == end:
                text = (
                    name if isinstance(name, str) else str(self.data[name[0] : sum(name)], "ascii")
                )
                size = 2 if text == "bfloat16" else np.dtype(text).itemsize if text in TYPES else 0
                sound = all(type(number) is int and number >= 0 for number in shape)
                if size and sound and math.prod(shape) * size == raw.length:
                    read = partial(_numbers, self.path, raw, text, tuple(shape))
                    return Stored(tuple(shape), read, "float" not in text)
        raise WeightsError(f"{self.path} is damaged: an array does not fit its bytes")


def _numbers(path: Path, raw: Span, kind: str, shape: Shape) -> Tensor:
    with path.open("rb") as stream:
        stream.seek(raw.start)
        content = bytearray(stream.read(raw.length))
    dtype: torch.dtype = getattr(torch, kind)
    if not content:
        return torch.zeros(shape, dtype=dtype)
    return torch.frombuffer(content, dtype=dtype).reshape(shape)


def _joined(path: Path, found: dict[object, Any]) -> Stored:
    """An array in chunks, each of which is flat."""
    match found:
        case {"shape": dict(sizes), "chunks": dict(parts)}:
            shape = tuple(sizes[str(place)] for place in range(len(sizes)))
            chunks = [parts[str(place)] for place in range(len(parts))]
            numbers = all(type(number) is int and number >= 0 for number in shape)
            arrays = numbers and chunks and all(isinstance(each, Stored) for each in chunks)
            if arrays and sum(math.prod(each.shape) for each in chunks) == math.prod(shape):
                return Stored(shape, partial(_whole, shape, chunks), chunks[0].whole)
    raise WeightsError(f"{path} is damaged: the chunks of an array do not fit")


def _whole(shape: Shape, chunks: list[Stored]) -> Tensor:
    return torch.cat([each.read().flatten() for each in chunks]).reshape(shape)


def _leaves(node: dict[object, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    """The arrays of a tree, by the keys that lead to them."""
    for key, value in node.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{key}/")
        elif isinstance(value, Stored):
            yield f"{prefix}{key}", value
