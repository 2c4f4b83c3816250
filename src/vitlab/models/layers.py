"""Helpers for layers: lists, norms, initial weights."""

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from vitlab.models.configs.model_config import ModelConfig
from vitlab.models.configs.vit_config import ViTConfig

Layer = TypeVar("Layer", bound=nn.Module)
NORMS = (nn.LayerNorm, nn.RMSNorm)


def modules(layers: Iterable[Layer]) -> Sequence[Layer]:
    """Return an `nn.ModuleList` that type checkers know the elements of."""
    return cast(Sequence[Layer], nn.ModuleList(layers))


def norm_of(config: ViTConfig, width: int | None = None) -> nn.LayerNorm | nn.RMSNorm:
    """Return a norm of the model's kind, over its width or that of a part of it."""
    kind = nn.RMSNorm if config.norm == "rms" else nn.LayerNorm
    return kind(width or config.width, eps=config.norm_eps)


def reset_parts(generator: torch.Generator | None, *parts: Any) -> None:
    """Start each part in turn as itself says; leave what is absent or has nothing to start."""
    for part in parts:
        if isinstance(part, NORMS):
            part.reset_parameters()
        elif part is not None and not isinstance(part, nn.Identity):
            part.reset_parameters(generator)


def reset_xavier(
    layers: Sequence[tuple[nn.Linear, int]],
    generator: torch.Generator | None,
    bias_std: float = 0.0,
) -> None:
    """Draw Xavier-uniform kernels, then biases.

    Args:
        layers: each with the number of maps that lie in it side by side, which are drawn apart
        generator: None for PyTorch's own
        bias_std: deviation of the biases; 0 for zeros
    """
    for layer, count in layers:
        for weight in layer.weight.chunk(count):
            nn.init.xavier_uniform_(weight, generator=generator)
    for layer, _ in layers:
        if layer.bias is not None and bias_std:
            nn.init.normal_(layer.bias, std=bias_std, generator=generator)
        elif layer.bias is not None:
            nn.init.zeros_(layer.bias)


def reset_dense(dense: nn.Conv2d | nn.Linear, generator: torch.Generator | None) -> None:
    """Draw a LeCun-normal kernel and set the bias to zero, as Google's official code does."""
    lecun_normal_(dense.weight, generator)
    if dense.bias is not None:
        nn.init.zeros_(dense.bias)


def lecun_normal_(weight: Tensor, generator: torch.Generator | None) -> None:
    """Fill with a normal of variance 1 / fan_in, truncated at two standard deviations."""
    fan_in = weight[0].numel()
    std = math.sqrt(1 / fan_in) / 0.87962566103423978  # the truncation shrinks it by this much
    nn.init.trunc_normal_(weight, 0, std, -2 * std, 2 * std, generator=generator)


def classifier(config: ModelConfig) -> nn.Module:
    """Return the linear classifier of a model; the identity for one without classes."""
    return nn.Linear(config.features, config.classes) if config.classes else nn.Identity()


def reset_classifier(
    classify: nn.Module, config: ModelConfig, generator: torch.Generator | None = None
) -> None:
    """Set the kernel to zero (Google) or draw a truncated normal of 0.02 (DeiT)."""
    if not isinstance(classify, nn.Linear):
        return
    if config.zero_head:
        nn.init.zeros_(classify.weight)
    else:
        nn.init.trunc_normal_(classify.weight, std=0.02, generator=generator)
    nn.init.constant_(classify.bias, config.head_bias)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode in the block; after it every module is as it was."""
    training = [module for module in model.modules() if module.training]
    try:
        model.eval()
        yield
    finally:
        for module in training:
            module.training = True
