"""From gradients to steps."""

import torch
from torch import nn

from vitlab.training.recipe import Optimiser


def build(model: nn.Module, how: Optimiser) -> torch.optim.Optimizer:
    """AdamW over a model's trainable parameters, decaying the matrices alone."""
    free = [(name, weight) for name, weight in model.named_parameters() if weight.requires_grad]
    groups = [
        {"params": [w for n, w in free if decays(n, w)], "weight_decay": how.weight_decay},
        {"params": [w for n, w in free if not decays(n, w)], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=how.lr, betas=how.betas, fused=True)


def decays(name: str, weight: torch.Tensor) -> bool:
    """Whether weight decay is for this parameter.

    Kernels only: not norms and biases (one dimension), nor what is added to tokens or stands
    among them, as in the official code's mask.
    """
    added = ("token", "registers", "positions.", "head.attend.queries", "stem.places")
    return weight.ndim > 1 and not name.startswith(added)
