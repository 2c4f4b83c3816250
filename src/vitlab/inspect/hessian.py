"""The loss around a model's weights: the mean loss, its Hessian by Lanczos, and its spectrum."""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from vitlab.data.labels import kind_of
from vitlab.device import exact, with_float64
from vitlab.errors import OptionError
from vitlab.inspect.evidence import asked
from vitlab.models.model import Model

Floats = NDArray[np.float64]
TYPES = {"fp32": torch.float32, "fp64": torch.float64}
PIXELS = 2**15  # that pass at once: 32 images of 32x32; more are no faster on a CPU


class MeanLoss:
    """The mean cross-entropy of labeled images, and its gradient, in all weights of a model.

    It works on a copy of the model in evaluation mode, so that the model itself stays as it was,
    batch norms use their running statistics, and nothing is dropped. Few images pass at once; their
    losses and gradients are summed. Vectors of weights, (n,), have them in the order of
    `model.parameters()`, frozen ones too.

    Args:
        model: any with a classifier
        images: normalized, (B, channels, H, W)
        labels: the class of each image, int64 (B,)
        label_smoothing: share of the target spread over all classes
        precision: fp32 or fp64, of weights, images and products
        at_once: images that pass together; None for as many as have 32,768 pixels, one at least

    Attributes:
        model: the copy
        weights: its parameters
        count: how many numbers these are, n

    Raises:
        OptionError: images or labels that do not fit, no classifier, several labels per image or
            several queries, an accelerated model, or a setting that cannot be.
    """

    def __init__(
        self,
        model: Model,
        images: Tensor,
        labels: Tensor,
        *,
        label_smoothing: float = 0.0,
        precision: Literal["fp32", "fp64"] = "fp32",
        at_once: int | None = None,
    ) -> None:
        if precision not in TYPES:
            raise OptionError(f"precision must be fp32 or fp64, not {precision}")
        if not 0 <= label_smoothing < 1:
            raise OptionError(f"label_smoothing must be from 0 to below 1, not {label_smoothing}")
        with torch.inference_mode(False):  # what is made in inference mode has no gradients
            images, labels = asked(model, images, labels)
            _check_kind(model)
            where = with_float64(images.device) if precision == "fp64" else images.device
            kind = where, TYPES[precision]
            self.images, self.labels = images.to(*kind).clone(), labels.to(where).clone()
            self.model = copy.deepcopy(model).to(*kind).eval().requires_grad_(True)
        self.model.zero_grad()  # the copy's, which has those of the model
        self.smoothing = label_smoothing
        fitting = max(1, PIXELS // (images.shape[2] * images.shape[3]))
        self.at_once = fitting if at_once is None else at_once
        at_least("at_once", self.at_once, 1)
        self.weights: list[Tensor] = list(self.model.parameters())
        self.count = sum(weight.numel() for weight in self.weights)

    def value(self) -> float:
        """Compute the loss, in nats."""
        with torch.inference_mode():
            return sum(float(part) for part in self.parts())

    def gradient(self) -> Tensor:
        """Compute the gradient in all weights, (n,)."""
        self.backward()
        return self.flat([weight.grad for weight in self.weights])

    def backward(self) -> None:
        """Leave the gradient in the weights' `grad`."""
        self.model.zero_grad()
        with differentiable():
            for part in self.parts():
                part.backward()

    def parts(self) -> Iterator[Tensor]:
        """Yield losses of a few images each, float64 scalars, that add up to the mean."""
        for images, labels in zip(
            self.images.split(self.at_once), self.labels.split(self.at_once), strict=True
        ):
            scores = exact(self.model(images))
            truth = labels.to(scores.device)
            total = F.cross_entropy(scores, truth, reduction="sum", label_smoothing=self.smoothing)
            yield total / len(self.images)

    def on(self, rows: Tensor) -> Self:
        """Return the mean loss of some of the images alone, of the same weights.

        Args:
            rows: numbers of the images, int64 (b,)
        """
        some = copy.copy(self)
        with torch.inference_mode(False):
            some.images, some.labels = self.images[rows], self.labels[rows]
        return some

    def drawn(self, count: int, seed: int) -> Self:
        """Return the mean loss of so many images, drawn at random; of all, if there are no more."""
        order = torch.randperm(len(self.images), generator=torch.Generator().manual_seed(seed))
        return self.on(order[:count].to(self.images.device))

    def flat(self, parts: Sequence[Tensor | None]) -> Tensor:
        """Join one tensor for each weight, or None for zeros: (n,)."""
        pairs = zip(parts, self.weights, strict=True)
        return torch.cat(
            [(torch.zeros_like(like) if part is None else part).flatten() for part, like in pairs]
        )

    def draw(self, generator: torch.Generator) -> list[Tensor]:
        """Draw standard normal numbers in the shapes of the weights, the same on every device."""
        return [
            torch.randn(weight.shape, generator=generator, dtype=weight.dtype).to(weight.device)
            for weight in self.weights
        ]

    @contextmanager
    def moved(self, step: Sequence[Tensor]) -> Iterator[None]:
        """Within the context, add a step to the weights; afterwards they have the same bits."""
        before = [weight.detach().clone() for weight in self.weights]
        try:
            with torch.no_grad():
                torch._foreach_add_(self.weights, list(step))
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(self.weights, before)


@contextmanager
def differentiable() -> Iterator[None]:
    """Within the context, gradients are recorded, and attention can be differentiated twice.

    The kernels that PyTorch fuses can be differentiated once. The products that our models train
    with are those of training mode; a copy in evaluation mode has plain ones.
    """
    with torch.inference_mode(False), torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
        yield


def at_least(name: str, value: float, limit: int) -> None:
    """Refuse a number below a limit.

    Raises:
        OptionError: the message names it.
    """
    if value < limit:
        raise OptionError(f"{name} must be at least {limit}, not {value}")


def _check_kind(model: Model) -> None:
    """Refuse models whose loss is another one, or whose weights are out of reach."""
    name = model.config.name
    if kind_of(model).several:
        raise OptionError(f"{name} gives images several labels: cross-entropy needs one per image")
    if getattr(model.config, "queries", 1) > 1:
        raise OptionError(f"{name} scores each query by itself: cross-entropy needs one query")
    if model.engine != "plain":
        raise OptionError(f"{name} is accelerated: use the model that it was made from")


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
