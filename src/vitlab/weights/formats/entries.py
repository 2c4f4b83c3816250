"""Conversions of tensors: how ours are stored elsewhere, each written in both directions.

The shapes that a file must have are those that writing gives our own empty tensors, so that one
conversion is enough to read, to write and to check.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from math import isqrt
from typing import Any, Literal

import torch
from torch import Tensor

from vitlab.errors import WeightsError
from vitlab.models.configs.vit_config import ViTConfig
from vitlab.weights.formats.entry import Entry, Tensors
from vitlab.weights.formats.records import rules

# Of the configuration of a model, or None where only shapes are compared, and tensors.
Converting = Callable[[Any, Tensors], Tensors]


@dataclass(frozen=True, eq=False)
class StoredAs:
    """How a kind of tensor is stored in a family's files.

    Attributes:
        names: templates of their names, with `{n}` for the number of the block and so on
        read: the configuration and their tensors to ours
        write: ours to theirs
    """

    names: tuple[str, ...]
    read: Converting = lambda config, tensors: tensors
    write: Converting = lambda config, tensors: tensors


Names = dict[str, list[StoredAs]]  # by the word for a part, the ways in which it is stored


def table(text: str) -> Names:
    """Return a table of names from lines of a word and the ways in which its part is stored.

    A way is one name, several names of tensors that ours has in one, or a conversion of this file
    with the names that it is of. The first of several (`|`) is written; a file has any of them.
    """
    rows = re.sub(r"\n\s*\|", " |", text)
    return {word: [way(each) for each in ways.split("|")] for word, ways in rules(rows).items()}


def way(text: str) -> StoredAs:
    """Return one way in which a part is stored: `.qkv`, `.q .k .v` or `keyless(.q .v)`."""
    function, bracket, names = text.strip().removesuffix(")").rpartition("(")
    words = tuple(names.split())
    if bracket:
        return CONVERSIONS[function](*words)
    return stacked(*words) if len(words) > 1 else StoredAs(words)


def stacked(*names: str) -> StoredAs:
    """Store one of ours in parts: queries, keys and values, for example."""
    count = len(names)
    return StoredAs(names, lambda _, t: [torch.cat(t)], lambda _, t: list(t[0].chunk(count)))


def gridded(name: str) -> StoredAs:
    """Store positions (1, N, D) as (1, rows, columns, D)."""
    return StoredAs(
        (name,),
        lambda _, t: [t[0].reshape(1, -1, t[0].shape[-1])],
        lambda config, t: [t[0].unflatten(1, config.grid)],
    )


def joined(name: str) -> StoredAs:
    """Store queries (D, D), and keys and values (2 D, D), of attention pooling as (3 D, D)."""
    return StoredAs(
        (name,), lambda _, t: list(t[0].tensor_split([len(t[0]) // 3])), lambda _, t: [torch.cat(t)]
    )


def keyless(query: str, value: str) -> StoredAs:
    """Store the bias of queries, keys and values where keys have none: theirs is zero here.

    A bias of keys adds the same number to all logits of a query, which the softmax takes out again,
    unless keys are normalized or turned after it.
    """

    def write(config: ViTConfig, tensors: Tensors) -> Tensors:
        q, k, v = tensors[0].chunk(3)
        counts = config.qk_norm or "rope" in config.positions
        if counts and not k.is_meta and k.any():
            raise WeightsError("the format cannot represent a bias of keys, which this model has")
        return [q, v]

    return StoredAs((query, value), lambda _, t: [torch.cat([t[0], 0 * t[0], t[1]])], write)


def masked(bias: str, mask: str) -> StoredAs:
    """Store a bias beside a mask of the same shape, by which it is multiplied."""
    return StoredAs(
        (bias, mask), lambda _, t: [t[0] * t[1]], lambda _, t: [t[0], torch.ones_like(t[0])]
    )


def halves(first: str, second: str) -> StoredAs:
    """Store one classifier of two representations as two, whose scores are averaged."""
    return StoredAs(
        (first, second),
        lambda _, t: [(t[0] + t[1] if t[0].ndim == 1 else torch.cat(t, 1)) / 2],
        lambda _, t: [*t, t[0].clone()] if t[0].ndim == 1 else list((2 * t[0]).chunk(2, 1)),
    )


def patches(name: str) -> StoredAs:
    """Store a kernel (D, C, P, P) as a matrix over the pixels of a patch, (D, P * P * C)."""

    def read(config: Any, tensors: Tensors) -> Tensors:
        width, pixels = tensors[0].shape
        fits = next((n for n in (3, 1, 4) if n * isqrt(pixels // n) ** 2 == pixels), 1)
        channels = getattr(config, "channels", fits)  # without a configuration, the usual number
        side = isqrt(pixels // channels)
        return [tensors[0].reshape(width, side, side, channels).permute(0, 3, 1, 2)]

    return StoredAs((name,), read, lambda _, t: [t[0].permute(0, 2, 3, 1).flatten(1)])


def heads_apart(layer: str, *parts_end: str) -> StoredAs:
    """Store each part of a layer of attention as Flax does: (D, h, d), or (h, d) of a bias.

    Args:
        layer: name of the layer
        parts_end: names of its parts, `query`, and the end of their names, `kernel`
    """
    *parts, end = parts_end

    def split(config: ViTConfig, tensors: Tensors) -> Tensors:
        own = tensors[0].chunk(len(parts))
        return [part.t().unflatten(-1, (config.heads, -1)) for part in own]

    names = tuple(f"{layer}/{part}/{end}" for part in parts)
    return StoredAs(names, lambda _, t: [torch.cat([_together(part) for part in t])], split)


def _together(part: Tensor) -> Tensor:
    return part.flatten() if part.ndim == 2 else part.flatten(1).t()


def heads_inside(name: str) -> StoredAs:
    """Store the output projection of attention as Flax does: (h, d, D)."""
    return StoredAs(
        (name,),
        lambda _, t: [t[0].flatten(0, 1).t()],
        lambda config, t: [t[0].t().unflatten(0, (config.heads, -1))],
    )


def with_register_rows(registers: str, positions: str) -> StoredAs:
    """Store registers (1, R, D) that have rows in the table (1, token + R + N, D).

    Ours are the sums of registers and their rows.
    """

    def read(config: ViTConfig, tensors: Tensors) -> Tensors:
        own, whole = tensors
        first, count = int(config.has_token), own.shape[1]
        others = torch.cat([whole[:, :first], whole[:, first + count :]], dim=1)
        rows = whole[:, first : first + count]
        return [torch.where(rows == 0, own, own + rows), others]  # a sum of zeros has one sign

    def write(config: ViTConfig, tensors: Tensors) -> Tensors:
        own, others = tensors
        first = int(config.has_token)
        rows = [others[:, :first], torch.zeros_like(own), others[:, first:]]
        return [own, torch.cat(rows, dim=1)]

    return StoredAs((registers, positions), read, write)


def computed(value: Callable[[Any], Tensor]) -> StoredAs:
    """Compute one of ours that follows from the configuration and is not stored."""
    return StoredAs((), lambda config, t: [value(config)], lambda _, t: [])


def _with_zeros(rows: Tensor) -> Tensor:
    return torch.cat([torch.zeros_like(rows[:, :1]), rows], dim=1)


def _without_zeros(rows: Tensor) -> Tensor:
    if not rows.is_meta and rows[:, :1].any():
        raise WeightsError("the format cannot represent a position of the class token")
    return rows[:, 1:]


# Of one tensor: theirs to ours, and back.
_EACH: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    # a matrix (outputs, inputs) as (inputs, outputs)
    "transposed": (torch.t, torch.t),
    # a token (1, 1, D) as (D), positions (1, N, D) as (N, D)
    "flat_token": (lambda t: t.reshape(1, 1, -1), lambda t: t[0, 0]),
    "flat_table": (lambda t: t[None], lambda t: t[0]),
    # positions (1, 1 + N, D) without their first row, of the class token, which is zero
    "without_first_row": (_with_zeros, _without_zeros),
    # a kernel (D, C, P, P) as (P, P, C, D)
    "kernel_of_flax": (lambda t: t.permute(3, 2, 0, 1), lambda t: t.permute(2, 3, 1, 0)),
    # a matrix (outputs, inputs) as a kernel of one pixel: (C, D, 1, 1), (1, 1, C, D)
    "pointwise_transposed": (lambda t: t[:, :, 0, 0].t(), lambda t: t.t()[..., None, None]),
    "pointwise_of_flax": (lambda t: t[0, 0].t(), lambda t: t.t()[None, None]),
}


def _each(word: str) -> Callable[..., StoredAs]:
    read, write = _EACH[word]
    return lambda name: StoredAs((name,), lambda _, t: [read(t[0])], lambda _, t: [write(t[0])])


CONVERSIONS: dict[str, Callable[..., StoredAs]] = {
    **{word: _each(word) for word in _EACH},
    **{
        each.__name__: each
        for each in (
            gridded, joined, keyless, masked, halves, patches, heads_apart, heads_inside,
            with_register_rows,
        )
    },
    "no_bias": lambda: computed(lambda config: torch.zeros(config.classes)),  # of a classifier
}  # fmt: skip


# Rotary positions turn two channels of a head together: i and i + d / 2 in ours and in DINOv3's,
# 2 i and 2 i + 1 in EVA's, Perception Encoder's and RoPE-ViT's. Half of the pairs turn with the row
# and half with the column; ours are those of the row first. Queries and keys of another order are
# ours with their rows exchanged, weights and biases alike: a product of both does not depend on it.
# How channels that turn together lie: in halves of a head, or as neighbors, where those that turn
# with the row come first (ij), or with the column (xy).
Pairs = Literal["", "ij", "xy"]


def paired(entry: Entry, config: ViTConfig, columns_first: bool) -> Entry:
    """Return an entry for a file in which neighbors turn together.

    Args:
        entry: of one of our tensors, whose rows are queries, keys and values (3 D, …), or the
            channels of one head (d)
        config: of the model
        columns_first: the pairs that turn with the column come first there
    """
    head = config.width // config.heads
    order = torch.arange(head).unflatten(0, (2, head // 4, 2))  # axes, frequencies, pair
    order = order.flip(0) if columns_first else order
    halves = order.movedim(2, 0).flatten()  # where each channel of ours is there

    def turned(tensor: Tensor, order: Tensor) -> Tensor:
        count = min(len(tensor), 2 * config.width)  # values do not turn
        heads = tensor[:count].unflatten(0, (-1, head))
        return torch.cat([heads[:, order.to(tensor.device)].flatten(0, 1), tensor[count:]])

    return entry._replace(
        read=lambda tensors: [turned(entry.read(tensors)[0], halves)],
        write=lambda tensors: entry.write([turned(tensors[0], halves.argsort())]),
    )
