"""The spectrum of the Hessian: how many eigenvalues are where."""

from dataclasses import dataclass

import numpy as np
import torch

from vitlab.errors import OptionError
from vitlab.inspect.curvature.hessian import hessian_product, random_signs
from vitlab.inspect.curvature.lanczos import Floats, lanczos
from vitlab.inspect.curvature.mean_loss import MeanLoss, at_least


@dataclass(frozen=True)
class Spectrum:
    """An estimate of the distribution of a Hessian's eigenvalues, each of the same share.

    Attributes:
        nodes: places on the axis of eigenvalues, (probes, steps)
        weights: the share of the eigenvalues at each; those of a probe sum to 1, (probes, steps)
    """

    nodes: Floats
    weights: Floats

    def moment(self, order: int) -> float:
        """Return the mean of the eigenvalues' powers; of order 1 it is the trace / n."""
        return float((self.weights * self.nodes**order).sum() / len(self.nodes))

    def density(self, places: Floats, width: float) -> Floats:
        """Return the density at some places, (p,): each node is smoothed to a normal distribution.

        Args:
            places: on the axis of eigenvalues, (p,)
            width: standard deviation of the normal distributions

        Raises:
            OptionError: a width that is not positive.
        """
        if not width > 0:
            raise OptionError(f"width must be positive, not {width}")
        apart = (np.asarray(places, np.float64)[:, None] - self.nodes.reshape(1, -1)) / width
        bells = np.exp(-(apart**2) / 2) / (width * np.sqrt(2 * np.pi))
        found: Floats = bells @ self.weights.ravel() / len(self.nodes)
        return found


def hessian_spectrum(
    loss: MeanLoss, probes: int = 2, *, steps: int = 30, seed: int = 0
) -> Spectrum:
    """Estimate the spectral density of the Hessian by stochastic Lanczos quadrature.

    From each of some random vectors of signs, the Lanczos method gives the nodes and weights of a
    Gauss quadrature, which is exact for polynomials of a degree below twice the steps. Source:
    Ghorbani, Krishnan and Xiao, An Investigation into Neural Net Optimization via Hessian
    Eigenvalue Density, 2019, algorithm 1; as Yao et al., PyHessian, 2020.

    Args:
        loss: of a model with n weights; as many vectors of n numbers are kept as there are steps
        probes: random vectors
        steps: products with the Hessian from each, at most n
        seed: of the vectors

    Raises:
        OptionError: no probes or no steps.
    """
    at_least("probes", probes, 1)
    at_least("steps", steps, 1)
    generator = torch.Generator().manual_seed(seed)
    nodes, weights = [], []
    for start in random_signs(loss, probes, generator):
        found = lanczos(lambda vector: hessian_product(loss, vector), start, steps, generator)
        values, vectors = found.eigen()
        nodes.append(values)
        weights.append(vectors[0] ** 2)
    return Spectrum(np.stack(nodes), np.stack(weights))
