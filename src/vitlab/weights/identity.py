"""Identity of a model: its description, its fingerprint, the checksums of its tensors."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from vitlab import values
from vitlab.errors import WeightsError
from vitlab.images import chosen_over
from vitlab.models.configs.model_config import ModelConfig
from vitlab.models.configs.resnet_config import ResNetConfig
from vitlab.models.configs.tokenizer_config import TokenizerConfig
from vitlab.models.configs.vit_config import ViTConfig
from vitlab.models.model import Model
from vitlab.values import fits, shown
from vitlab.weights.assembly import whole_state
from vitlab.weights.delta_base import DeltaBase
from vitlab.weights.formats.entry import Entry
from vitlab.weights.sharded import Fields

KINDS: dict[str, type[ModelConfig]] = {
    each.kind: each for each in (ViTConfig, ResNetConfig, TokenizerConfig)
}

RETIRED = {"class_blocks": 0, "stem_padding": 0, "talking_heads": False}
"""Fields that earlier versions wrote, each with the one value that still has a model."""

TRAINING: dict[str, Any] = {  # the types of what evaluations read of a provenance
    "data": str, "fingerprint": str, "data_files": str, "fold": str, "held_out": float,
    "validation": float, "multi_label": bool, "moved": dict,
}  # fmt: skip


def base_of(model: Model) -> DeltaBase:
    """Return the identity of a model, on which a delta may be based.

    Raises:
        WeightsError: the model is fused.
    """
    config = model.config
    about = model.provenance
    source = model.source or about.get("source")
    commit = about.get("commit")
    return DeltaBase(
        fingerprint(model),
        config.name,
        source and str(source),
        commit and str(commit),
        None,
        config.classes,
        config.image_size,
    )


def description(config: ModelConfig) -> Fields:
    """Return a configuration as JSON can hold it, with its name and kind."""
    return {"name": config.name, "kind": config.kind, "model": config.as_dict()}


def described(content: Fields, choices: Fields) -> ModelConfig:
    """Return the configuration of a `description`, with some fields replaced.

    Raises:
        OptionError: an unknown field, or a value that cannot be.
        KeyError: the description is damaged; TypeError likewise.
    """
    model = {key: each for key, each in content["model"].items() if RETIRED.get(key, ...) != each}
    return KINDS[content["kind"]].from_dict(chosen_over(model, choices))


def check_provenance(provenance: object, place: object) -> Fields:
    """Return what a file says of a model's training, of which evaluations make use.

    Args:
        provenance: as JSON has it
        place: of the file, for messages

    Raises:
        WeightsError: it is no object, or a fact in it is of another type.
    """
    if not isinstance(provenance, dict):
        raise WeightsError(f"{place} has a provenance that is no object: {shown(provenance)}")
    for name, kind in TRAINING.items():
        value = provenance.get(name)
        if value is not None and not fits(value, kind):
            raise WeightsError(f"{place} says {name}={shown(value)}, not {values.described(kind)}")
    moved = provenance.get("moved") or {}
    if not all(fits(each, tuple[int, ...]) for each in moved.values()):
        raise WeightsError(f"{place} says moved={shown(moved)}, not lists of numbers by split")
    return dict(provenance)


def fingerprint(model: Model) -> str:
    """Return the sha256 of a model in hexadecimal: equal on every device and in every version.

    It covers the kind of model, each field of its configuration that is not at its default (so
    that a field added later changes nothing) but `center`, and the name, type, shape and bytes of
    every tensor, in the order of the names.

    Raises:
        WeightsError: the model is fused.
    """
    config = model.config
    usual = {each.name: each.default for each in fields(config)}
    usual["center"] = config.center
    values = {k: v for k, v in config.as_dict().items() if getattr(config, k) != usual[k]}
    digest = hashlib.sha256(_as_json([config.kind, values]))
    for name, tensor in sorted(whole_state(model).items()):
        _add(digest, name, tensor)
    return digest.hexdigest()


def feature_fingerprint(model: Model) -> str:
    """Return what decides the features of an image: `fingerprint`, and `center`."""
    return fingerprint(model) + model.config.center


def checksum(content: Fields) -> str:
    """Return the sha256 of what JSON can hold, whatever the order of its keys."""
    return hashlib.sha256(_as_json(content)).hexdigest()


def checksums(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Return the sha256 of each tensor's type, shape and bytes."""
    return {name: _add(hashlib.sha256(), "", each).hexdigest() for name, each in tensors.items()}


def checked(entry: Entry, sums: Fields, file: str, advice: str = "") -> Entry:
    """Return an entry that gives tensors only if every bit is as it was when they were saved.

    Args:
        entry: of a file
        sums: the sha256 of each of our tensors
        file: with which the message of a mismatch begins
        advice: with which it ends
    """

    def read(tensors: list[Tensor]) -> list[Tensor]:
        made = entry.read(tensors)
        for name, found in checksums(dict(zip(entry.ours, made, strict=True))).items():
            if found != sums.get(name):
                raise WeightsError(f"{file}: tensor {name!r} does not match its checksum{advice}")
        return made

    return entry._replace(read=read)


def as_bytes(tensor: Tensor) -> Tensor:
    """Return the bytes of a tensor in order, on the CPU: (bytes,) of uint8."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def _add(digest: "hashlib._Hash", name: str, tensor: Tensor) -> "hashlib._Hash":
    """Hash a tensor's name, type, shape and bytes."""
    digest.update(f"\n{json.dumps(name)} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
    digest.update(as_bytes(tensor).numpy().data)
    return digest


def _as_json(content: object) -> bytes:
    """The one text of what JSON can hold, whose keys are first made what they are there."""
    plain = json.loads(json.dumps(content))
    return json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()
