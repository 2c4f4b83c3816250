"""LAMB, the optimizer of the recipes of Three things."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


class Lamb(Optimizer):
    """Adam with steps as long, for each kernel, as the kernel itself times the learning rate.

    You et al., 2020, Algorithm 2, with the bias correction; groups without weight decay (norms,
    biases) take Adam's own step, as in Apex and timm, on which the recipes were tuned. Clipping is
    left to the trainer. (pytorch_optimizer's LAMB corrects no bias and limits a weight's norm to
    10, which a ViT-B's weights exceed.)

    Args:
        params: groups of parameters, each with its `weight_decay`
        lr: learning rate
        betas: decay of the two moments
        eps: added to the root of the second moment
    """

    def __init__(
        self, params: list[dict[str, Any]], lr: float, betas: tuple[float, float], eps: float
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "step": 0})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Take a step; parameters without a gradient stay as they are."""
        for group in self.param_groups:
            weights = [weight for weight in group["params"] if weight.grad is not None]
            if not weights:
                continue
            group["step"] += 1
            updates = self._adam(weights, group)
            if decay := group["weight_decay"]:
                torch._foreach_add_(updates, weights, alpha=decay)
                torch._foreach_mul_(updates, _trust(weights, updates))
            torch._foreach_add_(weights, updates, alpha=-group["lr"])

    def _adam(self, weights: list[Tensor], group: dict[str, Any]) -> list[Tensor]:
        """Return Adam's step, before the learning rate."""
        for weight in weights:
            if not self.state[weight]:
                self.state[weight] = {"m": torch.zeros_like(weight), "v": torch.zeros_like(weight)}
        grads: list[Tensor] = [weight.grad for weight in weights if weight.grad is not None]
        first: list[Tensor] = [self.state[weight]["m"] for weight in weights]
        second: list[Tensor] = [self.state[weight]["v"] for weight in weights]
        (beta1, beta2), step = group["betas"], group["step"]
        torch._foreach_lerp_(first, grads, 1 - beta1)
        torch._foreach_mul_(second, beta2)
        torch._foreach_addcmul_(second, grads, grads, 1 - beta2)
        updates = torch._foreach_div(first, 1 - beta1**step)
        below = torch._foreach_sqrt(second)
        torch._foreach_div_(below, math.sqrt(1 - beta2**step))
        torch._foreach_add_(below, group["eps"])
        torch._foreach_div_(updates, below)
        return list(updates)


def _trust(weights: list[Tensor], updates: list[Tensor]) -> list[Tensor]:
    """Return the norm of each weight over that of its update; 1 where either is zero."""
    above, below = (torch.stack(torch._foreach_norm(each)) for each in (weights, updates))
    return list(torch.where((above > 0) & (below > 0), above / below, 1.0).unbind())
