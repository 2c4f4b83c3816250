"""The same image with patches covered, and what becomes of its prediction."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitlab.errors import OptionError
from vitlab.explore.seeing.first_pass import Grid, chances
from vitlab.models.model import Model

AT_ONCE = 2**20  # numbers of covered images in one pass: others may have their turn soon


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


def parts(image: Tensor, grid: Grid) -> Iterator[range]:
    """Yield the numbers of all patches, as many at a time as are covered in one pass."""
    count, few = grid[0] * grid[1], max(1, AT_ONCE // image.numel())
    for first in range(0, count, few):
        yield range(first, min(first + few, count))


@torch.inference_mode()
def each_without(model: Model, image: Tensor, grid: Grid, patches: Sequence[int]) -> Tensor:
    """Return the log-probabilities of every class without each patch: (patches, classes).

    Where an image may have several classes, each has its own.
    """
    images = torch.cat([covered(image, grid, [patch]) for patch in patches])
    logits = model(images).float() / model.temperature
    several = model.provenance.get("multi_label", False)
    found: Tensor = torch.nn.functional.logsigmoid(logits) if several else logits.log_softmax(-1)
    return found.cpu()
