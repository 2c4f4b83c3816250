"""Resampling of a grid of learned positions to another size."""

import torch
from torch import Tensor
from torch.nn import functional as F

from vitlab.models.configs.vit_config import Resampling

OFFSET = 0.1  # patches per side that DINOv2 adds before it divides


def resample(
    table: Tensor, old: tuple[int, int], new: tuple[int, int], resampling: Resampling = "bilinear"
) -> Tensor:
    """Return position embeddings for another grid: (1, prefix + N, D) -> (1, prefix + M, D).

    The prefix stays as it is. `bilinear` aligns corners, as Google's code does for fine-tuning at a
    higher resolution (ViT paper, section 3.2); `bicubic` does not, as DeiT's; `antialiased` is
    bicubic with antialiasing, as timm's. `scaled` is bicubic by the factor (new + 0.1) / old, as
    DINOv2's `interpolate_pos_encoding` has it (facebookresearch/dinov2,
    dinov2/models/vision_transformer.py; its models with registers have `antialiased`).
    `bilinear-antialiased` is SigLIP 2's with native aspect ratios;
    `bilinear-unaligned`, Perception Encoder's, neither aligns corners nor antialiases; `nearest`
    is that of Idefics2 and its kin.
    """
    if old == new:
        return table
    prefix = table.shape[1] - old[0] * old[1]
    grid = table[:, prefix:].unflatten(1, old).permute(0, 3, 1, 2).float()  # (1, D, rows, columns)
    antialias, aligned = resampling.endswith("antialiased"), resampling == "bilinear" or None
    if resampling == "scaled":
        factor = [(new[0] + OFFSET) / old[0], (new[1] + OFFSET) / old[1]]
        grid = F.interpolate(grid, scale_factor=factor, mode="bicubic")
    else:
        filters = ("nearest", "bilinear")
        mode = next((name for name in filters if resampling.startswith(name)), "bicubic")
        grid = F.interpolate(grid, new, mode=mode, align_corners=aligned, antialias=antialias)
    resized = grid.flatten(2).transpose(1, 2).to(table.dtype)
    return torch.cat([table[:, :prefix], resized], dim=1)
