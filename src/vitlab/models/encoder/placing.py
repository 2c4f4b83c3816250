"""The positions of the images at hand: one grid for a batch, one for each run of a packed one."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from torch import Tensor

from vitlab.errors import OptionError
from vitlab.models.config import ViTConfig
from vitlab.models.encoder.layout import Layout, Relate, Run, joined, parted
from vitlab.models.packed import Grid
from vitlab.models.positions.positions import Positions


@dataclass(frozen=True)
class Placed:
    """The positions of one table, for images whose grids are known.

    Attributes:
        schemes: on the grid of the batch, or on that of each run
        layout: how the tokens lie
    """

    schemes: tuple[Positions, ...]
    layout: Layout

    @classmethod
    def of(cls, positions: Positions, grid: Grid) -> Self:
        """Return the positions of a batch of images of one size.

        Raises:
            OptionError: the scheme is limited to another size.
        """
        scheme = positions.at(grid)
        return cls((scheme,), Layout(grid, relation(scheme)))

    @classmethod
    def packed(cls, positions: Positions, runs: Sequence[tuple[Grid, int]], prefix: int) -> Self:
        """Return the positions of packed images.

        Args:
            positions: of any grid
            runs: the grid and number of neighbors of one size
            prefix: tokens of each image before its patches

        Raises:
            OptionError: the scheme is limited to another size.
        """
        found = {grid: positions.at(grid) for grid, _ in runs}
        lie = {grid: Layout(grid, relation(scheme)) for grid, scheme in found.items()}
        layout = Layout(
            (0, 0),
            runs=tuple(Run(count, prefix + math.prod(grid), lie[grid]) for grid, count in runs),
        )
        return cls(tuple(found[grid] for grid, _ in runs), layout)

    def led(self, leading: int | None) -> Self:
        """Return the same for a block that computes so many of the tokens, the first."""
        return replace(self, layout=replace(self.layout, leading=leading))

    def place(self, tokens: Tensor) -> Tensor:
        """Return the tokens as a block's input: (B, N, D) -> (B, N, D), or (1, T, D) packed."""
        if not self.layout.runs:
            return self.schemes[0].place(tokens)
        parts = parted(tokens, self.layout.runs)
        placed = [scheme.place(part) for scheme, part in zip(self.schemes, parts, strict=True)]
        if all(new is old for new, old in zip(placed, parts, strict=True)):
            return tokens
        return joined(placed)


def relation(scheme: Positions) -> Relate | None:
    """Return how a scheme acts within attention; None for one that does not."""
    return scheme.relate if scheme.relates else None


def checked_extra(extra: Tensor, config: ViTConfig, positions: Positions) -> Tensor:
    """Return a further sequence of tokens that joins those of an image, (B, M, width).

    Raises:
        OptionError: another shape, or a model that knows the tokens of the image only.
    """
    without = [name for name in ("window", "class_blocks", "neck") if getattr(config, name)]
    without += ["attention"] if config.attention == "axial" else []
    without += [] if positions.takes_extra else ["positions"]
    if without:
        what = f"{without[0]}={getattr(config, without[0])}"
        raise OptionError(f"{what} cannot place extra tokens: it knows those of the image only")
    if extra.ndim != 3 or extra.shape[-1] != config.width:
        raise OptionError(f"extra must be (B, M, {config.width}), not {tuple(extra.shape)}")
    return extra
