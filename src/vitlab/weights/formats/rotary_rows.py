"""Rows of queries and keys in the order of other people's rotary positions.

What turns together is two channels of a head: i and i + d / 2 in ours and in DINOv3's, 2 i and
2 i + 1 in EVA's, Perception Encoder's and RoPE-ViT's. Half of the pairs turn with the row and half
with the column; ours are those of the row first. Queries and keys of another order are ours with
their rows exchanged, weights and biases alike, since a product of both does not depend on it.
"""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from vitlab.models.config import ModelConfig, ViTConfig
from vitlab.weights.formats.entries import Conversion, Entry, StoredAs

# How channels that turn together lie: in halves of a head, or as neighbors, where those that turn
# with the row come first (ij), or with the column (xy).
Pairs = Literal["", "ij", "xy"]


def paired(entry: Entry, config: ViTConfig, columns_first: bool) -> Entry:
    """Return an entry for a file in which neighbors turn together.

    Args:
        entry: of one of our tensors, whose rows are queries, keys and values (3 D, …), or the
            channels of one head (d)
        config: of the model
        columns_first: the pairs that turn with the column come first there; learned frequencies
            are for pairs in any order, so that they only have to be exchanged themselves
    """
    flipped = columns_first and config.rope_kind != "mixed"
    head = config.width // config.heads

    def halved(tensor: Tensor) -> Tensor:
        """Neighbors to halves."""
        pairs = tensor.unflatten(0, (-1, 2, head // 4, 2))  # heads, axes, frequencies, pair
        return (pairs.flip(1) if flipped else pairs).movedim(3, 1).flatten(0, 3)

    def joined(tensor: Tensor) -> Tensor:
        """Halves to neighbors."""
        pairs = tensor.unflatten(0, (-1, 2, 2, head // 4)).movedim(1, 3)
        return (pairs.flip(1) if flipped else pairs).flatten(0, 3)

    def turning(change: Callable[[Tensor], Tensor]) -> Conversion:
        def convert(tensors: list[Tensor]) -> list[Tensor]:
            (whole,) = tensors
            count = min(len(whole), 2 * config.width)  # values do not turn
            return [torch.cat([change(whole[:count]), whole[count:]])]

        return convert

    read, write = turning(halved), turning(joined)
    return entry._replace(
        read=lambda tensors: read(entry.read(tensors)),
        write=lambda tensors: entry.write(write(tensors)),
    )


def frequencies(name: str, columns_first: bool) -> StoredAs:
    """Store learned frequencies of all blocks, each (2, heads, d / 2), as (2, depth, heads, d / 2).

    Args:
        name: of theirs; `freqs` is RoPE-ViT's own, with heads side by side
        columns_first: theirs are for columns, then rows
    """
    flat = name == "freqs"
    axes = [1, 0] if columns_first else [0, 1]

    def read(tensors: list[Tensor], config: ModelConfig | None) -> list[Tensor]:
        heads = getattr(config, "heads", 1)
        stored = tensors[0].unflatten(2, (heads, -1)) if flat else tensors[0]
        return list(torch.stack([stored[axis] for axis in axes]).unbind(1))

    def write(tensors: list[Tensor], config: ModelConfig | None) -> list[Tensor]:
        every = torch.stack(tensors, 1)
        stored = torch.stack([every[axis] for axis in axes])
        return [stored.flatten(2) if flat else stored]

    return StoredAs((name,), read, write)
