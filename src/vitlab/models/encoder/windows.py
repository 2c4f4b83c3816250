"""Attention patterns: all tokens attend to all, or patches within a window, row or column."""

from typing import ClassVar, Literal

import torch
from torch import Tensor

from vitlab.models.config import Grid

Axis = Literal["row", "column"] | None


class Pattern:
    """Global attention: every token attends to every token, and sequences stay as they are."""

    whole: ClassVar[bool] = True

    def fold(self, tokens: Tensor, grid: Grid, blank: Tensor | None = None) -> Tensor:
        """Part images into the sequences: (B, N, C) -> (B S, L, C).

        Args:
            tokens: (B, N, C)
            grid: rows and columns of patches
            blank: what a token of padding is, (C,); None for zeros
        """
        return tokens

    def unfold(self, tokens: Tensor, grid: Grid) -> Tensor:
        """Put the sequences together again, without padding: (B S, L, C) -> (B, N, C)."""
        return tokens

    def spread(self, weights: Tensor, grid: Grid) -> Tensor:
        """Write attention within sequences as attention over all tokens, zero elsewhere.

        (B S, h, L, L) -> (B, h, N, N)
        """
        return weights


class Parted(Pattern):
    """The patches of a grid in several sequences that attend to themselves, S of L tokens each."""

    whole = False

    def spread(self, weights: Tensor, grid: Grid) -> Tensor:
        """Write attention within sequences as attention over all tokens: (B, h, N, N)."""
        patches, device = grid[0] * grid[1], weights.device
        numbers = torch.arange(patches, device=device)[None, :, None]
        padding = torch.tensor([patches], device=device)
        places = self.fold(numbers, grid, padding)[..., 0]  # the patch at each place, (S, L)
        within = weights.unflatten(0, (-1, len(places))).transpose(1, 2)  # (B, h, S, L, L)
        full = weights.new_zeros(*within.shape[:2], patches + 1, patches + 1)
        full[:, :, places[:, :, None], places[:, None, :]] = within
        return full[:, :, :patches, :patches]


class AxialLines(Parted):
    """Each row, or each column, of the grid is a sequence (ViT paper, D.6)."""

    def __init__(self, axis: Axis) -> None:
        self.axis = axis

    def fold(self, tokens: Tensor, grid: Grid, blank: Tensor | None = None) -> Tensor:
        """Make rows or columns sequences: (B, r c, C) -> (B r, c, C) or (B c, r, C)."""
        square = tokens.unflatten(1, grid)
        return (square if self.axis == "row" else square.transpose(1, 2)).flatten(0, 1)

    def unfold(self, tokens: Tensor, grid: Grid) -> Tensor:
        """Bring them back to raster order, (B, r c, C)."""
        lines = tokens.unflatten(0, (-1, grid[0] if self.axis == "row" else grid[1]))
        return (lines if self.axis == "row" else lines.transpose(1, 2)).flatten(1, 2)


class Windows(Parted):
    """Squares of the grid; those at the end of a row or column are padded to full size.

    Padding takes part in attention as a token of zeros, as in Segment Anything's code (ViTDet).

    Args:
        side: patches along each side of a window
    """

    def __init__(self, side: int) -> None:
        self.side = side

    def fold(self, tokens: Tensor, grid: Grid, blank: Tensor | None = None) -> Tensor:
        """Part images into windows: (B, r c, C) -> (B windows, side side, C)."""
        (rows, columns), side = grid, self.side
        square = tokens.unflatten(1, grid)
        down, right = -rows % side, -columns % side
        if down or right:
            images = tokens.shape[0]
            blank = tokens.new_zeros(tokens.shape[-1]) if blank is None else blank.to(tokens.dtype)
            square = torch.cat([square, blank.expand(images, rows, right, -1)], 2)
            square = torch.cat([square, blank.expand(images, down, columns + right, -1)], 1)
        windows = square.unflatten(2, (-1, side)).unflatten(1, (-1, side)).transpose(2, 3)
        return windows.flatten(3, 4).flatten(0, 2)

    def unfold(self, tokens: Tensor, grid: Grid) -> Tensor:
        """Put windows together, without their padding: (B windows, side side, C) -> (B, r c, C)."""
        (rows, columns), side = grid, self.side
        windows = tokens.unflatten(0, (-1, -(-rows // side), -(-columns // side)))
        square = windows.unflatten(3, (side, side)).transpose(2, 3).flatten(3, 4).flatten(1, 2)
        return square[:, :rows, :columns].flatten(1, 2)
