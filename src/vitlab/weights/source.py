"""Tensors of a file: every name and shape first, the numbers when asked.

`weights/containers/` opens files and folders; the rooms of `weights/formats/` read what is in them.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from vitlab.errors import UserError, WeightsError
from vitlab.models.seen import NOTHING, Seen
from vitlab.weights.sharded import Fields

Shape = tuple[int, ...]
Kind = Literal["npz", "safetensors", "pickle"]
WHOLE = (torch.int64, torch.int32)  # types of whole numbers that a model has


@dataclass
class StoredTensors:
    """Tensors by name, in one file or several.

    Attributes:
        path: as the user gave it
        kind: how the tensors are stored
        shapes: of every tensor
        numbers: reads one tensor, as it is stored
        config: config.json beside the tensors, if there is one
        preprocessor: preprocessor_config.json likewise
        open_clip: open_clip_config.json likewise
        adapter: adapter_config.json likewise
        metadata: texts in the header of a single safetensors file
        record: `arch` and `args` of a checkpoint, if it has them
        stored: names as they are in the file, of those tensors whose names were shortened
        counters: names of scalars that are whole numbers, which no output depends on
        notes: what the user should know, a line each
        seen: what the model has learned from, as the file beside the tensors says
    """

    path: Path
    kind: Kind
    shapes: dict[str, Shape]
    numbers: Callable[[str], Tensor]
    config: Fields = field(default_factory=dict)
    preprocessor: Fields = field(default_factory=dict)
    open_clip: Fields = field(default_factory=dict)
    adapter: Fields = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)
    record: Fields = field(default_factory=dict)
    stored: dict[str, str] = field(default_factory=dict)
    counters: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    seen: Seen = field(default_factory=lambda: NOTHING)

    def shape(self, name: str) -> Shape:
        """Return the shape of a tensor; (0,) if it is missing."""
        return self.shapes.get(name, (0,))

    def in_file(self, name: str) -> str:
        """Return the name that a tensor has in the file."""
        return self.stored.get(name, name)

    def read(self, name: str, exact: bool = False) -> Tensor:
        """Return a copy of one tensor; floating-point numbers as float32 unless `exact`.

        Raises:
            WeightsError: it is damaged, is not numeric, or contains NaN or infinity.
        """
        with readable(self.path, name):
            tensor = self.numbers(name)
            if tensor.is_floating_point():
                tensor = tensor.to(tensor.dtype if exact else torch.float32, copy=True)
            elif tensor.dtype in WHOLE:
                tensor = tensor.clone()
            else:
                raise WeightsError(
                    f"{self.path}: tensor {name} has type {tensor.dtype}, not weights"
                )
        if tensor.is_floating_point() and not all_finite(tensor):
            raise WeightsError(f"{self.path}: tensor {name} contains NaN or infinite numbers")
        return tensor


def all_finite(tensor: Tensor) -> bool:
    """Return whether no number of a tensor is NaN or infinite.

    A sum says so in one pass, a tenth of the time of looking at each number: it is finite only if
    they all are. It may overflow though they are, so only then are they looked at.
    """
    return bool(tensor.sum(dtype=torch.float32).isfinite()) or bool(tensor.isfinite().all())


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
        lines = str(error).strip().splitlines()
        reason = lines[0] if lines else type(error).__name__
        raise WeightsError(f"{place} cannot be read: {reason}") from error
