"""Ridge regression in closed form, and what it says of each image when fitted to all the others.

x'x and x'y are summed in blocks, so that beside a block no more than d x d and d x c numbers are in
memory, however many images there are.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from vitlab.evaluation.answers import Floats, Integers
from vitlab.evaluation.probes.blocks import Blocks, LinearHead

RIDGES = tuple(2.0**power for power in range(20, -5, -2))  # l2 of ridge, a sum over the images


# What is said of each image: given its place, numbers, (b, c).
Targets = Callable[[slice], Floats]


def signs(y: Integers, classes: int) -> Floats:
    """Return 1 for the class of each image and -1 for the others: (n,) -> (n, c)."""
    return np.where(y[:, None] == np.arange(classes), 1.0, -1.0)


def ridge(x: Blocks, y: Integers, classes: int, l2: float) -> LinearHead:
    """Fit least squares to 1 for the class and -1 for the others, in closed form.

    It minimizes the squared error, summed over the images, plus l2 times the squared norm of the
    weights; the bias is free. That is scikit-learn's RidgeClassifier.
    """
    return least_squares(x, lambda own: signs(y[own], classes), l2)


def least_squares(x: Blocks, targets: Targets, l2: float) -> LinearHead:
    """Fit numbers by least squares in closed form, as `ridge` (scikit-learn's Ridge)."""
    middle = _middle(x, targets)
    width = len(x.mean)
    if x.count < width:
        weights = solve_ridge(x.whole(), targets(slice(None)) - middle, l2)
    else:
        squares, products = _sum_products(x, targets, middle)
        weights = np.linalg.solve(squares + l2 * np.eye(width), products).astype(np.float64)
    return x.fold_scales(weights.T, middle, "ridge", l2)


def _middle(x: Blocks, targets: Targets) -> Floats:
    """The mean of the targets, (c,)."""
    found: Floats = np.sum([targets(own).sum(0) for own in x.places], 0) / x.count
    return found


def _sum_products(x: Blocks, targets: Targets, middle: Floats) -> tuple[Floats, Floats]:
    """Return x'x, (d, d), and x'y, (d, c)."""
    squares = np.zeros((len(x.mean), len(x.mean)))
    products = np.zeros((len(x.mean), len(middle)))
    for own, rows in x.exact():
        squares += rows.T @ rows
        products += rows.T @ (targets(own) - middle)
    return squares, products


def solve_ridge(x: Floats, y: Floats, l2: float) -> Floats:
    """Return the W that minimizes |xW - y|^2 + l2 |W|^2: (n, d), (n, c) -> (d, c).

    Through the smaller of x'x and xx'.
    """
    found: Floats
    if x.shape[0] >= x.shape[1]:
        found = np.linalg.solve(x.T @ x + l2 * np.eye(x.shape[1]), x.T @ y).astype(np.float64)
    else:
        found = x.T @ np.linalg.solve(x @ x.T + l2 * np.eye(len(x)), y)
    return found


def leave_one_out(
    x: Blocks, targets: Targets, penalties: Sequence[float] = RIDGES
) -> Iterator[tuple[slice, float, Floats]]:
    """Yield, block by block and for each l2 of `ridge`, what it says when fitted to all other rows.

    In closed form, from one decomposition: y - (y - Hy) / (1 - diag H).

    Args:
        x: n rows
        targets: of them
        penalties: the values of l2

    Yields:
        The places of a block's rows, l2, and what is said of each, (b, c).
    """
    middle = _middle(x, targets)
    few = x.count < len(x.mean)
    if few:
        whole = x.whole()
        values, bases = np.linalg.eigh(whole @ whole.T)
        values = np.maximum(values, 0)
        inner = bases.T @ (targets(slice(None)) - middle)
    else:
        squares, products = _sum_products(x, targets, middle)
        values, vectors = np.linalg.eigh(squares)
        seen = values > 1e-12 * max(values.max(), 1e-300)
        values = values[seen]
        axes = vectors[:, seen] / np.sqrt(values)
        inner = axes.T @ products
    for own, rows in x.exact():
        basis = bases[own] if few else rows @ axes
        y = targets(own) - middle
        own_squares = basis**2
        for l2 in penalties:
            share = values / (values + l2)
            error = y - basis @ (share[:, None] * inner)
            rest = 1 - own_squares @ share - 1 / x.count  # of the bias, which has no penalty
            yield own, l2, middle + y - error / np.maximum(rest, 1e-9)[:, None]


def best_ridge(x: Blocks, y: Integers, classes: int) -> tuple[float, float]:
    """Return the accuracy, leaving one out, of the best l2, and that l2; of equals the strongest.

    Args:
        x: standardized features
        y: index of each row's output, (n,)
        classes: number of outputs
    """
    right = Counter[float]()
    for own, l2, outputs in leave_one_out(x, lambda own: signs(y[own], classes)):
        right[l2] += int((outputs.argmax(1) == y[own]).sum())
    return max((count / len(y), l2) for l2, count in right.items())
