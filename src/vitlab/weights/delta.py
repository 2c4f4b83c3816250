"""What fine-tuning changed, without the base it started from.

A model whose attention alone was fine-tuned shares two thirds of its weights with its base (Three
things, section 4): one base and a small file for each task hold them all.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from vitlab.errors import UserError
from vitlab.images import Size
from vitlab.models.config import ModelConfig
from vitlab.models.create import Model, build
from vitlab.weights.fingerprint import as_bytes, fingerprint
from vitlab.weights.save import whole_state


@dataclass(frozen=True)
class Base:
    """Which model a delta needs, and where it was.

    Attributes:
        fingerprint: what `fingerprint(model)` gives
        name: the papers' notation, ViT-B/16
        source: what `vitlab.load` was given, where that is known
        commit: of a model from the hub
        nearby: the source as seen from the delta's folder, where it was a file or folder
        classes: outputs of its classifier
        image_size: its input, in pixels
    """

    fingerprint: str
    name: str
    source: str | None
    commit: str | None
    nearby: str | None
    classes: int
    image_size: Size

    @classmethod
    def of(cls, model: Model) -> Self:
        """The identity of a model."""
        config, source = model.config, model.source or model.provenance.get("source")
        commit = model.provenance.get("commit")
        return cls(
            fingerprint=fingerprint(model),
            name=config.name,
            source=None if source is None else str(source),
            commit=None if commit is None else str(commit),
            nearby=None,
            classes=config.classes,
            image_size=config.image_size,
        )

    def __str__(self) -> str:
        place = f"{self.source}, " if self.source else ""
        return f"{self.name} ({place}fingerprint {self.fingerprint[:12]})"


@dataclass(frozen=True, eq=False)
class Delta:
    """The tensors of a model that are not, bit for bit, those of its base.

    Attributes:
        config: the whole configuration of the model
        tensors: in the processor's memory; one whose shape or type changed is there whole
        base: which model the others are from
        provenance: of the model
    """

    config: ModelConfig
    tensors: dict[str, Tensor]
    base: Base
    provenance: dict[str, Any]

    @property
    def bytes(self) -> int:
        """Size of the tensors."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def save(self, file: str | Path) -> Path:
        """Write one safetensors file, whole or not at all; `vitlab.load` reads it.

        Raises:
            ValueError: the file cannot be written; the message says why.
        """
        from vitlab.weights.delta_file import write  # it builds on this file

        return write(self, Path(file))

    def apply(self, base: Model) -> Any:
        """The model, in evaluation mode, on the base's device; the base stays as it is.

        Raises:
            ValueError: it is not the base that the delta was made from.
        """
        self.check(base)
        device = next(iter(whole_state(base).values())).device
        return self.onto(
            {name: tensor.to("cpu", copy=True) for name, tensor in whole_state(base).items()}
        ).to(device)

    def check(self, base: Model) -> None:
        """Refuse any base but the one that the delta was made from."""
        found = Base.of(base)
        if found.fingerprint != self.base.fingerprint:
            raise UserError(f"the wrong base: this delta is from {self.base}, not from {found}")

    def onto(self, base: Mapping[str, Tensor]) -> Model:
        """The model around tensors of its base, which it takes over instead of copying them."""
        from vitlab.weights.load import assemble  # it loads deltas, and so builds on this file

        with torch.device("meta"):
            expected = build(self.config).state_dict()
        if extra := sorted(self.tensors.keys() - expected.keys()):
            raise UserError(f"the delta's tensor {extra[0]!r} is not part of {self.config.name}")
        tensors: dict[str, Tensor] = {}
        for name, want in expected.items():
            tensor = self.tensors[name].clone() if name in self.tensors else base.get(name)
            if tensor is None or _kind(tensor) != _kind(want):
                problem = "missing" if tensor is None else f"{tensor.dtype} {tuple(tensor.shape)}"
                need = f"{want.dtype} {tuple(want.shape)}"
                raise UserError(f"delta and base do not fit: {name!r} is {problem}, not {need}")
            tensors[name] = tensor
        model = assemble(self.config, tensors)
        model.provenance = dict(self.provenance)
        return model


def delta(model: Model, base: Model) -> Delta:
    """What a model has that its base has not.

    Args:
        model: fine-tuned from the base: it may have another head, input size or type
        base: as it was loaded; where it came from is taken from its provenance

    Returns:
        A `Delta`, independent of both: `.save(file)`, `.apply(base)`; `vitlab.load(file)`.

    Raises:
        ValueError: one of them is fused.
    """
    theirs = whole_state(base)
    changed = {
        name: tensor.detach().to("cpu", copy=True).contiguous()
        for name, tensor in whole_state(model).items()
        if name not in theirs or not _same(tensor, theirs[name])
    }
    return Delta(model.config, changed, Base.of(base), dict(model.provenance))


def _same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are equal bit for bit: a NaN is itself, and -0 is not 0."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return torch.equal(as_bytes(one), as_bytes(other))


def _kind(tensor: Tensor) -> tuple[torch.Size, bool]:
    return tensor.shape, tensor.is_floating_point()
