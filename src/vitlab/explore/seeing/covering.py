"""The same image with patches covered, and what becomes of its prediction."""

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitlab.errors import OptionError
from vitlab.explore.seeing.first_pass import Grid, chances
from vitlab.inspect.explaining.class_scores import log_chances
from vitlab.models.model import Model

AT_ONCE = 2**18  # numbers of covered images in one pass: others have their turn soon
MOST = 8  # squares along a side


def covered(image: Tensor, grid: Grid, patches: Iterable[int]) -> Tensor:
    """Return an image without some of its patches: they have the mean color, which is zero.

    Args:
        image: normalized, (1, channels, H, W)
        grid: rows and columns of patches
        patches: their numbers in raster order, from 0

    Raises:
        OptionError: there is no such patch.
    """
    (rows, columns), (high, wide) = grid, image.shape[-2:]
    copy = image.clone()
    for patch in patches:
        if not 0 <= patch < rows * columns:
            raise OptionError(f"patch {patch} of {rows * columns}: they are counted from 0")
        row, column = divmod(patch, columns)
        top, bottom = row * high // rows, (row + 1) * high // rows
        left, right = column * wide // columns, (column + 1) * wide // columns
        copy[:, :, top:bottom, left:right] = 0
    return copy


@torch.inference_mode()
def without(model: Model, image: Tensor, grid: Grid, patches: Iterable[int]) -> NDArray[np.float64]:
    """Return the probabilities, (classes,), of an image some of whose patches are covered.

    Raises:
        OptionError: there is no such patch.
    """
    return chances(model, model(covered(image, grid, patches)))[0]


def squares(grid: Grid) -> tuple[Grid, list[list[int]]]:
    """Return squares of patches to cover one after the other: their grid, and each one's patches.

    There are at most `MOST` by `MOST`, each of which takes a pass through the model: single patches
    of a small grid, 7 x 7 squares of 2 x 2 patches of a grid of 14 x 14.
    """
    (rows, columns), (down, across) = grid, (_divided(each) for each in grid)
    found: dict[tuple[int, int], list[int]] = {}
    for patch in range(rows * columns):
        row, column = divmod(patch, columns)
        found.setdefault((row * down // rows, column * across // columns), []).append(patch)
    return (down, across), [found[place] for place in sorted(found)]


def _divided(side: int) -> int:
    """Return how many squares there are along a side: equal ones, if that leaves enough of them."""
    equal = max(count for count in range(1, MOST + 1) if side % count == 0)
    return equal if equal > MOST // 2 else min(side, MOST)


def at_once(image: Tensor) -> int:
    """Return how many copies of an image are covered in one pass."""
    return max(1, AT_ONCE // image.numel())


@torch.inference_mode()
def each_without(model: Model, image: Tensor, grid: Grid, parts: Sequence[Sequence[int]]) -> Tensor:
    """Return the log-probabilities of every class without each part of the patches.

    Where an image may have several classes, each has its own.

    Returns:
        (parts, classes)
    """
    images = torch.cat([covered(image, grid, part) for part in parts])
    return log_chances(model, images).cpu()
