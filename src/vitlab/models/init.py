"""How dense layers start, as in Google's official code."""

import math

import torch
from torch import Tensor, nn


def reset_dense(dense: nn.Conv2d | nn.Linear, generator: torch.Generator | None = None) -> None:
    """LeCun-normal kernel and zero bias."""
    lecun_normal_(dense.weight, generator)
    if dense.bias is not None:
        nn.init.zeros_(dense.bias)


def lecun_normal_(weight: Tensor, generator: torch.Generator | None = None) -> None:
    """Truncated at two standard deviations, then of standard deviation sqrt(1 / fan_in)."""
    fan_in = weight[0].numel()
    std = math.sqrt(1 / fan_in) / 0.87962566103423978  # the truncation shrinks it by this much
    nn.init.trunc_normal_(weight, 0, std, -2 * std, 2 * std, generator=generator)
