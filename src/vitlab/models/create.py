"""Models from names, from configurations, and around tensors."""

from typing import Any

import torch
from torch import Tensor

from vitlab.images import Size
from vitlab.models.config import ModelConfig, ResNetConfig, TokenizerConfig, ViTConfig, config_of
from vitlab.models.model import Model
from vitlab.models.regrid import resized as resized
from vitlab.models.resnets.resnet import ResNet
from vitlab.models.tokenizers.tokenizer import Tokenizer
from vitlab.models.vit import VisionTransformer

MODEL_OF: dict[type[ModelConfig], type[Model]] = {
    ViTConfig: VisionTransformer,
    ResNetConfig: ResNet,
    TokenizerConfig: Tokenizer,
}


def create(
    name: str,
    classes: int | None = None,
    image_size: Size = 224,
    *,
    generator: torch.Generator | None = None,
    **choices: Any,
) -> Model:
    """Create a freshly initialized model by its name in the papers, `ViT-B/16`.

    Args:
        name: the papers' notation; `vitlab models` lists the usual ones
        classes: outputs of the classifier; None for 1000, or for none in a tokenizer
        image_size: pixels, one number for a square or (rows, columns)
        generator: source of the weights; None for PyTorch's default generator
        choices: any other field of `ViTConfig`; for a ResNet's name of `ResNetConfig`, for a
            tokenizer's of `TokenizerConfig`

    Returns:
        A `VisionTransformer`, a `ResNet` for names such as `BiT-R50x1`, or a `Tokenizer` for names
        such as `dVAE/8`.

    Raises:
        OptionError: an unknown name or field, or a value that is not possible; the message says
            what would work.
    """
    given = {} if classes is None else {"classes": classes}
    config = config_of(name, image_size=image_size, **given, **choices)
    return build(config, generator)


def build(config: ModelConfig, generator: torch.Generator | None = None) -> Model:
    """Create a freshly initialized model of a configuration."""
    return MODEL_OF[type(config)](config, generator)


def assemble(config: ModelConfig, tensors: dict[str, Tensor]) -> Model:
    """Create a model around tensors that fit its configuration, in evaluation mode.

    Args:
        config: every choice of the architecture
        tensors: a whole state dict, on one device; the model takes them over without a copy
    """
    with torch.device("meta"):
        model = build(config)
    model.take(tensors)
    return model.requires_grad_().eval()


def with_new_head(tensors: dict[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """Return a model's tensors with a classifier of zeros (ViT paper, section 3.2).

    Args:
        tensors: a state dict
        config: the configuration with the new number of classes, and without `pre_logits`
    """
    names = MODEL_OF[type(config)].head_names
    result = {name: tensor for name, tensor in tensors.items() if not name.startswith(names)}
    if config.classes:
        classify = names[0]
        result[f"{classify}weight"] = torch.zeros(config.classes, config.features)
        result[f"{classify}bias"] = torch.zeros(config.classes)
    return result
