"""The loss along random directions from a model's weights."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vitlab.errors import OptionError
from vitlab.inspect.curvature.lanczos import Floats
from vitlab.inspect.curvature.mean_loss import MeanLoss, at_least


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
