"""Where each head of the class token looks."""

import torch
from torch import Tensor

from vitlab.errors import OptionError
from vitlab.inspect.passes import chunks, transformer
from vitlab.models.layers import evaluating
from vitlab.models.model import Model
from vitlab.models.vit import VisionTransformer


@torch.inference_mode()
def class_attention(model: Model, images: Tensor, layer: int | None = None) -> Tensor:
    """Return the attention that each head's class token pays to the patches.

    In the last layer these maps separate objects in models that learned without labels (Caron et
    al., DINO, 2021, Figure 1). With attention pooling they are the pool's own, query by query.

    Args:
        model: a Vision Transformer with a class token or attention pooling; used in evaluation
            mode, and afterwards as before
        images: normalized, (B, channels, H, W)
        layer: of `model.attention_maps`, from 1; None for the last one, or the pool

    Returns:
        (B, branches * heads, rows, columns), or (B, queries * heads, rows, columns) of a pool; the
        rest of one is what class token and registers get.

    Raises:
        OptionError: a ResNet, a model without a class token, a layer that it does not have, or
            images that do not fit.
    """
    seer = transformer(model)
    if not seer.config.has_token and (layer is not None or seer.head.attend is None):
        raise OptionError(
            f"{seer.config.name} has no class token (pool={seer.config.pool}): "
            "vitlab.inspect.rollout shows what reaches the classifier"
        )
    with evaluating(model):
        return torch.cat([_looking(seer, few, layer) for few in chunks(model, images)])


def _looking(model: VisionTransformer, images: Tensor, layer: int | None) -> Tensor:
    """Return where the heads of a few images look, (B, h, rows, columns)."""
    config = model.config
    grid = config.grid_of((images.shape[-2], images.shape[-1]))
    if layer is None and model.head.attend is not None:
        first = 0 if config.pool_prefix else config.prefix
        weights = model.head.attend.weights(model.encode(images)[:, first:])
        rows = weights.flatten(1, 2)[..., config.prefix - first :]  # (B, queries * heads, N)
        return rows.unflatten(-1, grid)
    maps = model.attention_maps(images)
    number = len(maps) if layer is None else layer
    if not 1 <= number <= len(maps):
        raise OptionError(f"layer must be from 1 to {len(maps)}, not {layer}")
    return maps[number - 1][:, :, 0, config.prefix :].unflatten(-1, grid)
