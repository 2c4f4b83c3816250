"""Features of images in blocks, standardized, and the linear head that a fit to them makes.

Of features in a file, only a block is in memory at a time.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from vitlab.evaluation.answers import Float32s, Floats, Integers
from vitlab.on_device import with_float64

By = Literal["logistic", "ridge", "means"]
BLOCK = 4096  # rows
MEMORY = 2**30  # bytes of features that are kept
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

    def logits(self, x: Float32s, rows: Integers | None = None) -> Floats:
        """Compute the outputs, in blocks: (m, d), or m rows of more -> float64 (m, c)."""
        found = np.empty((len(x if rows is None else rows), len(self.bias)))
        for first in range(0, len(found), BLOCK):
            some = slice(first, first + BLOCK)
            own = x[some] if rows is None else x[rows[some]]
            found[some] = own.astype(np.float64) @ self.weights.T + self.bias
        return found

    def predict(self, x: Float32s) -> Integers:
        """Predict classes: (m, d) -> int64 (m,)."""
        return self.logits(x).argmax(1)


class Blocks:
    """Standardized rows of features as float32 tensors, in blocks; kept where they fit into memory.

    Args:
        values: features, (n, d), possibly memory-mapped
        device: where the tensors are
        scaled: whether features are divided by their standard deviation
        rows: the numbers of those that count; None for all

    Attributes:
        mean: of each feature, float64 (d,)
        std: its standard deviation plus 1e-5, or 1 for features that are not scaled; float64 (d,)
        device: where the tensors are
    """

    def __init__(
        self,
        values: Float32s,
        device: torch.device = CPU,
        scaled: bool = True,
        rows: Integers | None = None,
    ) -> None:
        if rows is not None and 4 * len(rows) * values.shape[1] <= MEMORY:
            values = values[rows]
            rows = None
        # which can decompose matrices
        self.values = values
        self.device = with_float64(device)
        self.rows = rows
        self.count = len(values) if rows is None else len(rows)
        self.places = [slice(first, first + BLOCK) for first in range(0, self.count, BLOCK)]
        if rows is None:
            self.mean = values.mean(0, dtype=np.float64)
        else:
            sums = [self.read(own).sum(0, dtype=np.float64) for own in self.places]
            self.mean = np.sum(sums, 0) / self.count
        self.std = np.ones_like(self.mean)
        if scaled:
            squares = [((self.read(own) - self.mean) ** 2).sum(0) for own in self.places]
            self.std = np.sqrt(np.sum(squares, 0) / self.count) + 1e-5
        self.kept: list[tuple[slice, Tensor]] | None = None

    def __iter__(self) -> Iterator[tuple[slice, Tensor]]:
        if self.kept is None and 4 * self.count * len(self.mean) <= MEMORY:
            self.kept = list(self._tensors())
        yield from self._tensors() if self.kept is None else self.kept

    def _tensors(self) -> Iterator[tuple[slice, Tensor]]:
        for own, rows in self.exact():
            yield own, torch.from_numpy(rows).float().to(self.device)

    def read(self, own: slice) -> Float32s:
        """Return features of some rows as they are."""
        return self.values[own if self.rows is None else self.rows[own]]

    def exact(self) -> Iterator[tuple[slice, Floats]]:
        """Yield the places of rows, and the rows in double precision, (b, d)."""
        for own in self.places:
            yield own, (self.read(own) - self.mean) / self.std

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
            total += rows.T @ rows / self.count
        variances, axes = torch.linalg.eigh(total)
        seen = variances > 1e-6 * variances.max()
        return axes[:, seen], variances[seen]

    def whole(self) -> Floats:
        """Return all rows in memory, in double precision, (n, d)."""
        return (self.read(slice(None)) - self.mean) / self.std

    def fold_scales(self, weights: Floats, bias: Floats, by: By, l2: float) -> LinearHead:
        """Return a head on standardized features, weights (c, d), for them as they are."""
        plain = weights / self.std
        return LinearHead(plain, bias - plain @ self.mean, by, l2)
