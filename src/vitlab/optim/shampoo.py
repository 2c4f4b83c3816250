"""Shampoo: gradients preconditioned by the roots of their second moments."""

from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

LARGEST = 8192  # larger sides are not preconditioned: their roots would take too long
RIDGE = 1e-6  # of the largest eigenvalue


class Shampoo(Optimizer):
    """The direction L^(-1/4) M R^(-1/4), with the length of Adam's step.

    L and R are moving averages of G G' and G' G for a kernel's gradient G, viewed as a matrix of
    its outputs by everything else, and M of G itself (Gupta et al., 2018; moving averages, roots at
    intervals and the grafted length: Anil et al., 2021; Adam's: Shi et al., 2023). Weight decay is
    decoupled. (pytorch_optimizer's two either keep objects that only unpickling restores, or take
    no step before the first roots.)

    Args:
        params: groups of kernels, each with its `weight_decay`
        lr: learning rate
        betas: decay of the mean gradient, and of all second moments
        eps: of Adam's step
        every: steps between two computations of the roots
    """

    def __init__(
        self,
        params: list[dict[str, Any]],
        lr: float,
        betas: tuple[float, float],
        eps: float,
        every: int,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "every": every, "step": 0})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Take a step; parameters without a gradient stay as they are."""
        for group in self.param_groups:
            group["step"] += 1
            for weight in group["params"]:
                if weight.grad is not None:
                    update = self._update(weight, weight.grad.flatten(1), group)
                    weight.mul_(1 - group["lr"] * group["weight_decay"])
                    weight.sub_(group["lr"] * update.view_as(weight))

    def _update(self, weight: Tensor, grad: Tensor, group: dict[str, Any]) -> Tensor:
        """Return the step of one kernel, (outputs, inputs), before the learning rate."""
        (beta1, beta2), step = group["betas"], group["step"]
        state = self.state[weight]
        sides = [side for side in (0, 1) if grad.shape[side] <= LARGEST]
        if not state:
            state |= {"m": torch.zeros_like(grad), "v": torch.zeros_like(grad)}
            for side in sides:
                state[f"second{side}"] = grad.new_zeros(grad.shape[side], grad.shape[side])
        state["m"].lerp_(grad, 1 - beta1)
        state["v"].mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        mean = state["m"] / (1 - beta1**step)
        adam = mean / ((state["v"] / (1 - beta2**step)).sqrt() + group["eps"])
        direction = mean
        for side in sides:
            there = grad if side == 0 else grad.mT
            state[f"second{side}"].mul_(beta2).addmm_(there, there.mT, alpha=1 - beta2)
            if (step - 1) % group["every"] == 0 or f"root{side}" not in state:
                whole = state[f"second{side}"] / (1 - beta2**step)
                state[f"root{side}"] = inverse_root(whole, 2 * len(sides))
            root = state[f"root{side}"]
            direction = root @ direction if side == 0 else direction @ root
        return direction * (adam.norm() / direction.norm().clamp(min=1e-30))


def inverse_root(matrix: Tensor, order: int) -> Tensor:
    """Return matrix^(-1/order) of a symmetric matrix plus a ridge; of zero, the identity."""
    values, vectors = torch.linalg.eigh(matrix)
    top = values[-1].clamp(min=0)
    values = values.clamp(min=0) + torch.where(top > 0, RIDGE * top, 1.0)
    return (vectors * values ** (-1 / order)) @ vectors.mT
