"""How tokens lie: what a block must know of a sequence beside the tokens themselves."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

# How positions act within attention: queries and keys, each (B, h, N, d), to the same two and what
# is added to their logits, (B, h, N, N) or None.
Relate = Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor | None]]


@dataclass(frozen=True)
class Layout:
    """How the tokens of every image in a batch lie.

    Attributes:
        grid: rows and columns of patches
        relate: how positions act within attention; None: not at all
    """

    grid: tuple[int, int]
    relate: Relate | None = None
