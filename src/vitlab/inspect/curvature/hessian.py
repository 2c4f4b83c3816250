"""The Hessian of the loss: its products, its largest eigenvalues and its trace."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vitlab.errors import OptionError
from vitlab.inspect.curvature.lanczos import Floats, Tridiagonal, lanczos
from vitlab.inspect.curvature.mean_loss import MeanLoss, at_least, differentiable


@dataclass(frozen=True)
class Eigenvalues:
    """The largest eigenvalues of a Hessian.

    Attributes:
        values: the largest first, (count,)
        errors: for each, within what distance the Hessian has an eigenvalue, (count,): the length
            of H u - value u, where u is the estimate of its eigenvector
        least: the most negative eigenvalue that was seen; the true one is not above it
        steps: products with the Hessian
    """

    values: Floats
    errors: Floats
    least: float
    steps: int


@dataclass(frozen=True)
class Trace:
    """An estimate of the trace of a Hessian.

    Attributes:
        mean: over the samples
        error: its standard error; NaN of one sample
    """

    mean: float
    error: float


def hessian_product(loss: MeanLoss, vectors: Tensor) -> Tensor:
    """Multiply vectors by the Hessian H of the loss, exactly but for rounding (Pearlmutter, 1994).

    The gradient is differentiated once more, for all vectors from one forward pass. The kinks of
    ReLUs (BiT and hybrids have them) have no part in it, though they bend the loss as well.

    Args:
        loss: of a model with n weights
        vectors: v, (n,), or several, (k, n)

    Returns:
        H v, of the same shape.

    Raises:
        OptionError: vectors of another length.
    """
    if not 1 <= vectors.ndim <= 2 or vectors.shape[-1] != loss.count:
        raise OptionError(
            f"vectors must be (n,) or (k, n) of n={loss.count} weights, not of shape "
            f"{tuple(vectors.shape)}"
        )
    with differentiable():
        rows = vectors.reshape(-1, loss.count).to(loss.weights[0])
        found = torch.zeros_like(rows)
        for part in loss.parts():
            slopes = torch.autograd.grad(
                part, loss.weights, create_graph=True, materialize_grads=True
            )
            flat = loss.flat(slopes)
            for number, row in enumerate(rows):
                again = torch.autograd.grad(
                    flat, loss.weights, row,
                    retain_graph=number + 1 < len(rows), materialize_grads=True,
                )  # fmt: skip
                found[number] += loss.flat(again)
    return found.view(vectors.shape)


def hessian_eigenvalues(
    loss: MeanLoss, count: int = 3, *, steps: int = 40, tolerance: float = 0.02, seed: int = 0
) -> Eigenvalues:
    """Compute the largest eigenvalues of the Hessian by the Lanczos method, from a random vector.

    The first one is the dominant eigenvalue of Chen, Hsieh and Gong (When Vision Transformers
    Outperform ResNets without Pre-training or Strong Data Augmentations, 2022, section 3.2).

    Args:
        loss: of a model with n weights; as many vectors of n numbers are kept as there are steps
        count: how many
        steps: products with the Hessian, at most
        tolerance: it ends when each eigenvalue is as near to a true one, relative to the first
        seed: of the random vector

    Raises:
        OptionError: fewer steps than eigenvalues, or more eigenvalues than weights.
    """
    at_least("count", count, 1)
    at_least("steps", min(steps, loss.count), count)
    generator = torch.Generator().manual_seed(seed)
    start = loss.flat(loss.draw(generator))

    def enough(found: Tridiagonal) -> bool:
        if len(found.diagonal) <= count:
            return False
        values, errors = _largest(found, count)
        return bool((errors <= tolerance * np.abs(values[0])).all())

    found = lanczos(lambda vector: hessian_product(loss, vector), start, steps, generator, enough)
    values, errors = _largest(found, count)
    return Eigenvalues(values, errors, float(found.eigen()[0][0]), len(found.diagonal))


def hessian_trace(loss: MeanLoss, samples: int = 8, *, seed: int = 0) -> Trace:
    """Estimate the trace of the Hessian from random signs v: the mean of v H v (Hutchinson, 1990).

    Args:
        loss: of a model with n weights; as many vectors of n numbers are kept as there are samples
        samples: vectors
        seed: of the signs

    Raises:
        OptionError: no samples.
    """
    at_least("samples", samples, 1)
    signs = random_signs(loss, samples, torch.Generator().manual_seed(seed))
    each = (signs * hessian_product(loss, signs)).sum(1).cpu().double().numpy()
    error = each.std(ddof=1) / samples**0.5 if samples > 1 else np.nan
    return Trace(float(each.mean()), float(error))


def random_signs(loss: MeanLoss, count: int, generator: torch.Generator) -> Tensor:
    """Draw vectors of +1 and -1, (count, n), the same on every device."""
    bits = torch.randint(2, (count, loss.count), generator=generator)
    return (2 * bits - 1).to(loss.weights[0])


def _largest(found: Tridiagonal, count: int) -> tuple[Floats, Floats]:
    """Return the largest eigenvalues, from the top, and the error of each: (count,) both."""
    values, vectors = found.eigen()
    errors = abs(found.rest * vectors[-1])
    return values[::-1][:count], errors[::-1][:count]
