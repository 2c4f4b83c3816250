"""Models from tensors, and tensors from models."""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from vitlab.errors import WeightsError
from vitlab.images import Size
from vitlab.models.config import ModelConfig, ResNetConfig, ViTConfig
from vitlab.models.create import Model, build
from vitlab.models.position import BiasPositions, RotaryPositions, resize_positions


def empty(config: ModelConfig) -> dict[str, Tensor]:
    """Return a model's state dict without memory: names, shapes and types."""
    with torch.device("meta"):
        return build(config).state_dict()


def whole_state(model: Model) -> dict[str, Tensor]:
    """Return every tensor of a model, without copies.

    Raises:
        WeightsError: the model is fused: its tensors are not those of its configuration.
    """
    tensors = model.state_dict()
    if tensors.keys() != empty(model.config).keys():
        raise WeightsError("cannot save a fused model: save the model it was made from")
    return tensors


def assemble(config: ModelConfig, tensors: Mapping[str, Tensor]) -> Model:
    """Build a model around tensors that fit it, without copies, in evaluation mode."""
    with torch.device("meta"):
        model = build(config)
    model.load_state_dict(tensors, assign=True)
    for module in model.modules():
        if isinstance(module, RotaryPositions):  # computed, not stored
            module.to_empty(device="cpu").compute()
        elif isinstance(module, BiasPositions):
            module.places = torch.empty_like(module.places, device="cpu")
            module.compute()
    return model.requires_grad_().eval()


def fitted(
    config: ModelConfig,
    tensors: dict[str, Tensor],
    classes: int | None = None,
    image_size: Size | None = None,
) -> Model:
    """Build a model around its tensors, with another head or image size if asked.

    Args:
        config: that the tensors belong to
        tensors: by name; taken over, not copied
        classes: outputs of a new classifier, which starts at zero (ViT paper, section 3.2)
        image_size: that the positions are resized to

    Raises:
        WeightsError: the model works at one image size only.
    """
    new = config
    if classes is not None:
        labels = config.labels if classes == len(config.labels) else ()
        new = replace(config, classes=classes, labels=labels, zero_head=True)
        if isinstance(new, ViTConfig):
            new = replace(new, pre_logits=0)
        tensors = _with_new_head(tensors, new)
    if image_size is not None:
        old, new = new, replace(new, image_size=image_size)
        tensors = _resized(tensors, old, new)
    return assemble(new, tensors)


def _with_new_head(tensors: dict[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """The same tensors with a classifier of zeros, and without the tanh layer before it."""
    return {
        name: torch.zeros(want.shape) if "classify." in name else tensors[name]
        for name, want in empty(config).items()
    }


def _resized(tensors: dict[str, Tensor], old: ModelConfig, new: ModelConfig) -> dict[str, Tensor]:
    if old.image_size == new.image_size:
        return tensors
    if isinstance(old, ViTConfig) and isinstance(new, ViTConfig):
        return resize_positions(tensors, old, new)
    assert isinstance(old, ResNetConfig)
    if old.attention == "axial":
        raise WeightsError(
            f"{old.name} works at image_size={old.image_size} only: its relative positions are "
            "tied to the size of its feature maps"
        )
    return tensors
