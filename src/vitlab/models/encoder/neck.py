"""Segment Anything's neck."""

import math

import torch
from torch import Tensor, nn

from vitlab.models.config import ViTConfig
from vitlab.models.layers import reset_parts

EPS = 1e-6  # whatever that of the blocks is


class Neck(nn.Module):
    """A 1x1 and a 3x3 convolution over the map of patches, each with a norm over its channels.

    Source: Kirillov et al., Segment Anything, 2023, appendix A; ViTDet (Li et al., 2022).
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        channels = config.neck
        self.reduce = nn.Linear(config.width, channels, bias=False)  # of each patch by itself
        self.reduce_norm = nn.LayerNorm(channels, EPS)
        self.mix = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.mix_norm = nn.LayerNorm(channels, EPS)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw the kernels as PyTorch does by default, as the original code has them."""
        for layer in (self.reduce, self.mix):
            nn.init.kaiming_uniform_(layer.weight, math.sqrt(5), generator=generator)
        reset_parts(generator, self.reduce_norm, self.mix_norm)

    def forward(self, tokens: Tensor, grid: tuple[int, int]) -> Tensor:
        """Transform the patches of a grid: (B, N, D) -> (B, N, neck)."""
        patches = self.reduce_norm(self.reduce(tokens))
        square = patches.transpose(1, 2).unflatten(2, grid)  # (B, neck, rows, columns)
        return self.mix_norm(self.mix(square).flatten(2).transpose(1, 2))
