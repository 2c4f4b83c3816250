"""The hybrids' stem."""

import torch
from torch import Tensor, nn

from vitlab.errors import OptionError
from vitlab.models.configs.model_config import map_stride
from vitlab.models.configs.vit_config import ViTConfig
from vitlab.models.layers import reset_dense
from vitlab.models.resnets.body import HYBRID, TIMM, HybridBody
from vitlab.models.stems.stem import Stem


class Hybrid(Stem):
    """A ResNet's map, cut into patches, often of one place each (ViT paper, 3.1, Hybrid)."""

    name = "resnet"

    def __init__(self, config: ViTConfig) -> None:
        super().__init__(config)
        flavor = TIMM if config.resnet == "timm" else HYBRID
        self.body = HybridBody(config.stages, config.channels, flavor)
        side = config.patch // self.body.stride
        self.project = nn.Conv2d(self.body.features, config.width, side, side)

    @staticmethod
    def check(config: ViTConfig) -> None:
        """Refuse patches that are not whole places of the ResNet's map."""
        stride = map_stride(config.stages)
        if config.patch % stride:
            raise OptionError(
                f"stages={config.stages} reduces images by {stride}, so patch must be a multiple "
                f"of {stride}, not {config.patch}"
            )

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw weights as the official code does."""
        self.body.reset_parameters(generator)
        reset_dense(self.project, generator)

    def forward(self, images: Tensor) -> Tensor:
        """Cut images into patch tokens."""
        return self.project(self.body(images)).flatten(2).transpose(1, 2)
