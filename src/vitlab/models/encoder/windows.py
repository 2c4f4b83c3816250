"""Windows: squares of the grid within which tokens attend (ViTDet; Segment Anything)."""

import torch
from torch import Tensor

from vitlab.models.encoder.reach import Grid, Parted


class Windows(Parted):
    """Each window is a sequence; those at the end of a row or column are padded to full size.

    Padding takes part in attention as a token of zeros, as in Segment Anything's code.

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

    def unfold(self, tokens: Tensor, grid: Grid, batch: int) -> Tensor:
        """Put windows together, without their padding: (B windows, side side, C) -> (B, r c, C)."""
        (rows, columns), side = grid, self.side
        windows = tokens.unflatten(0, (batch, -(-rows // side), -(-columns // side)))
        square = windows.unflatten(3, (side, side)).transpose(2, 3).flatten(3, 4).flatten(1, 2)
        return square[:, :rows, :columns].flatten(1, 2)
