"""Centering of the teacher: against one answer for all images."""

import math

from torch import Tensor


def sharpened(answers: Tensor, center: Tensor, temperature: Tensor | float) -> Tensor:
    """Return a teacher's probabilities: centered, sharpened answers (DINO, section 3.1).

    Args:
        answers: float32 (…, prototypes)
        center: mean of its answers so far, (prototypes,)
        temperature: below the student's
    """
    return ((answers - center) / temperature).softmax(-1)


def balanced(answers: Tensor, temperature: Tensor | float, rounds: int = 3) -> Tensor:
    """Return a teacher's probabilities by Sinkhorn-Knopp: every prototype is used equally often.

    Source: Caron et al., SwAV, 2020, algorithm 1, as DINOv2 uses it (Oquab et al., 2023, section
    4). It is computed on logarithms, so that no temperature overflows.

    Args:
        answers: float32 (N, prototypes)
        temperature: of the answers
        rounds: each of which scales the prototypes, then the images

    Returns:
        (N, prototypes), each row of sum 1; the columns' sums are nearly equal.
    """
    table = answers / temperature
    for _ in range(rounds):
        table = table - table.logsumexp(0, keepdim=True) - math.log(table.shape[1])
        table = table - table.logsumexp(1, keepdim=True) - math.log(max(1, table.shape[0]))
    return table.softmax(-1)
