"""Batch norm over the images of all processes.

PyTorch's own `SyncBatchNorm` needs GPUs; this one works wherever an all-reduce does, takes shares
of any length, and gives what one process computes for the whole batch.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn


class Sum(torch.autograd.Function):
    """The sum of a tensor over all processes; its gradient is the sum of theirs."""

    @staticmethod
    def forward(ctx: Any, own: Tensor) -> Tensor:
        """Return the same sum in every process."""
        total = own.detach().clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        """Sum the gradients of all processes, since all of them used the sum."""
        total = gradients[0].clone()
        dist.all_reduce(total)
        return total


def summed(own: Tensor) -> Tensor:
    """Return the sum over all processes, differentiable."""
    return cast(Tensor, Sum.apply(own))  # type: ignore[no-untyped-call]


class SyncBatchNorm(nn.BatchNorm2d):
    """`BatchNorm2d` whose training statistics are those of all processes' images.

    Attributes:
        counted: whether the images that pass are real; black ones leave no trace
    """

    counted = True

    def forward(self, input: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, C, H, W)."""
        if not self.training or not dist.is_initialized():
            return super().forward(input)
        own = input.float() if self.counted else input.float() * 0
        places = float(own.numel() / own.shape[1]) if self.counted else 0.0
        sums = summed(torch.cat([own.sum((0, 2, 3)), own.new_tensor([places])]))
        count, shape = sums[-1].detach(), (1, -1, 1, 1)
        mean = sums[:-1] / count.clamp(min=1)
        away = own - mean.view(shape)
        squares = (away * away).sum((0, 2, 3)) if self.counted else away.sum((0, 2, 3)) * 0
        var = summed(squares) / count.clamp(min=1)  # in a second pass, so that nothing cancels
        if count > 0 and self.track_running_stats:
            self._update(mean.detach(), var.detach(), count)
        scale = torch.rsqrt(var + self.eps) * self.weight
        return (away * scale.view(shape) + self.bias.view(shape)).to(input.dtype)

    @torch.no_grad()
    def _update(self, mean: Tensor, var: Tensor, count: Tensor) -> None:
        """Update the running statistics as `BatchNorm2d` does."""
        running = (cast(Tensor, self.running_mean), cast(Tensor, self.running_var))
        unbiased = var * (count / (count - 1).clamp(min=1))
        cast(Tensor, self.num_batches_tracked).add_(1)
        for old, new in zip(running, (mean, unbiased), strict=True):
            old.lerp_(new.to(old.dtype), cast(float, self.momentum))


def synchronize(model: nn.Module) -> None:
    """Replace every batch norm by a `SyncBatchNorm` with the same weights."""
    for name, module in list(model.named_modules()):
        if type(module) is not nn.BatchNorm2d:
            continue
        with torch.device("meta"):
            new = SyncBatchNorm(module.num_features, module.eps, module.momentum)
        new.weight, new.bias = module.weight, module.bias
        for buffer, tensor in module.named_buffers():
            setattr(new, buffer, tensor)
        new.train(module.training)
        model.set_submodule(name, new)


@contextmanager
def uncounted(model: nn.Module) -> Iterator[None]:
    """Within the context, images pass through the batch norms without counting."""
    norms = [module for module in model.modules() if isinstance(module, SyncBatchNorm)]
    for norm in norms:
        norm.counted = False
    try:
        yield
    finally:
        for norm in norms:
            norm.counted = True
