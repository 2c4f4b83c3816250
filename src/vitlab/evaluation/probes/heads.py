"""Linear heads: logistic regression, ridge and class means on features, each one `Linear`.

All are fitted to standardized features, z = (x - mean) / (std + 1e-5), and folded into weights and
bias for the features as they are: W / std, b - W mean / std.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from vitlab.data.labels import SingleLabels
from vitlab.device import with_float64
from vitlab.errors import DataError

By = Literal["logistic", "ridge", "means"]
Floats = NDArray[np.float64]

# strongest first: each fit starts from the one before, which is nearly right
PENALTIES = tuple(10.0**power for power in range(2, -7, -1))
RIDGES = tuple(2.0**power for power in range(20, -5, -2))  # l2 of ridge, a sum over the images
HELD_OUT = 0.2  # of each class
STEPS, PRECISE, ROUGH = 200, 1e-5, 3e-4  # of L-BFGS: most per fit, and the gradients that end it
BLOCK = 16_384  # rows
MEMORY = 2**30  # bytes of features that are kept in float64
NEVER = -1e4  # the output of a class without a training image, by class means
CPU = torch.device("cpu")


@dataclass(frozen=True, eq=False)
class LinearHead:
    """A classifier on features as they are: outputs are `x @ weights.T + bias`.

    Attributes:
        weights: float64 (c, d)
        bias: float64 (c,)
        by: how it was fitted
        l2: the penalty; 0 for class means
        classes: the class of each output, int64 (c,)
        validation: accuracy on held-out training images, where the penalty was chosen by it
    """

    weights: Floats
    bias: Floats
    by: By
    l2: float
    classes: NDArray[np.int64]
    validation: float = float("nan")

    def logits(self, x: NDArray[np.float32]) -> Floats:
        """Compute the outputs, in blocks: (m, d) -> float64 (m, c)."""
        found = np.empty((len(x), len(self.bias)))
        for first in range(0, len(x), BLOCK):
            some = slice(first, first + BLOCK)
            found[some] = x[some].astype(np.float64) @ self.weights.T + self.bias
        return found

    def predict(self, x: NDArray[np.float32]) -> NDArray[np.int64]:
        """Predict classes: (m, d) -> int64 (m,)."""
        return self.classes[self.logits(x).argmax(1)]


class Blocks:
    """Rows of features as tensors, in blocks; kept where they fit into memory."""

    def __init__(
        self,
        values: NDArray[np.float32],
        device: torch.device = CPU,
        rows: NDArray[np.int64] | None = None,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        self.values, self.device, self.dtype = values, device, dtype
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
            yield first, torch.from_numpy(np.array(block)).to(self.device, self.dtype)

    def zeros(self, *shape: int) -> Tensor:
        """Return zeros like the blocks."""
        return torch.zeros(*shape, dtype=self.dtype, device=self.device)

    def moments(self) -> tuple[Tensor, Tensor]:
        """Return the mean of each feature, and its standard deviation plus 1e-5: (d,) each."""
        mean = square = self.zeros(self.values.shape[1])
        for _, block in self:
            mean = mean + block.sum(0) / len(self.rows)
        for _, block in self:
            square = square + (block - mean).square().sum(0) / len(self.rows)
        return mean, square.sqrt() + 1e-5

    def axes(self) -> tuple[Tensor, Tensor]:
        """Return the principal axes of the standardized features, (d, d), and variances, (d,)."""
        (mean, std), width = self.moments(), self.values.shape[1]
        total = self.zeros(width, width)
        for _, block in self:
            rows = (block - mean) / std
            total += rows.T @ rows / len(self.rows)
        variances, axes = torch.linalg.eigh(total)
        return axes, variances.clamp(min=0)

    def standardized(self) -> tuple[Floats, Floats, Floats]:
        """Return all rows standardized, (n, d), with mean and deviation; all in memory."""
        mean, std = self.moments()
        rows = torch.cat([(block - mean) / std for _, block in self])
        return rows.cpu().numpy(), mean.cpu().numpy(), std.cpu().numpy()


Fit = Callable[[Blocks, NDArray[np.int64], int, float, LinearHead | None], LinearHead]


def logistic(
    x: Blocks,
    y: NDArray[np.int64],
    classes: int,
    l2: float,
    start: LinearHead | None = None,
    enough: float = PRECISE,
    axes: tuple[Tensor, Tensor] | None = None,
) -> LinearHead:
    """Fit a logistic regression by L-BFGS, without a penalty on the bias.

    It minimizes the mean cross-entropy plus l2 / 2 times the squared norm of the weights on
    standardized features. The steps are taken along principal axes, each divided by the root of
    the curvature to expect there, which leaves the minimum where it is and is soon done.

    Args:
        x: features, in blocks
        y: index of each row's output, (n,)
        classes: number of outputs
        l2: the penalty
        start: what to begin with
        enough: the largest entry of the gradient that ends it
        axes: of these features, or of nearly the same, by `Blocks.axes`; None to find them
    """
    mean, std = x.moments()
    targets, (turned, variances) = torch.from_numpy(y).to(x.device), axes or x.axes()
    scale = (variances * (classes - 1) / classes**2 + l2).rsqrt()[:, None]
    inner, bias = x.zeros(len(std), classes), x.zeros(classes)
    if start is not None:
        plain, own = (torch.from_numpy(each).to(std) for each in (start.weights, start.bias))
        inner, bias = turned.T @ (plain.T * std[:, None]) / scale, own + plain @ mean
    inner, bias = inner.requires_grad_(), bias.detach().requires_grad_()
    solver = torch.optim.LBFGS(
        [inner, bias],
        max_iter=STEPS,
        tolerance_grad=enough,
        tolerance_change=enough**2,  # nearly what the loss is above its minimum
        line_search_fn="strong_wolfe",
    )

    def loss() -> Tensor:
        solver.zero_grad()
        weights = turned @ (inner * scale)
        shared = (weights / std[:, None]).detach().requires_grad_()
        total = torch.zeros_like(bias[0])
        for first, block in x:  # gradients add up: one block's outputs are in memory at a time
            outputs = block @ shared + (bias - mean @ shared)
            part = targets[first : first + len(block)]
            own = F.cross_entropy(outputs, part, reduction="sum") / len(targets)
            own.backward()
            total += own.detach()
        penalty = l2 / 2 * weights.square().sum()
        assert shared.grad is not None
        (penalty + (weights / std[:, None] * shared.grad).sum()).backward()
        return total + penalty.detach()

    solver.step(loss)
    plain = (turned @ (inner * scale) / std[:, None]).detach()
    ends = plain.T, (bias - mean @ plain).detach()
    folded, moved = (each.double().cpu().numpy() for each in ends)
    return LinearHead(folded, moved, "logistic", l2, np.arange(classes))


def ridge(
    x: Blocks, y: NDArray[np.int64], classes: int, l2: float, start: LinearHead | None = None
) -> LinearHead:
    """Fit least squares to 1 for the class and -1 for the others, in closed form.

    It minimizes the squared error, summed over the images, plus l2 times the squared norm of the
    weights; the bias is free. That is scikit-learn's RidgeClassifier.
    """
    z, mean, std = x.standardized()
    targets = signs(y, classes)
    middle = targets.mean(0)
    weights = solved(z, targets - middle, l2).T / std
    return LinearHead(weights, middle - weights @ mean, "ridge", l2, np.arange(classes))


def means(
    x: Blocks, y: NDArray[np.int64], classes: int, l2: float = 0, start: LinearHead | None = None
) -> LinearHead:
    """Take the class whose mean of standardized features is the nearest (scikit-learn's centroids).

    The output of a class is z · m - |m|² / 2: half the squared distance, but for what all share.
    """
    (mean, std), targets = x.moments(), torch.from_numpy(y).to(x.device)
    sums, counts = x.zeros(classes, len(mean)), np.bincount(y, minlength=classes)
    for first, block in x:
        sums.index_add_(0, targets[first : first + len(block)], (block - mean) / std)
    centers = sums.cpu().numpy() / np.maximum(counts, 1)[:, None]
    weights = centers / std.cpu().numpy()
    square = (centers**2).sum(1)
    bias = np.where(counts > 0, -square / 2 - weights @ mean.cpu().numpy(), NEVER)
    return LinearHead(weights, bias, "means", 0.0, np.arange(classes))


HEADS: dict[By, Fit] = {"logistic": logistic, "ridge": ridge, "means": means}


def signs(y: NDArray[np.int64], classes: int) -> Floats:
    """Return 1 for the class of each image and -1 for the others: (n,) -> (n, c)."""
    return np.where(y[:, None] == np.arange(classes), 1.0, -1.0)


def solved(x: Floats, y: Floats, l2: float) -> Floats:
    """Return the W that minimizes |xW - y|^2 + l2 |W|^2: (n, d), (n, c) -> (d, c).

    Through the smaller of x'x and xx'.
    """
    found: Floats
    if x.shape[0] >= x.shape[1]:
        found = np.linalg.solve(x.T @ x + l2 * np.eye(x.shape[1]), x.T @ y).astype(np.float64)
    else:
        found = x.T @ np.linalg.solve(x @ x.T + l2 * np.eye(len(x)), y)
    return found


def left_one_out(
    x: Floats, y: Floats, penalties: Sequence[float] = RIDGES, free_bias: bool = False
) -> Iterator[tuple[float, Floats]]:
    """Yield, for each l2 of `solved`, what it says of each row when fitted to all the others.

    In closed form, from one decomposition: y - (y - Hy) / (1 - diag H).

    Args:
        x: (n, d); of columns whose mean is zero for `free_bias`
        y: (n, c)
        penalties: the values of l2
        free_bias: whether the fit has a bias without a penalty, beside x
    """
    middle = y.mean(0) if free_bias else np.zeros(y.shape[1])
    y = y - middle
    if x.shape[0] >= x.shape[1]:
        values, vectors = np.linalg.eigh(x.T @ x)
        seen = values > 1e-12 * max(values.max(), 1e-300)
        values, basis = values[seen], x @ (vectors[:, seen] / np.sqrt(values[seen]))
    else:
        values, basis = np.linalg.eigh(x @ x.T)
        values = np.maximum(values, 0)
    inner, squares = basis.T @ y, basis**2
    for l2 in penalties:
        share = values / (values + l2)
        error = y - basis @ (share[:, None] * inner)
        rest = 1 - squares @ share - free_bias / len(y)
        yield l2, middle + y - error / np.maximum(rest, 1e-9)[:, None]


def best_ridge(
    x: Floats, y: NDArray[np.int64], classes: int, free_bias: bool = False
) -> tuple[float, float]:
    """Return the accuracy, leaving one out, of the best l2, and that l2; of equals the strongest.

    Args:
        x: standardized features, (n, d)
        y: index of each row's output, (n,)
        classes: number of outputs
        free_bias: as `left_one_out`
    """
    outputs = left_one_out(x, signs(y, classes), free_bias=free_bias)
    return max((float((each.argmax(1) == y).mean()), l2) for l2, each in outputs)


@dataclass(frozen=True, eq=False)
class Crossed:
    """A kind of head in cross-validation: the best penalty, its accuracy, and its logits, (n, c).

    The logits of each image are those of the fit that had not learned from it.
    """

    by: By
    l2: float
    accuracy: float
    logits: Floats


def crossed(
    by: By,
    x: NDArray[np.float32],
    y: NDArray[np.int64],
    classes: int,
    folds: NDArray[np.int64],
    penalties: Sequence[float],
    device: torch.device = CPU,
) -> Crossed:
    """Cross-validate a kind of head, and choose its penalty by the negative log-likelihood.

    That is smoother than the accuracy, and has one minimum.

    Args:
        by: the kind
        x: features, (n, d)
        y: index of each row's output, (n,)
        classes: number of outputs
        folds: the part of each row, (n,)
        penalties: to try, strongest first, until one is worse than the one before
        device: where to compute, if it has float64; else the CPU
    """
    device, every = with_float64(device), np.unique(folds)
    learn = [(np.flatnonzero(folds != each), np.flatnonzero(folds == each)) for each in every]
    dtype, axes = torch.float64, None
    if by == "logistic":
        dtype = torch.float32
        axes = Blocks(x, device, dtype=dtype).axes()
    blocks = [Blocks(x, device, rows, dtype) for rows, _ in learn]
    starts: list[LinearHead | None] = [None] * len(learn)
    best: tuple[float, Crossed] | None = None
    for l2 in penalties:
        logits = np.empty((len(y), classes))
        for number, (rows, rest) in enumerate(learn):
            given = blocks[number], y[rows], classes, l2, starts[number]
            head = logistic(*given, ROUGH, axes) if by == "logistic" else HEADS[by](*given)
            logits[rest] = head.logits(x[rest])
            starts[number] = head
        likely = logits[np.arange(len(y)), y] - np.logaddexp.reduce(logits, 1)
        if best is not None and -likely.mean() >= best[0]:
            break
        accuracy = float((logits.argmax(1) == y).mean())
        best = -float(likely.mean()), Crossed(by, l2, accuracy, logits)
    assert best is not None
    return best[1]


def swept_logistic(
    x: NDArray[np.float32],
    y: NDArray[np.int64],
    penalties: Sequence[float] = PENALTIES,
    device: torch.device | None = None,
) -> LinearHead:
    """Fit a logistic regression, its penalty being the best on a fifth of each class held out.

    The final fit uses all images. Of equally good penalties the strongest is taken. No paper of
    this house states a grid; this one has nine powers of ten.

    Args:
        x: features, (n, d), possibly memory-mapped: many of them are read in blocks
        y: classes, (n,)
        penalties: the values of l2 to try, strongest first
        device: where to compute, if it has float64; else, and for None, the CPU

    Raises:
        DataError: there are too few images to hold some out.
    """
    device = with_float64(device or CPU)
    held = SingleLabels(np.asarray(y)).held_out(HELD_OUT, np.random.default_rng(0))
    if not len(held):
        raise DataError("the logistic probe needs at least 3 training images of some class")
    kept = np.setdiff1d(np.arange(len(y)), held)
    classes, place = np.unique(y, return_inverse=True)
    best, head = (-1.0, 0.0), None
    train, test = Blocks(x, device, kept), x[held]
    axes = train.axes()
    for l2 in penalties:
        head = logistic(train, place[kept], len(classes), l2, head, axes=axes)
        accuracy = float((head.logits(test).argmax(1) == place[held]).mean())
        best = max(best, (accuracy, l2))
    found = logistic(Blocks(x, device), place, len(classes), best[1], head)
    return replace(found, classes=classes, validation=best[0])
