"""Where a token sits: learned position embeddings."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitlab.models.config import ViTConfig


class LearnedPositions(nn.Module):
    """A learned vector for each place in raster order, class token included (ViT paper, 3.1)."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(1, config.tokens, config.width))

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Normal with standard deviation 0.02, as in the official code."""
        nn.init.normal_(self.table, std=0.02, generator=generator)

    def forward(self, tokens: Tensor) -> Tensor:
        """Add its position to each token: (B, N, D) -> (B, N, D)."""
        return tokens + self.table


def resize(table: Tensor, old: tuple[int, int], new: tuple[int, int]) -> Tensor:
    """Position embeddings for another grid: (1, prefix + N, D) -> (1, prefix + M, D).

    Bilinear with aligned corners, the prefix untouched, as the official code resizes them for
    fine-tuning at a higher resolution (ViT paper, section 3.2).
    """
    if old == new:
        return table
    prefix = table.shape[1] - old[0] * old[1]
    grid = table[:, prefix:].unflatten(1, old).permute(0, 3, 1, 2)  # (1, D, rows, columns)
    grid = F.interpolate(grid, new, mode="bilinear", align_corners=True)
    return torch.cat([table[:, :prefix], grid.flatten(2).transpose(1, 2)], dim=1)
