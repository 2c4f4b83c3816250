"""Images of different sizes as one sequence of patches (Dehghani et al., Patch n' Pack, 2023)."""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Self

import torch
from torch import Tensor

from vitlab.errors import OptionError
from vitlab.models.grid import Grid, check_multiple
from vitlab.on_device import sent


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

    def changed(self, change: Callable[[Tensor, list[int]], Tensor]) -> Self:
        """Return the same with all images of a size changed together.

        Args:
            change: images (n, channels, H, W) and their numbers, to as many of that shape
        """
        own, same = self._each(), defaultdict(list)
        for number, grid in enumerate(self.grids):
            same[grid].append(number)
        result = list(own)
        for grid, numbers in same.items():
            block = from_patches(torch.cat([own[number] for number in numbers]), grid, self.patch)
            parts = to_patches(change(block, numbers), self.patch).split(math.prod(grid))
            for number, part in zip(numbers, parts, strict=True):
                result[number] = part
        return replace(self, patches=torch.cat(result) if result else self.patches)

    def flip(self, axis: int) -> Self:
        """Return every image mirrored along an axis of (n, channels, H, W)."""
        return self.changed(lambda block, _: block.flip(axis))

    def by_size(self) -> tuple[Self, list[int]]:
        """Return the same with images of one size side by side, and where each one was before."""
        order = sorted(range(len(self)), key=lambda number: self.grids[number])
        if order == [*range(len(self))]:
            return self, order
        own = self._each()
        patches = torch.cat([own[number] for number in order])
        return replace(self, patches=patches, grids=tuple(self.grids[n] for n in order)), order

    def blank(self) -> Self:
        """Return one image of the least size, all zero."""
        zeros = self.patches.new_zeros(1, self.patches.shape[1])
        return replace(self, patches=zeros, grids=((1, 1),))

    def _each(self) -> tuple[Tensor, ...]:
        """Return the patches of each image."""
        return self.patches.split([rows * columns for rows, columns in self.grids])

    def pin_memory(self) -> Self:
        """Return the same in pinned memory."""
        return replace(self, patches=self.patches.pin_memory())

    def to(self, target: torch.device | torch.dtype, non_blocking: bool = False) -> Self:
        """Return the same on another device, or as another type."""
        return replace(self, patches=self.patches.to(target, non_blocking=non_blocking))


def before_sorting(rows: Tensor, order: list[int]) -> Tensor:
    """Return rows (B, …), one per image, in the order before `Packed.by_size`."""
    places = torch.tensor(order).argsort()
    return rows.index_select(0, sent(places, rows.device))


def to_patches(images: Tensor, patch: int) -> Tensor:
    """Cut images into patches: (n, C, H, W) -> (n rows columns, C P P)."""
    cut = images.unflatten(3, (-1, patch)).unflatten(2, (-1, patch))  # (n, C, r, P, c, P)
    return cut.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(0, 2)


def from_patches(patches: Tensor, grid: Grid, patch: int) -> Tensor:
    """Put patches together: (n rows columns, C P P) -> (n, C, H, W)."""
    cut = patches.unflatten(0, (-1, *grid)).unflatten(3, (-1, patch, patch))
    return cut.permute(0, 3, 1, 4, 2, 5).flatten(4).flatten(2, 3)
