"""What several parts of a model need of their layers: how they start, and what they cost."""

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar, cast

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from vitlab.models.config import ModelConfig, ViTConfig

Layer = TypeVar("Layer", bound=nn.Module)
NORMS = (nn.LayerNorm, nn.RMSNorm)


def modules(layers: Iterable[Layer]) -> Sequence[Layer]:
    """Return an `nn.ModuleList` that type checkers know the elements of."""
    return cast(Sequence[Layer], nn.ModuleList(layers))


def norm_of(config: ViTConfig, width: int | None = None) -> nn.LayerNorm | nn.RMSNorm:
    """Return a norm of the model's kind, over its width or that of a part of it."""
    kind = nn.RMSNorm if config.norm == "rms" else nn.LayerNorm
    return kind(config.width if width is None else width, eps=config.norm_eps)


def reset_norm(norm: nn.Module) -> None:
    """Start a norm as one without scale and shift; leave what stands in for a norm."""
    if isinstance(norm, NORMS):
        norm.reset_parameters()


def reset_dense(dense: nn.Conv2d | nn.Linear, generator: torch.Generator | None = None) -> None:
    """Draw a LeCun-normal kernel and set the bias to zero, as Google's official code does."""
    lecun_normal_(dense.weight, generator)
    if dense.bias is not None:
        nn.init.zeros_(dense.bias)


def lecun_normal_(weight: Tensor, generator: torch.Generator | None = None) -> None:
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


def params_of(*parts: nn.Module) -> int:
    """Count the parameters of some modules; those on the meta device count as well."""
    return sum(weight.numel() for part in parts for weight in part.parameters())


def dense_macs(*layers: nn.Module) -> int:
    """Count the multiply-adds of dense layers at one place: one for each element of a kernel."""
    return sum(layer.weight.numel() for layer in layers if isinstance(layer, nn.Linear))


def counted_macs(module: nn.Module, channels: int, image_size: tuple[int, int]) -> int:
    """Count the multiply-adds of convolutions and matrix products for one image, by shapes alone.

    Nothing is allocated or computed, whatever the size of the module: weights and images are on
    PyTorch's meta device. Norms, activations, pooling and the standardization of kernels are left
    out, as the papers' figures leave them out.
    """
    named = [*module.named_parameters(), *module.named_buffers()]
    weights = {name: tensor.to("meta") for name, tensor in named}
    images = torch.empty(1, channels, *image_size, device="meta")
    counter = FlopCounterMode(display=False)
    with evaluating(module), torch.no_grad(), counter:
        torch.func.functional_call(module, weights, (images,))
    return counter.get_total_flops() // 2
