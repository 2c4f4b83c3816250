"""Attention patterns: all tokens attend to all, or patches within their row or column."""

from typing import Literal

import torch
from torch import Tensor

from vitlab.models.config import Grid

Axis = Literal["row", "column"] | None


class Pattern:
    """Which tokens attend to each other: all to all, or along one axis (ViT paper, D.6).

    Args:
        axis: along which each line of the grid is a sequence; None: sequences stay as they are
    """

    def __init__(self, axis: Axis = None) -> None:
        self.axis = axis

    def fold(self, tokens: Tensor, grid: Grid) -> Tensor:
        """Make rows or columns sequences: (B, r c, C) -> (B r, c, C) or (B c, r, C)."""
        if self.axis is None:
            return tokens
        return self._turned(tokens.unflatten(1, grid)).flatten(0, 1)

    def unfold(self, tokens: Tensor, grid: Grid) -> Tensor:
        """Bring them back to raster order, (B, r c, C)."""
        if self.axis is None:
            return tokens
        lines = tokens.unflatten(0, (-1, grid[self.axis == "column"]))
        return self._turned(lines).flatten(1, 2)

    def spread(self, weights: Tensor, grid: Grid) -> Tensor:
        """Write attention within sequences as attention over all tokens, zero elsewhere.

        (B S, h, L, L) -> (B, h, N, N)
        """
        if self.axis is None:
            return weights
        patches = grid[0] * grid[1]
        numbers = torch.arange(patches, device=weights.device)[None, :, None]
        places = self.fold(numbers, grid)[..., 0]  # the patch at each place, (S, L)
        within = weights.unflatten(0, (-1, len(places))).transpose(1, 2)  # (B, h, S, L, L)
        full = weights.new_zeros(*within.shape[:2], patches, patches)
        full[:, :, places[:, :, None], places[:, None, :]] = within
        return full

    def _turned(self, square: Tensor) -> Tensor:
        """Rows, or columns, first: (B, r, c, C) there and back."""
        return square if self.axis == "row" else square.transpose(1, 2)
