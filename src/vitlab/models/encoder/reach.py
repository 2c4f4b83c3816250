"""Which tokens attend to each other: all of them, or those of one row or column."""

from typing import ClassVar, Literal

import torch
from torch import Tensor

Axis = Literal["row", "column"] | None
Grid = tuple[int, int]  # rows and columns of patches


class Reach:
    """Every token attends to every token: the sequences (B, N, C) stay as they are.

    Attributes:
        whole: whether all tokens of an image are one sequence
    """

    whole: ClassVar[bool] = True

    def fold(self, tokens: Tensor, grid: Grid, blank: Tensor | None = None) -> Tensor:
        """Part images into the sequences that attend to themselves: (B, N, C) -> (B S, L, C).

        Args:
            tokens: (B, N, C)
            grid: of the patches
            blank: what a token of padding is, (C,); None for zeros
        """
        return tokens

    def unfold(self, tokens: Tensor, grid: Grid, batch: int) -> Tensor:
        """Put the sequences together again, without padding: (B S, L, C) -> (B, N, C)."""
        return tokens

    def spread(self, weights: Tensor, grid: Grid) -> Tensor:
        """Write attention within sequences as attention over all tokens, zero elsewhere.

        (B S, h, L, L) -> (B, h, N, N)
        """
        return weights

    def pairs(self, tokens: int, grid: Grid) -> int:
        """Count the pairs of query and key for one image of so many tokens."""
        return tokens * tokens


class Parted(Reach):
    """The patches of a grid in several sequences, S of L tokens each."""

    whole = False

    def places(self, grid: Grid, device: torch.device | None = None) -> Tensor:
        """Return which patch each place of each sequence is, (S, L); N for padding."""
        patches = grid[0] * grid[1]
        numbers = torch.arange(patches, device=device)[None, :, None]
        return self.fold(numbers, grid, torch.tensor([patches], device=device))[..., 0]

    def spread(self, weights: Tensor, grid: Grid) -> Tensor:
        """Write attention within sequences as attention over all tokens: (B, h, N, N)."""
        patches, places = grid[0] * grid[1], self.places(grid, weights.device)
        within = weights.unflatten(0, (-1, len(places))).transpose(1, 2)  # (B, h, S, L, L)
        full = weights.new_zeros(*within.shape[:2], patches + 1, patches + 1)
        full[:, :, places[:, :, None], places[:, None, :]] = within
        return full[:, :, :patches, :patches]

    def pairs(self, tokens: int, grid: Grid) -> int:
        """Count the pairs of query and key for one image."""
        sequences, length = self.places(grid).shape
        return sequences * length * length


class Line(Parted):
    """Each row, or each column, of the grid is a sequence (ViT paper, D.6)."""

    def __init__(self, axis: Axis) -> None:
        self.axis = axis

    def fold(self, tokens: Tensor, grid: Grid, blank: Tensor | None = None) -> Tensor:
        """Make rows or columns sequences: (B, r c, C) -> (B r, c, C) or (B c, r, C)."""
        square = tokens.unflatten(1, grid)
        return (square if self.axis == "row" else square.transpose(1, 2)).flatten(0, 1)

    def unfold(self, tokens: Tensor, grid: Grid, batch: int) -> Tensor:
        """Bring them back to raster order, (B, r c, C)."""
        lines = tokens.unflatten(0, (batch, -1))
        return (lines if self.axis == "row" else lines.transpose(1, 2)).flatten(1, 2)
