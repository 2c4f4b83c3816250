"""Which model this is: its description, and one number for its configuration and weights."""

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Any, Self

import torch
from torch import Tensor

from vitlab.images import Size, chosen_over
from vitlab.models.config import ModelConfig, ResNetConfig, TokenizerConfig, ViTConfig
from vitlab.models.model import Model
from vitlab.weights.assembly import whole_state

KINDS: dict[str, type[ModelConfig]] = {
    each.kind: each for each in (ViTConfig, ResNetConfig, TokenizerConfig)
}


@dataclass(frozen=True)
class Base:
    """The model that a delta needs, and where it was.

    Attributes:
        fingerprint: the result of `fingerprint(model)`
        name: the papers' notation, ViT-B/16
        source: the argument of `vitlab.load`, if known
        commit: of a model from the Hugging Face Hub
        nearby: the source relative to the delta's folder, if it was a file or folder
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
        """Return the identity of a model.

        Raises:
            WeightsError: the model is fused.
        """
        config, found = model.config, model.provenance
        places = model.source or found.get("source"), found.get("commit")
        source, commit = (None if each is None else str(each) for each in places)
        mark, size = fingerprint(model), config.image_size
        return cls(mark, config.name, source, commit, None, config.classes, size)

    def __str__(self) -> str:
        place = f"{self.source}, " if self.source else ""
        return f"{self.name} ({place}fingerprint {self.fingerprint[:12]})"


def description(config: ModelConfig) -> dict[str, Any]:
    """Return a configuration as JSON can hold it, with its name and kind."""
    return {"name": config.name, "kind": config.kind, "model": config.as_dict()}


def described(content: dict[str, Any], choices: dict[str, Any]) -> ModelConfig:
    """Return the configuration of a `description`, with some fields replaced.

    One without `center` is of the time when evaluation's box lay at fractions of pixels.

    Raises:
        OptionError: an unknown field, or a value that cannot be.
        KeyError: the description is damaged; TypeError likewise.
    """
    found = {"center": "exact"} | content["model"]
    return KINDS[content["kind"]].from_dict(chosen_over(found, choices))


def fingerprint(model: Model) -> str:
    """Return the sha256 of a model in hexadecimal: equal on every device and in every version.

    It covers the kind of model, each field of its configuration that is not at its default (so
    that a field added later changes nothing) but `center`, and the name, type, shape and bytes of
    every tensor, in the order of the names.

    Raises:
        WeightsError: the model is fused.
    """
    digest = hashlib.sha256(_canonical(model.config))
    for line in _lines(whole_state(model).items()):
        digest.update(line)
    return digest.hexdigest()


def feature_fingerprint(model: Model) -> str:
    """Return what decides the features of an image: `fingerprint`, and `center`."""
    return fingerprint(model) + model.config.center


def tensor_sha256(tensor: Tensor) -> str:
    """Return the sha256 of one tensor's type, shape and bytes, in hexadecimal."""
    digest = hashlib.sha256(_label("", tensor))
    digest.update(as_bytes(tensor).numpy().data)
    return digest.hexdigest()


def as_bytes(tensor: Tensor) -> Tensor:
    """Return the bytes of a tensor in order, on the CPU: (bytes,) of uint8."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def _canonical(config: ModelConfig) -> bytes:
    values = description(config)
    del values["model"]["center"]
    usual = {each.name: each.default for each in fields(config)}
    usual = {k: list(v) if isinstance(v, tuple) else v for k, v in usual.items()}
    chosen = {k: v for k, v in values["model"].items() if v != usual[k]}
    return json.dumps([values["kind"], chosen], sort_keys=True, separators=(",", ":")).encode()


def _lines(tensors: Iterable[tuple[str, Tensor]]) -> Iterator[bytes | memoryview]:
    for name, tensor in sorted(tensors):
        yield _label(name, tensor)
        yield as_bytes(tensor).numpy().data


def _label(name: str, tensor: Tensor) -> bytes:
    return f"\n{json.dumps(name)} {tensor.dtype} {tuple(tensor.shape)}\n".encode()
