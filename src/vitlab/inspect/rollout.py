"""Attention rollout: which patches the output draws on."""

import torch
from torch import Tensor

from vitlab.models.layers import evaluating
from vitlab.models.model import Model
from vitlab.models.vit import VisionTransformer


@torch.inference_mode()
def rollout(model: Model, images: Tensor) -> Tensor:
    """Compute how much of each patch reaches the classifier (ViT paper, appendix D.7).

    Each layer is the identity of the residual path plus the mean of the heads' attention, with one
    such mean for each of several parallel branches, normalized to rows that sum to one; the layers
    are multiplied (Abnar and Zuidema, 2020). The rows are those that the model pools: the class
    token's, the mean of the patches', of both, of the prefix tokens', or as attention pooling
    weighs them.

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
        assert isinstance(model, VisionTransformer)  # others have no attention maps
        pooled = model.head.shares(model.encode(images)).float()  # (B, N)
    config = model.config
    flow = torch.eye(maps[0].shape[-1], device=images.device)
    for weights in maps:
        branches = weights.shape[1] // config.heads
        own = weights.float().mean(dim=1)  # (B, N, N)
        own = own / own.sum(-1, keepdim=True)  # without the share of padded windows
        layer = branches * own + torch.eye(own.shape[-1], device=own.device)
        flow = layer / (branches + 1) @ flow
    rows = (pooled[:, None] @ flow)[:, 0]
    return rows[:, config.prefix :].unflatten(1, config.grid_of(images.shape[-2:]))
