"""Attention rollout: which patches the output draws on."""

import torch
from torch import Tensor

from vitlab.models.layers import evaluating
from vitlab.models.vit import VisionTransformer


@torch.inference_mode()
def rollout(model: VisionTransformer, images: Tensor) -> Tensor:
    """How much each patch flows into the class token (Abnar and Zuidema, 2020; ViT paper, D.7).

    The heads' mean, plus the identity for the residual path, rows brought back to one, multiplied
    through the layers. Without a class token it is the mean over all tokens' rows.

    Args:
        model: used in evaluation mode, and left in the mode it was in
        images: normalized, (B, channels, H, W)

    Returns:
        (B, rows, columns) on the patch grid, not negative.
    """
    with evaluating(model):
        maps = model.attention_maps(images)
    flow = torch.eye(maps[0].shape[-1], device=images.device)
    for weights in maps:
        own = weights.float().mean(dim=1)  # (B, N, N)
        flow = 0.5 * (own + torch.eye(own.shape[-1], device=own.device)) @ flow
    prefix = model.config.prefix
    rows = flow[:, 0] if model.config.has_token else flow.mean(dim=1)
    return rows[:, prefix:].unflatten(1, model.config.grid)
