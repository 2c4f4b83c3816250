"""Centering of the teacher and KoLeo: against one answer for all images, and crowded features."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

TINY = 1e-8


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


def koleo(features: Tensor) -> Tensor:
    """Return the KoLeo loss: less the mean logarithm of each feature's distance to its nearest.

    Source: Sablayrolles et al., Spreading vectors for similarity search, 2019, as in DINOv2 (Oquab
    et al., 2023, section 4): of features of length 1, the nearest one by cosine.

    Args:
        features: float32 (B, D); alone, an image has no neighbor, and the loss is 0
    """
    if len(features) < 2:
        return features.sum() * 0
    unit = F.normalize(features, eps=TINY, dim=-1)
    with torch.no_grad():
        nearest = (unit @ unit.T).fill_diagonal_(-1).argmax(1)
    apart = F.pairwise_distance(unit, unit[nearest], eps=TINY)
    return -(apart + TINY).log().mean()
