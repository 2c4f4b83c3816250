"""A transform of the user's own: what it is given in a step, and what it must return."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from vitlab.data.loading.batch import Batch
from vitlab.errors import OptionError

STREAM = 2  # separates these random numbers from others drawn from a step's seed

Transform = Callable[[Tensor, torch.Generator], Tensor]
"""Images, uint8 (B, C, H, W), and a generator on their device -> such images."""


def transformed_batch(batch: Batch, transform: Transform, seed: int) -> Batch:
    """Return a batch with its images transformed, each view by random numbers of its own.

    Args:
        batch: on the training device
        transform: of the user's own
        seed: of the step and the process
    """
    if not len(batch):
        return batch
    assert isinstance(batch.images, Tensor)  # packed images are refused before the run
    views = (
        transformed_batch(view, transform, seed + number)
        for number, view in enumerate(batch.views, 1)
    )
    return replace(batch, images=transformed(batch.images, transform, seed), views=tuple(views))


def transformed(images: Tensor, transform: Transform, seed: int) -> Tensor:
    """Transform images, uint8 (B, H, W, C); the result has the same shape.

    PyTorch's default generator is seeded too, for a transform that does not use its own.

    Raises:
        OptionError: what the transform returns cannot take the place of its images.
    """
    own = int(np.random.default_rng((seed, STREAM)).integers(2**63))
    torch.manual_seed(own)
    given = images.permute(0, 3, 1, 2).contiguous()
    with torch.no_grad():
        found = transform(given, torch.Generator(images.device).manual_seed(own))
    if not isinstance(found, Tensor):
        raise OptionError(f"transform must return a tensor, not a {type(found).__name__}")
    if found.dtype != torch.uint8 or found.shape != given.shape or found.device != given.device:
        raise OptionError(
            f"transform must return what it gets, {_described(given)}, not {_described(found)}"
        )
    return found.permute(0, 2, 3, 1).contiguous()  # as it came: other strides, other kernels


def _described(images: Tensor) -> str:
    kind = str(images.dtype).removeprefix("torch.")
    return f"{kind} {tuple(images.shape)} on {images.device}"
