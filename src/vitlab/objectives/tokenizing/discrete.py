"""The mathematics of a discrete VAE: sampled codes, their divergence, and its likelihood."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

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


def straight_through(shares: Tensor) -> Tensor:
    """Return the likeliest code alone, with the gradient of the shares (Bengio et al., 2013).

    Args:
        shares: (B, codes, rows, columns)

    Returns:
        0 and 1, likewise
    """
    hard = torch.zeros_like(shares).scatter_(1, shares.argmax(1, keepdim=True), 1.0)
    return hard + shares - shares.detach()


def uniform_divergence(logits: Tensor) -> Tensor:
    """Return the KL divergence of the codes' distribution at each place from a uniform one.

    Args:
        logits: float32 (B, codes, rows, columns)

    Returns:
        Nats, from 0 to log(codes): (B, rows, columns)
    """
    logs = logits.log_softmax(1)
    return (logs.exp() * logs).sum(1) + math.log(logits.shape[1])


def laplace_loss(outputs: Tensor, pixels: Tensor) -> Tensor:
    """Return the negative logarithm of the logit-Laplace density (DALL-E paper, appendix A.3).

    f(x) = exp(-|logit x - center| / scale) / (2 scale x (1 - x)).

    Args:
        outputs: float32 (B, 2 * channels, H, W): centers, then the logarithms of the scales
        pixels: x, inside (0, 1), (B, channels, H, W)

    Returns:
        Nats, (B, channels, H, W)
    """
    centers, logs = outputs.chunk(2, dim=1)
    distance = (pixels.logit() - centers).abs() * (-logs).exp()
    return distance + logs + math.log(2) + (pixels * (1 - pixels)).log()


def reconstruction_loss(kind: str, outputs: Tensor, images: Tensor) -> Tensor:
    """Return the mean over images, channels and pixels of a squared or smooth absolute error.

    Args:
        kind: `mse`; or `smooth-l1`, half the squared error below 1, and the error less 0.5 above
        outputs: float32 (B, channels, H, W)
        images: normalized, likewise
    """
    if kind == "smooth-l1":
        return F.smooth_l1_loss(outputs, images)
    return F.mse_loss(outputs, images)
