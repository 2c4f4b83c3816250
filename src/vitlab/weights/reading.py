"""What a format says of a file, and the tensors it makes of it, each checked before it is read."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from vitlab.errors import UserError
from vitlab.images import Size
from vitlab.models.config import ModelConfig
from vitlab.models.create import build
from vitlab.weights.entries import Entry
from vitlab.weights.source import Shape, Source, readable


@dataclass(frozen=True)
class Hints:
    """What the user says beside the file.

    Attributes:
        name: a model's name: the papers' (`ViT-B/16`) or timm's (`vit_base_patch16_224`)
        choices: fields of the configuration
        image_size: that the model shall have, perhaps the one that the file's positions are for
    """

    name: str = ""
    choices: dict[str, Any] = field(default_factory=dict)
    image_size: Size | None = None


@dataclass(frozen=True)
class Reading:
    """A file understood.

    Attributes:
        format: what it is, in words
        config: the model that it makes
        entries: where each of its tensors comes from
        left_out: patterns of names that the model has no use for, each with the reason
        notes: what the file did not say and was assumed
        exact: numbers keep the width that they have in the file
    """

    format: str
    config: ModelConfig
    entries: Sequence[Entry]
    left_out: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    exact: bool = False


def collect(reading: Reading, source: Source) -> dict[str, Tensor]:
    """Every tensor of the model, from a file that has all of them in the right shapes.

    Raises:
        ValueError: the first tensor that is missing, superfluous, mis-shaped or damaged.
    """
    expected = empty(reading.config)
    check(reading, source, expected)
    tensors: dict[str, Tensor] = {}
    for entry in reading.entries:
        theirs = theirs_of(entry, expected)
        pairs = zip(entry.theirs, theirs, strict=True)
        read = [source.read(name, reading.exact).reshape(shape) for name, shape in pairs]
        with readable(source.path, ", ".join(entry.theirs)):
            made = entry.read(read)
        for name, tensor in zip(entry.ours, made, strict=True):
            want = expected[name]
            if tensor.shape != want.shape or tensor.is_floating_point() != want.is_floating_point():
                raise UserError(f"{source.path}: {', '.join(entry.theirs)} do not make {name}")
            tensors[name] = tensor.contiguous()
    return tensors


def empty(config: ModelConfig) -> dict[str, Tensor]:
    """A model's state dict without memory: shapes and types."""
    with torch.device("meta"):
        return build(config).state_dict()


def theirs_of(entry: Entry, expected: dict[str, Tensor]) -> list[Shape]:
    """The shapes that an entry's tensors have in the other format."""
    written = entry.write([expected[name] for name in entry.ours])
    return [tuple(tensor.shape) for tensor in written]


def check(reading: Reading, source: Source, expected: dict[str, Tensor]) -> None:
    """Names and shapes, before any number is read."""
    made = [name for entry in reading.entries for name in entry.ours]
    if sorted(made) != sorted(expected):  # a hole in a format's table
        different = set(made) ^ set(expected)
        raise UserError(f"{source.path}: {reading.format}: no place for {sorted(different)[0]}")
    for entry in reading.entries:
        missing = [n for n in entry.theirs if n.partition("[")[0] not in source.shapes]
        if missing:
            raise UserError(f"{source.path}: tensor {missing[0]} is missing ({reading.format})")
        for name, want in zip(entry.theirs, theirs_of(entry, expected), strict=True):
            have = source.shape(name)
            padded = source.kind == "npz" and [n for n in have if n != 1] == [
                n for n in want if n != 1
            ]
            if have != want and not padded:  # some of Google's norms are (1, 1, 1, C)
                raise UserError(f"{source.path}: tensor {name} has shape {have}, not {want}")
    for name in unused(reading, source):
        if not reason(reading, name):
            raise UserError(
                f"{source.path}: tensor {name} is not part of the model ({reading.format})"
            )


def unused(reading: Reading, source: Source) -> list[str]:
    """The file's tensors that the model is not made of."""
    used = {name.partition("[")[0] for entry in reading.entries for name in entry.theirs}
    return sorted(set(source.shapes) - used)


def reason(reading: Reading, name: str) -> str:
    """Why a tensor may be left out; empty if it may not."""
    return next((why for p, why in reading.left_out.items() if re.fullmatch(p, name)), "")
