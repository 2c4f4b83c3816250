"""From images to patch tokens."""

import math

import torch
from torch import Tensor, nn

from vitlab.models.config import ViTConfig


class LinearStem(nn.Module):
    """One linear map of every flattened patch (ViT paper, equation 1), as a strided convolution.

    (B, channels, H, W) -> (B, patches, width), patches in raster order.
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.project = nn.Conv2d(config.channels, config.width, config.patch, config.patch)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """LeCun-normal kernel, zero bias, as in the official code."""
        lecun_normal_(self.project.weight, generator)
        nn.init.zeros_(self.project.bias)  # type: ignore[arg-type]  # it has one

    def forward(self, images: Tensor) -> Tensor:
        """Images to patch tokens."""
        return self.project(images).flatten(2).transpose(1, 2)


def lecun_normal_(weight: Tensor, generator: torch.Generator | None = None) -> None:
    """Truncated at two standard deviations, then of standard deviation sqrt(1 / fan_in)."""
    fan_in = weight[0].numel()
    std = math.sqrt(1 / fan_in) / 0.87962566103423978  # the truncation shrinks it by this much
    nn.init.trunc_normal_(weight, 0, std, -2 * std, 2 * std, generator=generator)
