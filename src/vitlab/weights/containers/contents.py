"""What a container holds: nested dictionaries of plain values and tensors that are not yet read."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitlab.errors import WeightsError
from vitlab.weights.containers.pickled.allowed import Array, Fields
from vitlab.weights.sharded import MOST
from vitlab.weights.source import Kind, Shape

DEEPEST = 12  # dictionaries and lists within one another
LARGEST = 10 * MOST  # values in one file
SMALLEST = 4  # what is less than a patch's side, and as many channels as MLX's images have


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


@dataclass(frozen=True)
class Content:
    """All that one container holds.

    Attributes:
        kind: of container
        root: nested dictionaries whose leaves are `Stored` tensors and plain values
        metadata: texts in the header of a safetensors file
    """

    kind: Kind
    root: Mapping[str, Any]
    metadata: dict[str, str] = field(default_factory=dict)


@dataclass
class Plain:
    """Turn what a restricted reader returns into plain values and `Stored` tensors.

    A small file can describe a huge tree by naming one part many times, so values are counted.

    Attributes:
        path: for messages
        left: how many more values are allowed
    """

    path: Path
    left: int = LARGEST

    def of(self, value: object, depth: int = 0) -> Any:
        """Return the value itself, or None for one that is neither plain nor a tensor.

        Raises:
            WeightsError: too many values.
        """
        self.left -= 1
        if self.left < 0:
            raise WeightsError(f"{self.path} has more than {LARGEST:,} values")
        if isinstance(value, Fields):
            value = value.values
        if isinstance(value, Array):
            value = value.numbers()
            value = None if value is None else torch.from_numpy(value.astype(value.dtype.str[1:]))
        if isinstance(value, Tensor):
            return stored(value)
        if value is None or isinstance(value, str | int | float):
            return value
        if isinstance(value, torch.dtype | torch.device):
            return str(value)
        if depth == DEEPEST:
            return None
        if isinstance(value, Mapping):
            return {_key(key): self.of(inner, depth + 1) for key, inner in value.items()}
        if isinstance(value, list | tuple | set):
            return [self.of(inner, depth + 1) for inner in value]
        return None


def stored(tensor: Tensor) -> Stored | None:
    """Describe a tensor that was read; None for one of an unusual layout."""
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
        return None
    data = tensor.detach()
    whole = not (data.is_floating_point() or data.is_complex())
    return Stored(tuple(data.shape), lambda: data, whole)


def channels_first(found: Stored) -> Stored:
    """Return a kernel of patches as PyTorch stores it, (D, C, P, P), not as MLX: (D, P, P, C)."""
    width, *sides, channels = found.shape if len(found.shape) == 4 else (0, 0, 1, 0)
    if sides[0] != sides[1] or sides[0] <= SMALLEST or channels > SMALLEST:
        return found
    shape = (width, channels, *sides)
    return replace(found, shape=shape, read=lambda: found.read().permute(0, 3, 1, 2))


def _key(key: object) -> str:
    return key if isinstance(key, str) else f"{key}" if isinstance(key, int) else "?"
