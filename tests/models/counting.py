"""Multiply-adds of any module, by PyTorch's counter."""

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from vitlab.models.layers import evaluating


def counted_macs(module: nn.Module, channels: int, image_size: tuple[int, int]) -> int:
    """Count those of convolutions and matrix products for one image, on the meta device."""
    named: list[tuple[str, Tensor]] = [*module.named_parameters(), *module.named_buffers()]
    weights = {name: tensor.detach().to("meta") for name, tensor in named}
    images = torch.empty(1, channels, *image_size, device="meta")
    counter = FlopCounterMode(display=False)
    with evaluating(module), torch.no_grad(), counter:
        torch.func.functional_call(module, weights, (images,))
    return counter.get_total_flops() // 2
