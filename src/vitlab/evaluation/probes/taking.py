"""What is taken of a model as an image's features: what the classifier sees, or the tokens."""

import torch
from torch import Tensor

from vitlab.errors import OptionError
from vitlab.evaluation.probes.wanted import Pooled, Taken
from vitlab.models.config import ViTConfig
from vitlab.models.layers import evaluating
from vitlab.models.model import Model
from vitlab.models.packed import Packed


def take(model: Model, images: Tensor | Packed, taken: Pooled | Taken) -> Tensor:
    """Compute what is taken: (B, channels, H, W) -> (B, width), or (B, tokens, width).

    Args:
        model: any; several queries of attention pooling are put one after the other
        images: normalized
        taken: what of it

    Raises:
        OptionError: a layer that the model does not have, or images of another shape.
    """
    if taken.what == "features":
        return model.features(images).flatten(1)
    if isinstance(images, Packed):
        raise OptionError(
            "tokens and layers are taken of images of one size, not with fit=native: take features"
        )
    if taken.layer is None:
        tokens = model.encode(images)
    else:
        (tokens,) = model.intermediates(images, [taken.layer])
        if tokens.ndim == 4:  # the map of a ResNet
            tokens = tokens.flatten(2).transpose(1, 2)
    if taken.what == "tokens":
        return tokens
    prefix = model.config.prefix if isinstance(model.config, ViTConfig) else 0
    patches = tokens[:, prefix:]
    return patches.mean(1) if taken.what == "mean" else patches


def shape_taken(model: Model, taken: Pooled | Taken) -> tuple[int, ...]:
    """Return the shape of what is taken of one image: (width,) or (tokens, width).

    Raises:
        OptionError: a layer that the model does not have.
    """
    config, device = model.config, next(model.parameters()).device
    with evaluating(model), torch.inference_mode():
        blank = torch.zeros(1, config.channels, *config.size, device=device)
        return tuple(take(model, blank, taken).shape[1:])
