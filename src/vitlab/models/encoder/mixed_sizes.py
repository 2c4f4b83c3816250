"""Sizes mixed in one batch: the images of a `Packed` as one sequence of tokens, (1, T, D).

Neighbors of one size are a run, (images, tokens, D), and are computed together.
"""

import math
from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from vitlab.models.encoder.attention import Attention, Heads, attend
from vitlab.models.encoder.block import draw_kept
from vitlab.models.grid import Grid
from vitlab.models.positions.positions import Positions
from vitlab.on_device import sent

HALF = (torch.float16, torch.bfloat16)


class PackedPositions(Positions):
    """The positions of packed images: one scheme for each run.

    Args:
        positions: of any grid
        runs: the grid and the number of neighbors that have it
        prefix: tokens of each image before its patches

    Raises:
        OptionError: the scheme is limited to another size.
    """

    def __init__(self, positions: Positions, runs: Sequence[tuple[Grid, int]], prefix: int) -> None:
        super().__init__(positions.config)
        found = {grid: positions.at(grid) for grid, _ in runs}
        self.schemes = [found[grid] for grid, _ in runs]
        self.runs, self.prefix = runs, prefix
        self.packed = sum(count for _, count in runs)

    def parts(self, tokens: Tensor, prefix: int | None = None) -> list[tuple[Tensor, Positions]]:
        """Return each run's tokens and positions: (1, T, D) -> (images, tokens, D) each.

        Args:
            tokens: of all images
            prefix: how many each image has before its patches; None: as in the blocks
        """
        parts = parted(tokens, self.runs, self.prefix if prefix is None else prefix)
        return [*zip(parts, self.schemes, strict=True)]

    def place(self, tokens: Tensor) -> Tensor:
        """Return the tokens as a block's input: (1, T, D) -> (1, T, D)."""
        parts = self.parts(tokens)
        placed = [scheme.place(part) for part, scheme in parts]
        same = all(new is part for new, (part, _) in zip(placed, parts, strict=True))
        return tokens if same else joined(placed)

    def attended(self, attention: Attention, qkv: Tensor) -> Tensor:
        """Return what each token gathers within its image: (1, T, 3D) -> (1, T, D)."""
        if attention.axis:
            return joined([attention.attended(*part, None) for part in self.parts(qkv)])
        if attention.norms is None and not any(scheme.relates for scheme in self.schemes):
            q, k, v, _ = attention.split(qkv, None)
            if suits_varlen(q, k, v):
                q, k, v = (each.squeeze(0).transpose(0, 1) for each in (q, k, v))  # no copy
                return attend_varlen(q, k, v, self.lengths())
        return attend_packed([attention.split(*part) for part in self.parts(qkv)])

    def drawn(self, rate: float, tokens: Tensor) -> Tensor:
        """Draw which images skip a branch: a factor for each token, (1, T, 1)."""
        chosen, weights = draw_kept(self.packed, rate, tokens.device)
        kept = tokens.new_zeros(self.packed).index_copy_(0, chosen, weights.to(tokens.dtype))
        lengths = self.lengths()
        counts = sent(torch.tensor(lengths), tokens.device)
        return kept.repeat_interleave(counts, output_size=sum(lengths))[None, :, None]

    def lengths(self) -> list[int]:
        """Return the number of tokens of each image."""
        return [self.prefix + math.prod(grid) for grid, count in self.runs for _ in range(count)]


def parted(tokens: Tensor, runs: Sequence[tuple[Grid, int]], prefix: int) -> list[Tensor]:
    """Return the tokens of each run: (1, T, D) -> (images, prefix + patches, D) each."""
    sizes = [(count, prefix + math.prod(grid)) for grid, count in runs]
    parts = tokens[0].split([count * length for count, length in sizes])
    return [part.unflatten(0, size) for part, size in zip(parts, sizes, strict=True)]


def joined(parts: Sequence[Tensor]) -> Tensor:
    """Return runs as one packed sequence: (images, tokens, D) each -> (1, T, D)."""
    return torch.cat([part.flatten(0, 1) for part in parts]).unsqueeze(0)


def attend_packed(parts: list[Heads]) -> Tensor:
    """Attend within each image of a packed sequence, by the form that suits the device.

    On a GPU in half precision, one kernel for sequences of different lengths; else a product for
    every run of images of one size, which is also the form for biases on the logits.

    Args:
        parts: queries, keys, values (n, h, N, d) and bias of each run

    Returns:
        The heads side by side, (1, T, D).
    """
    if suits_varlen(*parts[0]) and all(bias is None for *_, bias in parts):
        q, k, v = (
            torch.cat([each.transpose(1, 2).flatten(0, 1) for each in same])
            for same in zip(*(part[:3] for part in parts), strict=True)
        )
        lengths = [q.shape[2] for q, *_ in parts for _ in range(len(q))]
        return attend_varlen(q, k, v, lengths)
    return joined([attend(*part).transpose(1, 2).flatten(2) for part in parts])


def suits_varlen(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> bool:
    """Return whether the kernel for variable lengths, FlashAttention's, takes such tensors."""
    return (
        q.device.type == "cuda"
        and q.dtype in HALF
        and q.dtype == k.dtype == v.dtype
        and q.shape[-1] % 8 == 0
        and q.shape[-1] <= 256
        and torch.cuda.get_device_capability(q.device) >= (8, 0)
    )


def attend_varlen(q: Tensor, k: Tensor, v: Tensor, lengths: Sequence[int]) -> Tensor:
    """Attend within each image by PyTorch's variable-length kernel: (T, h, d) -> (1, T, D)."""
    from torch.nn.attention.varlen import varlen_attn

    ends = sent(torch.tensor([0, *accumulate(lengths)], dtype=torch.int32), q.device)
    gathered = varlen_attn(q, k, v, ends, ends, max(lengths), max(lengths))
    assert isinstance(gathered, Tensor)  # nothing else was asked for
    return gathered.flatten(1).unsqueeze(0)
