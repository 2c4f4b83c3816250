"""Models from names and from configurations."""

from typing import Any

import torch

from vitlab.images import Size
from vitlab.models.config import ModelConfig, ResNetConfig, ViTConfig, config_of
from vitlab.models.resnets.resnet import ResNet
from vitlab.models.vit import VisionTransformer

Model = VisionTransformer | ResNet


def create(
    name: str,
    classes: int = 1000,
    image_size: Size = 224,
    *,
    generator: torch.Generator | None = None,
    **choices: Any,
) -> Any:
    """A freshly initialized model by its name in the papers, `ViT-B/16`.

    Args:
        name: the papers' notation; `vitlab models` lists the usual ones
        classes: outputs of the classifier
        image_size: pixels, one number for a square or (rows, columns)
        generator: where the weights are drawn from; None for PyTorch's default generator
        choices: any other field of `ViTConfig`, or of `ResNetConfig` for a ResNet's name

    Returns:
        A `VisionTransformer`, or a `ResNet` for names such as `BiT-R50x1`.

    Raises:
        ValueError: a name, field or value that cannot be; the message says what would work.
    """
    config = config_of(name, classes=classes, image_size=image_size, **choices)
    return build(config, generator)


def build(config: ModelConfig, generator: torch.Generator | None = None) -> Model:
    """A freshly initialized model of a configuration."""
    if isinstance(config, ResNetConfig):
        return ResNet(config, generator)
    assert isinstance(config, ViTConfig)
    return VisionTransformer(config, generator)
