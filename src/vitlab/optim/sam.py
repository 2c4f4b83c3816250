"""Sharpness-aware minimization: the gradient where the loss nearby is highest."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


@contextmanager
def uphill(model: nn.Module, rho: float) -> Iterator[None]:
    """Within the context, move the weights by rho along the gradient (Foret et al., 2021, eq. 2).

    The gradient accumulated there is the one to step with. Afterwards the weights are restored to
    the same bits.

    Args:
        model: with gradients, which are cleared for the block to accumulate
        rho: the distance, in the Euclidean norm over all weights
    """
    weights: list[Tensor] = [weight for weight in model.parameters() if weight.grad is not None]
    before = [weight.detach().clone() for weight in weights]
    with torch.no_grad():
        grads: list[Tensor] = [weight.grad for weight in weights if weight.grad is not None]
        length = torch.stack(torch._foreach_norm(grads)).norm()
        steps = torch._foreach_mul(grads, rho / (length + 1e-12))
        torch._foreach_add_(weights, list(steps))
    for weight in weights:
        weight.grad = None
    try:
        yield
    finally:
        with torch.no_grad():
            torch._foreach_copy_(weights, before)


@contextmanager
def statistics_kept(network: nn.Module) -> Iterator[None]:
    """Within the context, batch norms do not update their running statistics."""
    norms = [each for each in network.modules() if getattr(each, "track_running_stats", False)]
    for norm in norms:
        norm.track_running_stats = False  # type: ignore[assignment]
    try:
        yield
    finally:
        for norm in norms:
            norm.track_running_stats = True  # type: ignore[assignment]
