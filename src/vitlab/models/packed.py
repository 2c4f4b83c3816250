"""Images of different sizes as one sequence of patches (Dehghani et al., Patch n' Pack, 2023)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Self

import torch
from torch import Tensor

from vitlab.errors import OptionError
from vitlab.models.configs.model_config import check_multiple

Grid = tuple[int, int]


@dataclass(frozen=True)
class Packed:
    """Images of any sizes, cut into patches that lie one after the other.

    A Vision Transformer takes it in place of (B, channels, H, W); tokens attend within their own
    image only. Neighbors of the same size are computed together, so sort images by size.

    Attributes:
        patches: (T, channels * patch * patch), each image's in raster order; the values of a patch
            are in the order (channel, row, column)
        grids: rows and columns of patches of each image
        patch: pixels per side
    """

    patches: Tensor
    grids: tuple[Grid, ...]
    patch: int

    @classmethod
    def of(cls, images: Sequence[Tensor], patch: int) -> Self:
        """Pack images.

        Args:
            images: (channels, H, W) each, of one type and number of channels
            patch: pixels per side, which divides every height and width

        Raises:
            OptionError: it does not, or there are no images.
        """
        if not images:
            raise OptionError("there are no images to pack")
        for image in images:
            check_multiple((image.shape[1], image.shape[2]), patch, f"patch={patch}")
        grids = tuple((each.shape[1] // patch, each.shape[2] // patch) for each in images)
        return cls(torch.cat([to_patches(each[None], patch) for each in images]), grids, patch)

    def __len__(self) -> int:
        return len(self.grids)

    def __getitem__(self, part: slice) -> Self:
        """Return some neighboring images."""
        counts = [rows * columns for rows, columns in self.grids]
        first, last, _ = part.indices(len(self))
        start, length = sum(counts[:first]), sum(counts[first:last])
        return replace(
            self, patches=self.patches[start : start + length], grids=self.grids[first:last]
        )

    @property
    def channels(self) -> int:
        """Channels of every image."""
        return self.patches.shape[1] // self.patch**2

    @property
    def runs(self) -> list[tuple[Grid, int]]:
        """The grid and the number of neighbors that have it, in their order."""
        return [(grid, len(list(same))) for grid, same in groupby(self.grids)]

    def blocks(self) -> list[Tensor]:
        """Return the images of each run: (n, channels, H, W) each."""
        counts = [rows * columns * number for (rows, columns), number in self.runs]
        parts = zip(self.patches.split(counts), self.runs, strict=True)
        return [from_patches(part, grid, self.patch) for part, (grid, _) in parts]

    def images(self) -> list[Tensor]:
        """Return the images, (channels, H, W) each."""
        return [image for block in self.blocks() for image in block]

    def by_block(self, change: Callable[[Tensor, slice], Tensor]) -> Self:
        """Return the same with each run changed: images (n, channels, H, W) and their places."""
        changed, first = [], 0
        for block in self.blocks():
            changed.append(to_patches(change(block, slice(first, first + len(block))), self.patch))
            first += len(block)
        return replace(self, patches=torch.cat(changed) if changed else self.patches)

    def flip(self, axis: int) -> Self:
        """Return every image mirrored along an axis of (n, channels, H, W)."""
        return self.by_block(lambda block, _: block.flip(axis))

    def to(self, target: torch.device | torch.dtype, non_blocking: bool = False) -> Self:
        """Return the same on another device, or as another type."""
        return replace(self, patches=self.patches.to(target, non_blocking=non_blocking))


def to_patches(images: Tensor, patch: int) -> Tensor:
    """Cut images into patches: (n, C, H, W) -> (n rows columns, C P P)."""
    cut = images.unflatten(3, (-1, patch)).unflatten(2, (-1, patch))  # (n, C, r, P, c, P)
    return cut.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(0, 2)


def from_patches(patches: Tensor, grid: Grid, patch: int) -> Tensor:
    """Put patches together: (n rows columns, C P P) -> (n, C, H, W)."""
    cut = patches.unflatten(0, (-1, *grid)).unflatten(3, (-1, patch, patch))
    return cut.permute(0, 3, 1, 4, 2, 5).flatten(4).flatten(2, 3)
