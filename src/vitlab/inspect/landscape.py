"""The landscape of the loss: along random directions, uphill, in noise; and all in one row."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vitlab.device import exact
from vitlab.errors import OptionError
from vitlab.inspect.hessian import Floats, MeanLoss, at_least, hessian_eigenvalues, hessian_trace
from vitlab.models.model import Model
from vitlab.optim.sam import uphill


def curvature(
    model: Model,
    images: Tensor,
    labels: Tensor,
    *,
    seed: int = 0,
    top: int = 3,
    steps: int = 20,
    samples: int = 5,
    rho: float = 0.05,
    noise: float = 0.1,
    hessian_images: int = 128,
) -> dict[str, float]:
    """Compute how curved the mean cross-entropy is around a model's weights.

    Args:
        model: any with a classifier; it stays as it is
        images: normalized, (B, channels, H, W)
        labels: the class of each image, int64 (B,)
        seed: of the images of the Hessian, and of all random vectors
        top: eigenvalues of the Hessian
        steps: products with the Hessian for these, at most
        samples: random vectors of the trace, and of the noise
        rho: distance of the step of `sharpness`, which is of groups of 128 images
        noise: size of `noise_increase`, relative to the weights
        hessian_images: the Hessian is of so many images, drawn at random, for each of its products
            takes about 12 times as long as a forward pass

    Returns:
        `loss` and `gradient_norm`; `hessian_max`, the largest eigenvalue of the Hessian, and
        `hessian_2` … up to `top`; `hessian_max_error`, within what distance of `hessian_max` the
        Hessian has an eigenvalue; `hessian_min`, the most negative one that was seen;
        `hessian_trace` and its standard error, `hessian_trace_error`; `sharpness` and
        `noise_increase`, in nats.

    Raises:
        OptionError: as of `MeanLoss`, and settings that cannot be.
    """
    at_least("hessian_images", hessian_images, 1)
    loss = MeanLoss(model, images, labels)
    some = loss.drawn(hessian_images, seed)
    found = hessian_eigenvalues(some, top, steps=steps, seed=seed)
    trace = hessian_trace(some, samples, seed=seed)
    others = {f"hessian_{rank}": float(each) for rank, each in enumerate(found.values[1:], 2)}
    return {
        "loss": loss.value(),
        "gradient_norm": gradient_norm(loss),
        "hessian_max": float(found.values[0]),
        "hessian_max_error": float(found.errors[0]),
        **others,
        "hessian_min": found.least,
        "hessian_trace": trace.mean,
        "hessian_trace_error": trace.error,
        "sharpness": sharpness(loss, rho),
        "noise_increase": noise_increase(loss, noise, samples=samples, seed=seed),
    }


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


@dataclass(frozen=True)
class LossLine:
    """The loss along straight lines through a model's weights.

    Attributes:
        steps: how far along a direction, (points,); 1 is as far as the filters are long
        losses: mean cross-entropy, nats, (directions, points)
    """

    steps: Floats
    losses: Floats


@dataclass(frozen=True)
class LossSurface:
    """The loss on a plane through a model's weights.

    Attributes:
        steps: how far along either direction, (points,); 1 is as far as the filters are long
        losses: mean cross-entropy, nats, (points of the first, points of the second)
    """

    steps: Floats
    losses: Floats


def filter_direction(loss: MeanLoss, generator: torch.Generator) -> list[Tensor]:
    """Draw a direction each of whose filters is as long as the model's (Li et al., 2018, 4).

    A filter is what belongs to one output: a row of a matrix, a kernel of a convolution. Biases,
    norms and all else that is a vector stay as they are: their direction is zero.

    Args:
        loss: of a model
        generator: of the normal numbers, on the CPU

    Returns:
        A tensor for each of `loss.weights`, in its shape.
    """
    return [
        _as_long(drawn, weight.detach())
        for drawn, weight in zip(loss.draw(generator), loss.weights, strict=True)
    ]


def loss_line(
    loss: MeanLoss, *, radius: float = 1.0, points: int = 21, directions: int = 3, seed: int = 0
) -> LossLine:
    """Compute the loss along filter-normalized random directions, to both sides.

    Source: Li et al., Visualizing the Loss Landscape of Neural Nets, 2018, sections 3 and 4.

    Args:
        loss: of a model
        radius: how far to go; 1 is as far as the filters are long
        points: of a line, an odd number, so that the middle one is the model
        directions: how many, each drawn by itself
        seed: of the directions

    Raises:
        OptionError: a radius that is not positive, an even number of points, or no directions.
    """
    at_least("directions", directions, 1)
    steps = _steps(radius, points)
    generator = torch.Generator().manual_seed(seed)
    losses = []
    for _ in range(directions):
        direction = filter_direction(loss, generator)
        losses.append([_loss_at(loss, [direction], (step,)) for step in steps])
    return LossLine(steps, np.array(losses))


def loss_surface(
    loss: MeanLoss, *, radius: float = 1.0, points: int = 11, seed: int = 0
) -> LossSurface:
    """Compute the loss on the plane of two filter-normalized random directions.

    The first direction is the first one of `loss_line` with the same seed. Source: as there.

    Args:
        loss: of a model
        radius: how far to go along either; 1 is as far as the filters are long
        points: along either, an odd number, so that the middle one is the model
        seed: of the directions

    Raises:
        OptionError: a radius that is not positive, or an even number of points.
    """
    steps = _steps(radius, points)
    generator = torch.Generator().manual_seed(seed)
    plane = [filter_direction(loss, generator), filter_direction(loss, generator)]
    rows = [[_loss_at(loss, plane, (one, two)) for two in steps] for one in steps]
    return LossSurface(steps, np.array(rows))


def _steps(radius: float, points: int) -> Floats:
    if not radius > 0:
        raise OptionError(f"radius must be positive, not {radius}")
    if points < 1 or points % 2 == 0:
        raise OptionError(f"points must be odd, so that the middle one is the model, not {points}")
    return radius * np.arange(-(points // 2), points // 2 + 1) / max(points // 2, 1)


def _loss_at(loss: MeanLoss, directions: list[list[Tensor]], steps: tuple[float, ...]) -> float:
    """Return the loss so far along each direction."""
    parts = zip(*directions, strict=True)
    moves = [
        torch.stack([float(step) * part for step, part in zip(steps, each, strict=True)]).sum(0)
        for each in parts
    ]
    with loss.moved(moves):
        return loss.value()


def _as_long(drawn: Tensor, weight: Tensor) -> Tensor:
    """Scale each filter of what was drawn to the length of the weight's."""
    if weight.ndim < 2:
        return torch.zeros_like(weight)
    apart = tuple(range(1, weight.ndim))
    lengths = torch.linalg.vector_norm(weight, dim=apart, keepdim=True)
    return drawn * (lengths / torch.linalg.vector_norm(drawn, dim=apart, keepdim=True))
