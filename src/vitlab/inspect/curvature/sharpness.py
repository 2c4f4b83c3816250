"""How much the loss rises nearby: uphill, and in random directions."""

import torch

from vitlab.device import exact
from vitlab.errors import OptionError
from vitlab.inspect.curvature.mean_loss import MeanLoss, at_least
from vitlab.optim.sam import uphill


def gradient_norm(loss: MeanLoss) -> float:
    """Compute the Euclidean length of the gradient in all weights."""
    return float(exact(loss.gradient()).norm())


def sharpness(loss: MeanLoss, rho: float = 0.05, *, group: int = 128) -> float:
    """Compute how much the loss rises by one step of SAM uphill, in nats.

    Each group of images has a step of its own, rho along its gradient, which to first order leads
    to the highest loss within that distance: the m-sharpness of Foret et al. (Sharpness-Aware
    Minimization, 2021, equation 2 and section 4.1), m the images of a group. It is the mean over
    the images.

    Args:
        loss: of a model
        rho: the distance, Euclidean over all weights
        group: images of a group; the last one may be smaller

    Raises:
        OptionError: a distance that is not positive, or an empty group.
    """
    if not rho > 0:
        raise OptionError(f"rho must be positive, not {rho}")
    at_least("group", group, 1)
    images = len(loss.images)
    rise = 0.0
    for rows in torch.arange(images, device=loss.images.device).split(group):
        part = loss.on(rows)
        before = part.value()
        part.backward()
        with uphill(part.model, rho):
            rise += (part.value() - before) * len(rows) / images
    return rise


def noise_increase(loss: MeanLoss, size: float = 0.1, *, samples: int = 5, seed: int = 0) -> float:
    """Compute how much the loss rises on average by Gaussian noise on the weights, in nats.

    This is the average flatness of Chen, Hsieh and Gong (2022, section 3.2), but that the noise is
    relative: its standard deviation in each tensor is `size` times the root mean square of the
    tensor, so that models whose weights have other scales can be compared.

    Args:
        loss: of a model
        size: of the noise, relative to the weights
        samples: draws, whose mean it is
        seed: of the noise

    Raises:
        OptionError: a size that is not positive, or no samples.
    """
    if not size > 0:
        raise OptionError(f"size must be positive, not {size}")
    at_least("samples", samples, 1)
    generator = torch.Generator().manual_seed(seed)
    scales = [size * weight.detach().square().mean().sqrt() for weight in loss.weights]
    before, total = loss.value(), 0.0
    for _ in range(samples):
        noise = [scale * each for scale, each in zip(scales, loss.draw(generator), strict=True)]
        with loss.moved(noise):
            total += loss.value() - before
    return total / samples
