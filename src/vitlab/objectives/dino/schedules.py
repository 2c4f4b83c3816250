"""Schedules of a teacher's momentum and temperature."""

import math

import torch
from torch import Tensor, nn

WARMUP = 0.1  # of the run, until the teacher's temperature is the final one


def momentum_at(step: int, total: int, start: float) -> float:
    """Return the teacher's momentum in a step: from `start` to 1 by a cosine (DINO, section 3.1).

    Args:
        step: from 0
        total: steps of the run
        start: momentum of the first step
    """
    return 1 - (1 - start) * (1 + math.cos(math.pi * step / max(1, total))) / 2


def temperature_at(step: int, total: int, ends: tuple[float, float]) -> float:
    """Return the teacher's temperature in a step: linear over the first tenth of the run.

    DINO warms it up over 30 epochs, whatever the length of the run (appendix C); a share of the run
    is our choice, so that short ones reach the final temperature too.

    Args:
        step: from 0
        total: steps of the run
        ends: the first temperature, and the final one
    """
    first, last = ends
    return first + (last - first) * min(1.0, step / max(1.0, WARMUP * total))


@torch.no_grad()
def follow(teacher: nn.Module, student: nn.Module, momentum: float) -> None:
    """Move a teacher's weights towards the student's: m teacher + (1 - m) student; copy buffers.

    A momentum of 0 makes them the student's, to the bit.
    """
    own: list[Tensor] = list(teacher.parameters())
    new: list[Tensor] = [weight.detach() for weight in student.parameters()]
    if momentum == 0:
        torch._foreach_copy_(own, new)
    else:
        torch._foreach_lerp_(own, new, 1 - momentum)
    for mine, theirs in zip(teacher.buffers(), student.buffers(), strict=True):
        mine.copy_(theirs)
