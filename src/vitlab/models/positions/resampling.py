"""How a grid of learned positions is brought to another size."""

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F


def resample(
    table: Tensor,
    old: tuple[int, int],
    new: tuple[int, int],
    resampling: Literal["bilinear", "bicubic", "antialiased"] = "bilinear",
) -> Tensor:
    """Return position embeddings for another grid: (1, prefix + N, D) -> (1, prefix + M, D).

    The prefix stays as it is. `bilinear` aligns corners, as Google's code does for fine-tuning at a
    higher resolution (ViT paper, section 3.2); `bicubic` does not, as DeiT's; `antialiased` is
    bicubic with antialiasing, as timm's.
    """
    if old == new:
        return table
    prefix = table.shape[1] - old[0] * old[1]
    grid = table[:, prefix:].unflatten(1, old).permute(0, 3, 1, 2).float()  # (1, D, rows, columns)
    if resampling == "bilinear":
        grid = F.interpolate(grid, new, mode="bilinear", align_corners=True)
    else:
        antialias = resampling == "antialiased"
        grid = F.interpolate(grid, new, mode="bicubic", align_corners=False, antialias=antialias)
    resized = grid.flatten(2).transpose(1, 2).to(table.dtype)
    return torch.cat([table[:, :prefix], resized], dim=1)
