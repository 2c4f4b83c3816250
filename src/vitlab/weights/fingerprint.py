"""Which model this is: one number over its configuration and every bit of its weights."""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import MISSING, fields

import torch
from torch import Tensor

from vitlab.models.config import ModelConfig
from vitlab.models.create import Model
from vitlab.weights.save import description, whole_state


def fingerprint(model: Model) -> str:
    """The sha256 of a model, in hexadecimal: the same on every device and in every version.

    It covers the kind of model, each field of its configuration that is not at its default (so
    that a field added later changes nothing), and of every tensor, in the order of the names, the
    name, the type, the shape and the bytes.

    Raises:
        ValueError: the model is fused.
    """
    tensors = whole_state(model)
    digest = hashlib.sha256(_canonical(model.config))
    for line in _lines(tensors.items()):
        digest.update(line)
    return digest.hexdigest()


def tensor_sha256(tensor: Tensor) -> str:
    """The sha256 of one tensor's type, shape and bytes, in hexadecimal."""
    digest = hashlib.sha256(_label("", tensor))
    digest.update(as_bytes(tensor).numpy().data)
    return digest.hexdigest()


def as_bytes(tensor: Tensor) -> Tensor:
    """What a tensor holds, in the processor's memory and in order: (bytes,) of uint8."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def _canonical(config: ModelConfig) -> bytes:
    values = description(config)
    standard = {
        field.name: list(field.default) if isinstance(field.default, tuple) else field.default
        for field in fields(config)
        if field.default is not MISSING
    }
    chosen = {k: v for k, v in values["model"].items() if k not in standard or v != standard[k]}
    text = json.dumps([values["kind"], chosen], sort_keys=True, separators=(",", ":"))
    return text.encode()


def _lines(tensors: Iterable[tuple[str, Tensor]]) -> Iterable[bytes | memoryview]:
    for name, tensor in sorted(tensors):
        yield _label(name, tensor)
        yield as_bytes(tensor).numpy().data


def _label(name: str, tensor: Tensor) -> bytes:
    return f"\n{json.dumps(name)} {tensor.dtype} {tuple(tensor.shape)}\n".encode()
