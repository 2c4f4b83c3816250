"""A logistic regression on features, its penalty chosen on held-out training images."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from vitlab.data.labels import SingleLabels
from vitlab.device import with_float64
from vitlab.errors import DataError

# strongest first: each fit starts from the one before, which is nearly right
PENALTIES = tuple(10.0**power for power in range(2, -7, -1))
HELD_OUT = 0.2  # of each class
STEPS = 200  # of L-BFGS, most per fit
BLOCK = 16_384  # rows
MEMORY = 2**30  # bytes of features that are kept in float64


@dataclass(frozen=True)
class Logistic:
    """A fitted logistic regression: outputs are `x @ weights + bias`.

    Attributes:
        weights: float64 (d, c)
        bias: float64 (c,)
        classes: the class of each output, (c,)
        l2: the penalty
        validation: accuracy on the held-out training images, at this penalty
    """

    weights: Tensor
    bias: Tensor
    classes: NDArray[np.int64]
    l2: float
    validation: float

    def predict(self, x: NDArray[np.float32]) -> NDArray[np.int64]:
        """Predict classes: (m, d) -> int64 (m,)."""
        return self.classes[_predicted(Blocks(x, self.weights.device), self.weights, self.bias)]


def swept_logistic(
    x: NDArray[np.float32],
    y: NDArray[np.int64],
    penalties: Sequence[float] = PENALTIES,
    device: torch.device | None = None,
) -> Logistic:
    """Fit a logistic regression, its penalty being the best on a fifth of each class held out.

    The mean cross-entropy plus l2 / 2 times the squared norm of the weights on standardized
    features (not of the bias), minimized by L-BFGS in float64; the final fit uses all images. Of
    equally good penalties the strongest is taken. No paper of this house states a grid; this one
    has nine powers of ten.

    Args:
        x: features, (n, d), possibly memory-mapped: many of them are read in blocks
        y: classes, (n,)
        penalties: the values of l2 to try, strongest first
        device: where to compute, if it has float64; else, and for None, the CPU

    Raises:
        DataError: there are too few images to hold some out.
    """
    device = with_float64(device or torch.device("cpu"))
    held = SingleLabels(np.asarray(y)).held_out(HELD_OUT, np.random.default_rng(0))
    if not len(held):
        raise DataError("the logistic probe needs at least 3 training images of some class")
    kept = np.setdiff1d(np.arange(len(y)), held)
    classes = np.unique(y)
    place = np.searchsorted(classes, y)
    best, start = (-1.0, 0.0), None
    test = Blocks(x, device, held)
    train, targets = Blocks(x, device, kept), torch.from_numpy(place[kept]).to(device)
    for l2 in penalties:
        start = fit(train, targets, len(classes), l2, start)
        accuracy = float((_predicted(test, *start) == place[held]).mean())
        best = max(best, (accuracy, l2))
    whole = Blocks(x, device)
    weights, bias = fit(whole, torch.from_numpy(place).to(device), len(classes), best[1], start)
    return Logistic(weights, bias, classes, best[1], best[0])


def fit(
    x: "Blocks",
    y: Tensor,
    classes: int,
    l2: float,
    start: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the weights (d, c) and the bias (c,) for the features as they are.

    Args:
        x: features, in blocks
        y: index of each row's output, (n,)
        classes: number of outputs
        l2: the penalty
        start: weights and bias to begin with
    """
    mean, std = x.moments()
    weights = x.zeros(len(std), classes)
    bias = x.zeros(classes)
    if start is not None:
        weights, bias = start[0] * std[:, None], start[1] + mean @ start[0]
    weights, bias = weights.requires_grad_(), bias.detach().requires_grad_()
    solver = torch.optim.LBFGS(
        [weights, bias],
        max_iter=STEPS,
        tolerance_grad=1e-6,
        tolerance_change=1e-12,
        line_search_fn="strong_wolfe",
    )

    def loss() -> Tensor:
        solver.zero_grad()
        total = torch.zeros_like(bias[0])
        for first, block in x:  # gradients add up: one block's outputs are in memory at a time
            plain = weights / std[:, None]
            outputs = block @ plain + (bias - mean @ plain)
            own = F.cross_entropy(outputs, y[first : first + len(block)], reduction="sum") / len(y)
            own.backward()
            total += own.detach()
        penalty = l2 / 2 * weights.square().sum()
        penalty.backward()
        return total + penalty.detach()

    solver.step(loss)
    plain = (weights / std[:, None]).detach()
    return plain, (bias - mean @ plain).detach()


class Blocks:
    """Rows of features as float64 tensors, in blocks; kept where they fit into memory."""

    def __init__(
        self,
        values: NDArray[np.float32],
        device: torch.device,
        rows: NDArray[np.int64] | None = None,
    ) -> None:
        self.values, self.device = values, device
        self.rows = np.arange(len(values)) if rows is None else rows
        self.kept: list[tuple[int, Tensor]] | None = None
        if 8 * len(self.rows) * values.shape[1] <= MEMORY:
            self.kept = list(self)

    def __iter__(self) -> Iterator[tuple[int, Tensor]]:
        if self.kept is not None:
            yield from self.kept
            return
        for first in range(0, len(self.rows), BLOCK):
            block = self.values[self.rows[first : first + BLOCK]]
            yield first, torch.from_numpy(np.array(block)).to(self.device, torch.float64)

    def zeros(self, *shape: int) -> Tensor:
        """Return zeros like the blocks."""
        return torch.zeros(*shape, dtype=torch.float64, device=self.device)

    def moments(self) -> tuple[Tensor, Tensor]:
        """Return the mean of each feature, and its standard deviation plus 1e-5: (d,) each."""
        mean = square = self.zeros(self.values.shape[1])
        for _, block in self:
            mean = mean + block.sum(0) / len(self.rows)
        for _, block in self:
            square = square + (block - mean).square().sum(0) / len(self.rows)
        return mean, square.sqrt() + 1e-5


def _predicted(x: Blocks, weights: Tensor, bias: Tensor) -> NDArray[np.int64]:
    """Return the index of each row's largest output."""
    found = [(block @ weights + bias).argmax(1).cpu() for _, block in x]
    return torch.cat([torch.empty(0, dtype=torch.int64), *found]).numpy()
