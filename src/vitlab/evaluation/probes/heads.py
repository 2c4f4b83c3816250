"""Linear heads: logistic regression, ridge and class means on features, each one `Linear`.

All are fitted to standardized features, z = (x - mean) / (std + 1e-5), and folded into weights and
bias for the features as they are: W / std, b - W mean / std.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from vitlab.device import with_float64
from vitlab.evaluation.answers import Bools, Float32s, Floats, Integers

By = Literal["logistic", "ridge", "means"]

# strongest first: each fit starts from the one before, which is nearly right
PENALTIES = tuple(10.0**-power for power in range(7))
RIDGES = tuple(2.0**power for power in range(20, -5, -2))  # l2 of ridge, a sum over the images
STEPS, HISTORY = 200, 20  # of L-BFGS: most per fit, and how many it remembers
PRECISE, ROUGH = 1e-4, 3e-4  # the gradients that end it
BLOCK = 4096  # rows
MEMORY = 2**30  # bytes of features that are kept
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
    """

    weights: Floats
    bias: Floats
    by: By
    l2: float

    def logits(self, x: Float32s) -> Floats:
        """Compute the outputs, in blocks: (m, d) -> float64 (m, c)."""
        found = np.empty((len(x), len(self.bias)))
        for first in range(0, len(x), BLOCK):
            some = slice(first, first + BLOCK)
            found[some] = x[some].astype(np.float64) @ self.weights.T + self.bias
        return found

    def predict(self, x: Float32s) -> Integers:
        """Predict classes: (m, d) -> int64 (m,)."""
        return self.logits(x).argmax(1)


class Blocks:
    """Standardized rows of features as float32 tensors, in blocks; kept where they fit into memory.

    Attributes:
        mean: of each feature, float64 (d,)
        std: its standard deviation plus 1e-5, or 1 for features that are not scaled; float64 (d,)
        device: where the tensors are
    """

    def __init__(self, values: Float32s, device: torch.device = CPU, scaled: bool = True) -> None:
        self.values, self.device = values, with_float64(device)  # which can decompose matrices
        count = len(values)
        self.places = [slice(first, first + BLOCK) for first in range(0, count, BLOCK)]
        self.mean = values.mean(0, dtype=np.float64)
        self.std = np.ones_like(self.mean)
        if scaled:
            squares = [((values[own] - self.mean) ** 2).sum(0) for own in self.places]
            self.std = np.sqrt(np.sum(squares, 0) / count) + 1e-5
        self.kept: list[tuple[slice, Tensor]] | None = None
        if 4 * values.size <= MEMORY:
            self.kept = list(self)

    def __iter__(self) -> Iterator[tuple[slice, Tensor]]:
        if self.kept is not None:
            yield from self.kept
            return
        for own in self.places:
            rows = torch.from_numpy((self.values[own] - self.mean) / self.std)
            yield own, rows.float().to(self.device)

    def zeros(self, *shape: int) -> Tensor:
        """Return zeros like the blocks."""
        return torch.zeros(shape, device=self.device)

    def axes(self) -> tuple[Tensor, Tensor]:
        """Return the principal axes, (d, r), and the variances along them, (r,).

        Axes along which the rows do not vary are left out: r is at most their number.
        """
        width = len(self.mean)
        total = self.zeros(width, width)
        for _, rows in self:
            total += rows.T @ rows / len(self.values)
        variances, axes = torch.linalg.eigh(total)
        seen = variances > 1e-6 * variances.max()
        return axes[:, seen], variances[seen]

    def whole(self) -> Floats:
        """Return all rows in memory, in double precision, (n, d)."""
        return (self.values - self.mean) / self.std

    def folded(self, weights: Floats, bias: Floats, by: By, l2: float) -> LinearHead:
        """Return a head on standardized features, weights (c, d), for them as they are."""
        plain = weights / self.std
        return LinearHead(plain, bias - plain @ self.mean, by, l2)


Fit = Callable[[Blocks, Integers, int, float], LinearHead]


class LogisticFits:
    """Logistic regressions on parts of the same images, fitted together: one product for all.

    Each minimizes the mean cross-entropy of its part plus l2 / 2 times the squared norm of the
    weights, without a penalty on the bias. L-BFGS steps along principal axes, each divided by the
    root of the curvature there, which leaves the minimum where it is and is soon done. A fit begins
    where the one before ended: penalties come strongest first.
    """

    def __init__(self, x: Blocks, y: Integers, classes: int, parts: Bools) -> None:
        """Begin at zero.

        Args:
            x: features, in blocks
            y: index of each row's output, (n,)
            classes: number of outputs
            parts: whether each of the P fits learns from a row, (n, P)
        """
        self.x, (self.axes, self.variances) = x, x.axes()
        self.targets = torch.from_numpy(y).to(x.device)
        self.shares = torch.from_numpy(parts / parts.sum(0)).to(self.axes)  # of each loss, (n, P)
        self.weights = x.zeros(len(self.variances), parts.shape[1], classes)
        self.bias = x.zeros(parts.shape[1], classes)

    def outputs(self) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Yield the places of rows, the rows, (b, d), and their logits, (b, P, classes)."""
        weights = self.axes @ self.weights.flatten(1)
        for places, rows in self.x:  # one block's outputs are in memory at a time
            yield places, rows, (rows @ weights).unflatten(1, self.bias.shape) + self.bias

    def fit(self, l2: float, enough: float = PRECISE) -> None:
        """Go on to the minimum for a penalty.

        Args:
            l2: the penalty
            enough: the largest entry of the gradient that ends it
        """
        from scipy import optimize  # slow to import

        curvature = torch.zeros_like(self.bias)
        for places, _, logits in self.outputs():
            chances = logits.softmax(-1)
            curvature += (chances * (1 - chances) * self.shares[places, :, None]).sum(0)
        scale = (self.variances[:, None, None] * curvature + l2).rsqrt()
        shift = (curvature + l2).rsqrt()
        scales = torch.cat([scale.flatten(), shift.flatten()])

        def moved_to(point: Floats) -> tuple[float, Floats]:
            """Take these weights and biases; return their loss and its gradient."""
            own = torch.from_numpy(point).to(scales) * scales
            weights, bias = own.tensor_split([self.weights.numel()])
            self.weights, self.bias = weights.view_as(self.weights), bias.view_as(self.bias)
            total, *slopes = self._slopes()
            slopes[0] += l2 * self.weights
            found = torch.cat([each.flatten() for each in slopes]) * scales
            loss = total + l2 / 2 * self.weights.square().sum()
            return loss.item(), found.double().cpu().numpy()

        begin = torch.cat([self.weights.flatten(), self.bias.flatten()]) / scales
        limits = {"gtol": enough, "ftol": enough**2, "maxiter": STEPS, "maxcor": HISTORY}
        start = begin.double().cpu().numpy()
        moved_to(optimize.minimize(moved_to, start, jac=True, method="L-BFGS-B", options=limits).x)

    def _slopes(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the sum of the mean losses, and its gradients for weights and bias."""
        total, moved = self.x.zeros(), torch.zeros_like(self.bias)
        slopes = self.x.zeros(len(self.axes), self.bias.numel())
        for places, rows, logits in self.outputs():
            shares, likely = self.shares[places, :, None], logits.log_softmax(-1)
            own = self.targets[places, None, None].expand_as(shares)
            total -= (likely.gather(2, own) * shares).sum()
            errors = likely.exp_().scatter_add_(2, own, -torch.ones_like(shares)) * shares
            slopes += rows.T @ errors.flatten(1)
            moved += errors.sum(0)
        return total, (self.axes.T @ slopes).view_as(self.weights), moved

    def head(self, l2: float, part: int = 0) -> LinearHead:
        """Return one of the fits."""
        weights = self.axes @ self.weights[:, part]
        plain, bias = (each.double().cpu().numpy() for each in (weights.T, self.bias[part]))
        return self.x.folded(plain, bias, "logistic", l2)


def logistic(x: Blocks, y: Integers, classes: int, l2: float) -> LinearHead:
    """Fit a logistic regression to all rows, as `LogisticFits` says.

    Args:
        x: features, in blocks
        y: index of each row's output, (n,)
        classes: number of outputs
        l2: the penalty
    """
    fits = LogisticFits(x, y, classes, np.ones((len(y), 1), np.bool_))
    fits.fit(l2)
    return fits.head(l2)


def ridge(x: Blocks, y: Integers, classes: int, l2: float) -> LinearHead:
    """Fit least squares to 1 for the class and -1 for the others, in closed form.

    It minimizes the squared error, summed over the images, plus l2 times the squared norm of the
    weights; the bias is free. That is scikit-learn's RidgeClassifier.
    """
    return least_squares(x, signs(y, classes), l2)


def least_squares(x: Blocks, targets: Floats, l2: float) -> LinearHead:
    """Fit numbers, (n, c), by least squares in closed form, as `ridge` (scikit-learn's Ridge)."""
    middle = targets.mean(0)
    return x.folded(solved(x.whole(), targets - middle, l2).T, middle, "ridge", l2)


def means(x: Blocks, y: Integers, classes: int, l2: float = 0) -> LinearHead:
    """Take the class whose mean of standardized features is the nearest (scikit-learn's centroids).

    The output of a class is z · m - |m|² / 2: half the squared distance, but for what all share.
    """
    targets, counts = torch.from_numpy(y).to(x.device), np.bincount(y, minlength=classes)
    sums = x.zeros(classes, len(x.mean))
    for places, rows in x:
        sums.index_add_(0, targets[places], rows)
    centers = sums.double().cpu().numpy() / np.maximum(counts, 1)[:, None]
    bias = np.where(counts > 0, -(centers**2).sum(1) / 2, NEVER)
    return x.folded(centers, bias, "means", 0.0)


HEADS: dict[By, Fit] = {"logistic": logistic, "ridge": ridge, "means": means}


def signs(y: Integers, classes: int) -> Floats:
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
    x: Floats, y: Floats, penalties: Sequence[float] = RIDGES
) -> Iterator[tuple[float, Floats]]:
    """Yield, for each l2 of `ridge`, what it says of each row when fitted to all the others.

    In closed form, from one decomposition: y - (y - Hy) / (1 - diag H).

    Args:
        x: (n, d), the mean of each column being zero
        y: (n, c)
        penalties: the values of l2
    """
    middle = y.mean(0)
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
        rest = 1 - squares @ share - 1 / len(y)  # of the bias, which has no penalty
        yield l2, middle + y - error / np.maximum(rest, 1e-9)[:, None]


def best_ridge(x: Floats, y: Integers, classes: int) -> tuple[float, float]:
    """Return the accuracy, leaving one out, of the best l2, and that l2; of equals the strongest.

    Args:
        x: standardized features, (n, d)
        y: index of each row's output, (n,)
        classes: number of outputs
    """
    outputs = left_one_out(x, signs(y, classes))
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
    x: Float32s,
    y: Integers,
    classes: int,
    folds: Integers,
    penalties: Sequence[float],
    device: torch.device = CPU,
) -> Crossed:
    """Cross-validate a kind of head, and choose its penalty by the negative log-likelihood.

    That is smoother than the accuracy, and has one minimum. Logistic regressions are fitted to all
    folds together, in single precision, and standardized by all images.

    Args:
        by: the kind
        x: features, (n, d)
        y: index of each row's output, (n,)
        classes: number of outputs
        folds: the part of each row, (n,)
        penalties: to try, strongest first, until one is worse than the one before
        device: where logistic regressions are fitted
    """
    parts = np.unique(folds)
    fits = None
    if by == "logistic":
        fits = LogisticFits(Blocks(x, device), y, classes, folds[:, None] != parts)
    best: tuple[float, Crossed] | None = None
    for l2 in penalties:
        if fits is not None:
            fits.fit(l2, ROUGH)
        logits = np.empty((len(y), classes))
        for number, part in enumerate(parts):
            learn = folds != part
            if fits is not None:
                head = fits.head(l2, number)
            else:
                head = HEADS[by](Blocks(x[learn]), y[learn], classes, l2)
            logits[~learn] = head.logits(x[~learn])
        likely = logits[np.arange(len(y)), y] - np.logaddexp.reduce(logits, 1)
        if best is not None and -likely.mean() >= best[0]:
            break
        accuracy = float((logits.argmax(1) == y).mean())
        best = -float(likely.mean()), Crossed(by, l2, accuracy, logits)
    assert best is not None
    return best[1]


def swept_logistic(
    x: Blocks,
    y: Integers,
    classes: int,
    held: Integers,
    penalties: Sequence[float],
) -> tuple[LinearHead, float]:
    """Fit a logistic regression, its penalty being the best on held-out images.

    The final fit uses all images. Of equally good penalties the strongest is taken.

    Args:
        x: features, in blocks
        y: index of each row's output, (n,)
        classes: number of outputs
        held: numbers of the images on which the penalty is chosen
        penalties: the values of l2 to try, strongest first, beside the sum of the losses

    Returns:
        The head, and its accuracy on the held-out images before the final fit.
    """
    learn = ~np.isin(np.arange(len(y)), held)
    fits, best = LogisticFits(x, y, classes, learn[:, None]), (-1.0, 0.0)
    for l2 in penalties:
        fits.fit(l2 / learn.sum(), ROUGH)
        right = fits.head(l2).predict(x.values[held]) == y[held]
        best = max(best, (float(right.mean()), l2))
    accuracy, l2 = best
    head = logistic(x, y, classes, l2 / len(y))
    return replace(head, l2=l2), accuracy
