"""The Lanczos method: a symmetric matrix, known by its products, seen through few vectors."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Tridiagonal:
    """The matrix within the span of m orthonormal vectors, in whose basis it is tridiagonal.

    Attributes:
        diagonal: (m,)
        beside: (m - 1,)
        rest: how far the span is from being mapped into itself; 0 if its eigenvalues are exact
    """

    diagonal: Floats
    beside: Floats
    rest: float

    def eigen(self) -> tuple[Floats, Floats]:
        """Return its eigenvalues in ascending order, (m,), and its eigenvectors as columns."""
        matrix = np.diag(self.diagonal) + np.diag(self.beside, 1) + np.diag(self.beside, -1)
        values, vectors = np.linalg.eigh(matrix)
        return values, vectors


def lanczos(
    times: Callable[[Tensor], Tensor],
    start: Tensor,
    steps: int,
    generator: torch.Generator,
    enough: Callable[[Tridiagonal], bool] | None = None,
) -> Tridiagonal:
    """Reduce a symmetric matrix A to tridiagonal form, from a first vector.

    Each new vector is made orthogonal to all before it, twice, so that no eigenvalue comes more
    often than the matrix has it. Where the span is mapped into itself, it goes on with a random
    vector, so that eigenvalues that come several times are found. It keeps `steps` vectors. Source:
    Golub and Van Loan, Matrix Computations, 4th edition, 10.1 and 10.3.1.

    Args:
        times: v to A v, each (n,)
        start: the first vector, (n,), of any length but 0
        steps: products with A; at most n are made
        generator: of the random vectors, on the CPU
        enough: asked after each product, whether it may end
    """
    steps = min(steps, len(start))
    basis = start.new_empty(steps, len(start))
    basis[0] = start / start.norm()
    diagonal: list[float] = []
    beside: list[float] = []
    for step in range(steps):
        image = times(basis[step])
        length = float(image.norm())
        diagonal.append(float(basis[step] @ image))
        after = _orthogonal(image, basis[: step + 1])
        rest = float(after.norm())
        if rest <= 10 * torch.finfo(start.dtype).eps * length:
            rest, after = 0.0, _orthogonal(_drawn(start, generator), basis[: step + 1])
        found = Tridiagonal(np.array(diagonal), np.array(beside), rest)
        if step + 1 == steps or (enough is not None and enough(found)):
            break
        basis[step + 1] = after / after.norm()
        beside.append(rest)
    return found


def _orthogonal(vector: Tensor, basis: Tensor) -> Tensor:
    """Return what of a vector, (n,), is orthogonal to the rows of a basis, (k, n)."""
    for _ in range(2):  # what rounding leaves the first time is gone the second
        vector = vector - (basis @ vector) @ basis
    return vector


def _drawn(like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(like.shape, generator=generator, dtype=like.dtype).to(like.device)
