"""Attention rollout: which patches the output draws on, through all layers or the last few."""

import torch
from torch import Tensor

from vitlab.errors import OptionError
from vitlab.inspect.passes import chunks, transformer
from vitlab.models.layers import evaluating
from vitlab.models.model import Model
from vitlab.models.vit import VisionTransformer

LATE = 3  # layers of `late_attention`


@torch.inference_mode()
def rollout(model: Model, images: Tensor, *, layer: int | None = None, first: int = 1) -> Tensor:
    """Compute how much of each patch reaches the classifier (ViT paper, appendix D.7).

    Each layer is the identity of the residual path plus the mean of the heads' attention, with one
    such mean for each of several parallel branches, normalized to rows that sum to one; the layers
    are multiplied (Abnar and Zuidema, 2020). The rows are those that the model pools: the class
    token's, the mean of the patches', of both, of the prefix tokens', or as attention pooling
    weighs them. What falls on the padding of windows is shared out among the patches.

    Args:
        model: a Vision Transformer; used in evaluation mode, and afterwards as before
        images: normalized, (B, channels, H, W)
        layer: the last one that is followed, of `model.attention_maps`, from 1; None for all
        first: the one to begin with, from 1: its input counts as the patches

    Returns:
        (B, rows, columns) on the patch grid, not negative; the rest of one is what the class token
        and registers keep.

    Raises:
        OptionError: a ResNet, images that do not fit, or a layer that the model does not have.
    """
    seer = transformer(model)
    with evaluating(model):
        return torch.cat([_rolled(seer, few, layer, first) for few in chunks(model, images)])


def late_attention(model: Model, images: Tensor) -> Tensor:
    """Compute where the last three layers look: what shows the object in really trained models.

    A rollout that begins there. Through all layers of such a model, what reaches the classifier is
    mixed with everything by the layers before: on 20 photographs, of a DINOv2 ViT-S/14's rollout
    57% fell on the object, which was half of the image, of its last three layers' 70% (docs/log.md,
    2026-11-26).

    Args:
        model: a Vision Transformer; used in evaluation mode, and afterwards as before
        images: normalized, (B, channels, H, W)

    Returns:
        (B, rows, columns), as `rollout`.

    Raises:
        OptionError: a ResNet, or images that do not fit.
    """
    config = transformer(model).config
    layers = config.blocks + config.class_blocks
    return rollout(model, images, first=max(1, layers - LATE + 1))


def _rolled(model: VisionTransformer, images: Tensor, layer: int | None, first: int) -> Tensor:
    """Return the rollout of a few images, (B, rows, columns)."""
    config, maps = model.config, model.attention_maps(images)
    number = len(maps) if layer is None else layer
    if not 1 <= number <= len(maps):
        raise OptionError(f"layer must be from 1 to {len(maps)}, not {layer}")
    if not 1 <= first <= number:
        raise OptionError(f"first must be from 1 to {number}, not {first}")
    flow = torch.eye(maps[0].shape[-1], device=images.device)
    for weights in maps[first - 1 : number]:
        flow = carried_on(weights, config.heads) @ flow
    # All pools but attention share alike whatever the tokens are: their number is enough
    blank = torch.empty(len(images), maps[0].shape[-1], 0, device=images.device)
    tokens = blank if model.head.attend is None else model.encode(images)
    pooled = model.head.shares(tokens).float()  # (B, N)
    rows = (pooled[:, None] @ flow)[:, 0]
    return rows[:, config.prefix :].unflatten(1, config.grid_of(images.shape[-2:]))


def carried_on(weights: Tensor, heads: int) -> Tensor:
    """Return what one layer carries from token to token, with its residual path.

    Args:
        weights: its attention, (B, branches * heads, N, N)
        heads: of a branch

    Returns:
        (B, N, N), float32, whose rows sum to one.
    """
    branches = weights.shape[1] // heads
    own = weights.float().mean(dim=1)
    own = own / own.sum(-1, keepdim=True)  # without the share of padded windows
    return (branches * own + torch.eye(own.shape[-1], device=own.device)) / (branches + 1)
