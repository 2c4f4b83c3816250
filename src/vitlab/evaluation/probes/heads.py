"""Linear heads: logistic regression, ridge and class means on features, each one `Linear`.

All are fitted to standardized features, z = (x - mean) / (std + 1e-5), and folded into weights and
bias for the features as they are: W / std, b - W mean / std.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from vitlab.evaluation.answers import Bools, Float32s, Floats, Integers, sample
from vitlab.evaluation.probes.blocks import BLOCK, CPU, Blocks, By, LinearHead
from vitlab.evaluation.probes.ridge import ridge

# strongest first: each fit starts from the one before, which is nearly right
PENALTIES = tuple(10.0**-power for power in range(7))
STEPS, HISTORY = 200, 20  # of L-BFGS: most per fit, and how many it remembers
PRECISE, ROUGH = 1e-4, 3e-4  # the gradients that end it
LOGITS = 2**28  # bytes of logits that are kept
NEVER = -1e4  # the output of a class without a training image, by class means


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
            self.weights = weights.view_as(self.weights)
            self.bias = bias.view_as(self.bias)
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
        total = self.x.zeros()
        moved = torch.zeros_like(self.bias)
        slopes = self.x.zeros(len(self.axes), self.bias.numel())
        for places, rows, logits in self.outputs():
            shares = self.shares[places, :, None]
            likely = logits.log_softmax(-1)
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
        return self.x.fold_scales(plain, bias, "logistic", l2)


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


def means(x: Blocks, y: Integers, classes: int, l2: float = 0) -> LinearHead:
    """Take the class whose mean of standardized features is the nearest (scikit-learn's centroids).

    The output of a class is z · m - |m|² / 2: half the squared distance, but for what all share.
    """
    targets = torch.from_numpy(y).to(x.device)
    counts = np.bincount(y, minlength=classes)
    sums = x.zeros(classes, len(x.mean))
    for places, rows in x:
        sums.index_add_(0, targets[places], rows)
    centers = sums.double().cpu().numpy() / np.maximum(counts, 1)[:, None]
    bias = np.where(counts > 0, -(centers**2).sum(1) / 2, NEVER)
    return x.fold_scales(centers, bias, "means", 0.0)


HEADS: dict[By, Fit] = {"logistic": logistic, "ridge": ridge, "means": means}


@dataclass(frozen=True, eq=False)
class Crossed:
    """A kind of head in cross-validation.

    Attributes:
        by: the kind
        l2: the best penalty
        accuracy: of all images
        rows: numbers of images, all but where that would be too many, (m,)
        logits: of these, each by the fit that had not learned from it, (m, c)
    """

    by: By
    l2: float
    accuracy: float
    rows: Integers
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
        x: features, (n, d), possibly memory-mapped
        y: index of each row's output, (n,)
        classes: number of outputs
        folds: the part of each row, (n,)
        penalties: to try, strongest first, until one is worse than the one before
        device: where logistic regressions are fitted
    """
    rows = sample(len(y), LOGITS // (8 * classes), 0)
    place = np.full(len(y), -1)
    place[rows] = np.arange(len(rows))
    parts = np.unique(folds)
    fits = None
    if by == "logistic":
        fits = LogisticFits(Blocks(x, device), y, classes, folds[:, None] != parts)
    best: tuple[float, Crossed] | None = None
    for l2 in penalties:
        if fits is not None:
            fits.fit(l2, ROUGH)
        logits = np.empty((len(rows), classes))
        likely = np.empty(len(y))
        right = np.empty(len(y), np.bool_)
        for number, part in enumerate(parts):
            learn = np.flatnonzero(folds != part)
            if fits is not None:
                head = fits.head(l2, number)
            else:
                head = HEADS[by](Blocks(x, rows=learn), y[learn], classes, l2)
            asked = np.flatnonzero(folds == part)
            for own in np.split(asked, range(BLOCK, len(asked), BLOCK)):
                said = head.logits(x, own)
                likely[own] = said[np.arange(len(own)), y[own]] - np.logaddexp.reduce(said, 1)
                right[own] = said.argmax(1) == y[own]
                kept = place[own] >= 0
                logits[place[own[kept]]] = said[kept]
        if best is not None and -likely.mean() >= best[0]:
            break
        best = -float(likely.mean()), Crossed(by, l2, float(right.mean()), rows, logits)
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
    fits = LogisticFits(x, y, classes, learn[:, None])
    best = (-1.0, 0.0)
    for l2 in penalties:
        fits.fit(l2 / learn.sum(), ROUGH)
        right = fits.head(l2).predict(x.values[held]) == y[held]
        best = max(best, (float(right.mean()), l2))
    accuracy, l2 = best
    head = logistic(x, y, classes, l2 / len(y))
    return replace(head, l2=l2), accuracy
