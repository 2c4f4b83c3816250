"""The ResNets of the ViT paper as models of their own: BiT-R50x1 and its like, Axial-ResNet-50."""

from typing import Any, cast

import torch
from torch import Tensor, nn

from vitlab.errors import UserError
from vitlab.models.config import ResNetConfig
from vitlab.models.resnets.axial import AxialBody
from vitlab.models.resnets.body import BiTBody


class ResNet(nn.Module):
    """body -> mean over the last map -> linear classifier (ViT paper, section 4.1, ResNet (BiT)).

    Args:
        config: every choice of the architecture
        generator: where the initial weights are drawn from; None for PyTorch's default generator
    """

    def __init__(self, config: ResNetConfig, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.config = config
        self.provenance: dict[str, Any] = {}  # of the weights: data, recipe, …; saved with them
        self.source = ""  # where they were loaded from
        device = torch.get_default_device()
        with torch.device("meta"):  # shapes first: no tensor is filled twice
            self.body: nn.Module = (
                AxialBody(config.stages, config.channels, config.size)
                if config.attention == "axial"
                else BiTBody(config.stages, config.channels, config.widen)
            )
            self.classify = (
                nn.Linear(config.features, config.classes) if config.classes else nn.Identity()
            )
        if device.type != "meta":
            self.to_empty(device=device)
            self.reset_parameters(generator)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw every weight anew; the classifier zero where asked, else truncated normal 0.02."""
        cast(BiTBody, self.body).reset_parameters(generator)
        if isinstance(self.classify, nn.Identity):
            return
        if self.config.zero_head:
            nn.init.zeros_(self.classify.weight)
        else:
            nn.init.trunc_normal_(self.classify.weight, std=0.02, generator=generator)
        nn.init.constant_(self.classify.bias, self.config.head_bias)

    def forward(self, images: Tensor) -> Tensor:
        """Normalized images (B, channels, H, W) to class scores (B, classes)."""
        return self.classify(self.features(images))

    def features(self, images: Tensor) -> Tensor:
        """What the classifier sees: the mean over the last map, (B, features)."""
        return self.encode(images).mean(1)

    def encode(self, images: Tensor) -> Tensor:
        """The last map in raster order: (B, rows * columns, features)."""
        want = (self.config.channels, *self.config.size)
        if images.ndim != 4 or images.shape[1:] != want:
            shape = ", ".join(map(str, want))
            raise UserError(f"images must be (B, {shape}), not {tuple(images.shape)}")
        return self.body(images).flatten(2).transpose(1, 2)
