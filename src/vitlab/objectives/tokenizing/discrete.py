"""The mathematics of a discrete VAE: sampled codes, and their divergence."""

import math

from torch import Tensor

from vitlab.objectives.per_sample_rng import Draws, exponentials


def gumbel_softmax(logits: Tensor, temperature: float, draws: Draws) -> Tensor:
    """Draw a relaxed one-hot vector at each place (Jang et al., 2016; Maddison et al., 2016).

    As the temperature falls to 0 it becomes a code drawn by its probability, softmax(logits).

    Args:
        logits: float32 (B, codes, rows, columns)
        temperature: above 0
        draws: of the Gumbel noise, -log(-log u) with u uniform in (0, 1)

    Returns:
        Shares that add up to 1 over the codes, (B, codes, rows, columns)
    """
    exponential = exponentials(draws, *logits.shape).to(logits)
    return ((logits - exponential.log()) / temperature).softmax(1)


def uniform_divergence(logits: Tensor) -> Tensor:
    """Return the KL divergence of the codes' distribution at each place from a uniform one.

    Args:
        logits: float32 (B, codes, rows, columns)

    Returns:
        Nats, from 0 to log(codes): (B, rows, columns)
    """
    logs = logits.log_softmax(1)
    return (logs.exp() * logs).sum(1) + math.log(logits.shape[1])
