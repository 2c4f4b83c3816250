"""How tokens lie: what a block must know of a sequence beside the tokens themselves."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import torch
from torch import Tensor

from vitlab.device import sent

# How positions act within attention: queries and keys, each (B, h, N, d), to the same two and what
# is added to their logits, (B, h, N, N) or None.
Relate = Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor | None]]


@dataclass(frozen=True)
class Layout:
    """How the tokens of every image in a batch lie.

    Attributes:
        grid: rows and columns of patches
        relate: how positions act within attention; None: not at all
        leading: how many tokens a block computes, the first, which attend to all; None: all
        runs: of a packed sequence, (1, T, D), how its images lie; the other two are then unused
    """

    grid: tuple[int, int]
    relate: Relate | None = None
    runs: "tuple[Run, ...]" = ()
    leading: int | None = None

    @property
    def packed(self) -> int:
        """The number of images in a packed sequence; 0 for a batch of one size."""
        return sum(run.images for run in self.runs)

    def per_token(self, values: Tensor) -> Tensor:
        """Repeat a value of each image of a packed sequence for its tokens: (B,) -> (1, T, 1)."""
        lengths = [run.tokens for run in self.runs for _ in range(run.images)]
        counts = sent(torch.tensor(lengths), values.device)
        return values.repeat_interleave(counts, output_size=sum(lengths))[None, :, None]


@dataclass(frozen=True)
class Run:
    """Neighbors of one size in a packed sequence.

    Attributes:
        images: how many there are
        tokens: that each of them has
        layout: how each of them lies
    """

    images: int
    tokens: int
    layout: Layout


class DenseFeatures(NamedTuple):
    """What leaves a layer, as a map of the image.

    Attributes:
        map: features of each patch, or of each place of a ResNet, (B, D, rows, columns)
        prefix: the tokens before the patches, (B, prefix, D): class token, distillation token,
            registers; none of them, (B, 0, D), of a model without
    """

    map: Tensor
    prefix: Tensor

    @classmethod
    def of(cls, tokens: Tensor, prefix: int, grid: tuple[int, int]) -> Self:
        """Part tokens, (B, prefix + rows * columns, D)."""
        return cls(tokens[:, prefix:].transpose(1, 2).unflatten(2, grid), tokens[:, :prefix])


def parted(tokens: Tensor, runs: Sequence[Run]) -> list[Tensor]:
    """Return the tokens of each run: (1, T, D) -> (images, tokens, D) each."""
    parts = tokens[0].split([run.images * run.tokens for run in runs])
    return [part.unflatten(0, (run.images, -1)) for part, run in zip(parts, runs, strict=True)]


def joined(parts: Sequence[Tensor]) -> Tensor:
    """Return runs as one packed sequence: (images, tokens, D) each -> (1, T, D)."""
    return torch.cat([part.flatten(0, 1) for part in parts]).unsqueeze(0)
