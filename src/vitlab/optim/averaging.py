"""Averages of weights over the run: the one to evaluate and to keep, and momentum teachers."""

import copy
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

from vitlab.optim.sliced import local

Model = TypeVar("Model", bound=nn.Module)


class WeightAverage(Generic[Model]):
    """Exponential moving average of a model's weights; buffers are copied.

    With warm-up, the decay grows from 0.1 to its full value as (1 + n) / (10 + n) after n updates,
    so that the random start is soon forgotten. Without, it is constant: what the ViT paper calls
    Polyak averaging (Table 2, decay 0.9999; its code was not published), from a pre-trained model.

    Args:
        model: the model to average; its weights are the start
        decay: its full value
        warmup: whether the decay grows to it
    """

    def __init__(self, model: Model, decay: float, warmup: bool = True) -> None:
        self.model: Model = copy.deepcopy(model).requires_grad_(False).eval()
        self.decay = decay
        self.warmup = warmup

    def update(self, model: nn.Module, updates: int) -> None:
        """Add the weights after an optimizer step, `updates` updates having been made before."""
        decay = min(self.decay, (1 + updates) / (10 + updates)) if self.warmup else self.decay
        follow(self.model, model, decay)


@torch.no_grad()
def follow(teacher: nn.Module, student: nn.Module, momentum: float) -> None:
    """Move a teacher's weights towards the student's: m teacher + (1 - m) student; copy buffers.

    A momentum of 0 makes them the student's, to the bit.
    """
    own: list[Tensor] = [local(weight) for weight in teacher.parameters()]
    new: list[Tensor] = [local(weight) for weight in student.parameters()]
    if momentum == 0:
        torch._foreach_copy_(own, new)
    else:
        torch._foreach_lerp_(own, new, 1 - momentum)
    for mine, theirs in zip(teacher.buffers(), student.buffers(), strict=True):
        mine.copy_(theirs)
