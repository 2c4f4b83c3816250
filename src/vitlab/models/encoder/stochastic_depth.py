"""Stochastic depth (Huang et al., 2016): images that skip a residual branch, drawn in training."""

import math

import torch
from torch import Tensor

from vitlab.models.config import ViTConfig


def draw_kept(count: int, rate: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """Draw the images of a batch that pass through a branch.

    Of `count` images `count * (1 - rate)` are kept in expectation: that number is rounded up or
    down at random, so that small batches are dropped from at the stated rate too. The shapes are
    always the same, which a compiled model needs: where the draw rounds down, the last image
    passes with weight 0.

    Args:
        count: images in the batch
        rate: chance of an image to be dropped
        device: of the default generator that is drawn from

    Returns:
        Indices of the images that pass, (P,), and what to multiply their outputs by, (P,):
        1 / (1 - rate), which keeps the expectation, or 0.
    """
    kept = round(count * (1 - rate), 9)  # 100 * (1 - 0.07) is 93
    whole = math.floor(kept)
    chosen = torch.randperm(count, device=device)[: math.ceil(kept)]
    weights = torch.full(chosen.shape, 1 / (1 - rate), device=device)
    if kept == whole:
        return chosen, weights
    last = torch.rand(1, device=device) < kept - whole
    return chosen, torch.cat([weights[:whole], weights[whole:] * last])


def drop_rates(config: ViTConfig) -> list[float]:
    """Return the rate in each block: the same for all, or a ramp from 0."""
    if not config.drop_path_ramp or config.depth == 1:
        return [config.drop_path] * config.depth
    return [config.drop_path * i / (config.depth - 1) for i in range(config.depth)]
