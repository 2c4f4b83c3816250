"""What fine-tuning changed, without the base it started from.

A model whose attention alone was fine-tuned shares two thirds of its weights with its base (Three
things, section 4): one base and a small file per task store them all.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitlab.errors import WeightsError
from vitlab.models.config import ModelConfig
from vitlab.models.create import assemble
from vitlab.models.model import Model
from vitlab.weights.assembly import empty, whole_state
from vitlab.weights.formats import delta_file
from vitlab.weights.identity import Base, as_bytes


@dataclass(frozen=True, eq=False)
class Delta:
    """The tensors of a model that differ, in any bit, from those of its base.

    Attributes:
        config: the whole configuration of the model
        tensors: on the CPU; one whose shape or type changed is stored whole
        base: the model that the other tensors come from
        provenance: of the model
    """

    config: ModelConfig
    tensors: dict[str, Tensor]
    base: Base
    provenance: dict[str, Any]

    @property
    def bytes(self) -> int:
        """Size of the tensors in bytes."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def save(self, file: str | Path) -> Path:
        """Write one safetensors file, whole or not at all; `vitlab.load` reads it.

        Raises:
            DiskError: the file cannot be written; the message says why.
        """
        return delta_file.write(Path(file), self.config, self.tensors, self.base, self.provenance)

    def apply(self, base: Model) -> Model:
        """Return the model, in evaluation mode, on the base's device; the base does not change.

        Raises:
            WeightsError: this is not the base that the delta was made from.
        """
        check_base(self.base, base)
        whole = whole_state(base)
        device = next(iter(whole.values())).device
        copies = {name: tensor.to("cpu", copy=True) for name, tensor in whole.items()}
        changed = {name: tensor.clone() for name, tensor in self.tensors.items()}
        model = assemble(self.config, merged(self.config, changed, copies))
        model.provenance = dict(self.provenance)
        return model.to(device)


def delta(model: Model, base: Model) -> Delta:
    """Return what a model has that its base does not have.

    Args:
        model: fine-tuned from the base; its head, input size or type may differ
        base: as it was loaded; its source is taken from its provenance

    Returns:
        A `Delta`, independent of both: `.save(file)`, `.apply(base)`; `vitlab.load(file)`.

    Raises:
        WeightsError: one of them is fused.
    """
    theirs = whole_state(base)
    changed = {
        name: tensor.detach().to("cpu", copy=True).contiguous()
        for name, tensor in whole_state(model).items()
        if name not in theirs or not _equal(tensor, theirs[name])
    }
    return Delta(model.config, changed, Base.of(base), dict(model.provenance))


def check_base(wanted: Base, base: Model) -> None:
    """Refuse any base but the one that a delta was made from.

    Raises:
        WeightsError: the fingerprints differ; the message names both models.
    """
    found = Base.of(base)
    if found.fingerprint != wanted.fingerprint:
        raise WeightsError(f"wrong base: this delta was made from {wanted}, not from {found}")


def merged(
    config: ModelConfig, changed: Mapping[str, Tensor], base: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return the tensors of a model: the changed ones, and the base's for all others.

    Raises:
        WeightsError: a tensor is missing, unknown, or of another shape.
    """
    expected = empty(config)
    if extra := sorted(changed.keys() - expected.keys()):
        raise WeightsError(f"the delta's tensor {extra[0]!r} is not part of {config.name}")
    tensors: dict[str, Tensor] = {}
    for name, want in expected.items():
        tensor = changed[name] if name in changed else base.get(name)
        if tensor is None or _kind(tensor) != _kind(want):
            problem = "missing" if tensor is None else f"{tensor.dtype} {tuple(tensor.shape)}"
            need = f"{want.dtype} {tuple(want.shape)}"
            raise WeightsError(f"delta and base do not match: {name!r} is {problem}, not {need}")
        tensors[name] = tensor
    return tensors


def _equal(one: Tensor, other: Tensor) -> bool:
    """Equality of every bit: a NaN equals itself, and -0 differs from 0."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return torch.equal(as_bytes(one), as_bytes(other))


def _kind(tensor: Tensor) -> tuple[torch.Size, bool]:
    return tensor.shape, tensor.is_floating_point()
