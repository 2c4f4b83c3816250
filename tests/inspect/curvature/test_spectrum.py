"""The spectral density against all eigenvalues of an explicit Hessian."""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd.functional import hessian
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

import vitlab
from vitlab.errors import OptionError
from vitlab.inspect import MeanLoss
from vitlab.inspect.hessian import Spectrum


@pytest.fixture(scope="module")
def small() -> tuple[MeanLoss, np.ndarray]:
    """The loss of a tiny ViT, and the Hessian, (n, n)."""
    torch.manual_seed(0)
    model = vitlab.create(
        "ViT(width=4,depth=1,heads=2,mlp=4)/4", 3, 8, channels=1, zero_head=False
    ).double()
    model.eval()
    images, labels = torch.randn(6, 1, 8, 8).double(), torch.arange(6) % 3
    names, weights = zip(*model.named_parameters(), strict=True)

    def loss(vector: Tensor) -> Tensor:
        parts = vector.split([weight.numel() for weight in weights])
        views = [part.view_as(weight) for part, weight in zip(parts, weights, strict=True)]
        logits = functional_call(model, dict(zip(names, views, strict=True)), (images,))
        return torch.nn.functional.cross_entropy(logits, labels)

    with sdpa_kernel(SDPBackend.MATH):
        matrix = hessian(loss, torch.cat([weight.detach().flatten() for weight in weights]))
    assert isinstance(matrix, Tensor)
    return MeanLoss(model, images, labels, precision="fp64"), matrix.numpy()


def test_moments_are_those_of_the_eigenvalues(small: tuple[MeanLoss, np.ndarray]) -> None:
    loss, matrix = small
    values = np.linalg.eigvalsh(matrix)
    found = vitlab.inspect.hessian_spectrum(loss, 40, steps=6)
    assert found.nodes.shape == found.weights.shape == (40, 6)
    assert np.allclose(found.weights.sum(1), 1)
    for order in (1, 2):
        power = np.linalg.matrix_power(matrix, order)
        off = power - np.diag(np.diag(power))  # which random signs see with a variance of 2 off^2
        error = np.linalg.norm(off) * (2 / 40) ** 0.5
        assert abs(found.moment(order) * loss.count - (values**order).sum()) < 3 * error
        assert error < 0.2 * (values**order).sum()
    assert values[0] - 1e-9 <= found.nodes.min() <= found.nodes.max() <= values[-1] + 1e-9


def test_gauss_quadrature_is_exact_for_polynomials(small: tuple[MeanLoss, np.ndarray]) -> None:
    """The forms v H^k v / n of the same random signs, for each k below twice the steps."""
    loss, matrix = small
    found = vitlab.inspect.hessian_spectrum(loss, 3, steps=3, seed=4)
    generator = torch.Generator().manual_seed(4)
    signs = 2 * torch.randint(2, (3, loss.count), generator=generator).double().numpy() - 1
    power = signs.copy()
    for order in range(6):
        wanted = (signs * power).sum(1).mean() / loss.count
        assert found.moment(order) == pytest.approx(wanted, rel=1e-9), order
        power = power @ matrix
    assert abs(found.moment(6) / ((signs * power).sum(1).mean() / loss.count) - 1) > 1e-9


def test_density_is_that_of_the_eigenvalues(small: tuple[MeanLoss, np.ndarray]) -> None:
    loss, matrix = small
    values = np.linalg.eigvalsh(matrix)
    width = 0.05 * np.ptp(values)
    places = np.linspace(values[0] - 5 * width, values[-1] + 5 * width, 400)
    true = Spectrum(values[None], np.full((1, len(values)), 1 / len(values)))
    found = vitlab.inspect.hessian_spectrum(loss, 10, steps=15).density(places, width)
    wanted = true.density(places, width)
    assert np.trapezoid(wanted, places) == pytest.approx(1, rel=1e-5)
    assert np.trapezoid(found, places) == pytest.approx(1, rel=1e-5)
    assert np.trapezoid(abs(found - wanted), places) < 0.1


def test_a_density_of_known_nodes() -> None:
    """Half of the eigenvalues are 0; the others are 1 by one probe, 3 by the other."""
    spectrum = Spectrum(np.array([[0.0, 1.0], [0.0, 3.0]]), np.full((2, 2), 0.5))
    peak = 1 / (0.1 * np.sqrt(2 * np.pi))
    found = spectrum.density(np.array([0.0, 1.0, 2.0, 3.1]), 0.1)
    assert np.allclose(found, [peak / 2, peak / 4, 0, peak / 4 * np.exp(-0.5)])
    assert (spectrum.moment(1), spectrum.moment(2)) == (1.0, 2.5)
    with pytest.raises(OptionError, match="width must be positive, not 0"):
        spectrum.density(np.zeros(1), 0)


def test_nothing_to_do_is_refused(small: tuple[MeanLoss, np.ndarray]) -> None:
    with pytest.raises(OptionError, match="probes must be at least 1"):
        vitlab.inspect.hessian_spectrum(small[0], 0)
    with pytest.raises(OptionError, match="steps must be at least 1"):
        vitlab.inspect.hessian_spectrum(small[0], steps=0)
