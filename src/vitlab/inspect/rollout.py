"""Attention rollout: which patches the output draws on."""

import torch
from torch import Tensor

from vitlab.models.config import ViTConfig
from vitlab.models.layers import evaluating
from vitlab.models.model import Model


@torch.inference_mode()
def rollout(model: Model, images: Tensor) -> Tensor:
    """Compute how much of each patch reaches the class token (ViT paper, appendix D.7).

    The heads' mean, plus the identity for the residual path, normalized to rows that sum to one,
    multiplied through the layers (Abnar and Zuidema, 2020). Without a class token it is the mean
    over all tokens' rows.

    Args:
        model: a Vision Transformer; used in evaluation mode, and afterwards as before
        images: normalized, (B, channels, H, W)

    Returns:
        (B, rows, columns) on the patch grid, not negative.

    Raises:
        OptionError: a ResNet, or images of another shape.
    """
    with evaluating(model):
        maps = model.attention_maps(images)
    config = model.config
    assert isinstance(config, ViTConfig)  # others have no attention maps
    flow = torch.eye(maps[0].shape[-1], device=images.device)
    for weights in maps:
        own = weights.float().mean(dim=1)  # (B, N, N)
        own = own / own.sum(-1, keepdim=True)  # without the share of padded windows
        flow = 0.5 * (own + torch.eye(own.shape[-1], device=own.device)) @ flow
    rows = flow[:, 0] if config.has_token else flow.mean(dim=1)
    return rows[:, config.prefix :].unflatten(1, config.grid_of(images.shape[-2:]))
