"""Random numbers of each image by itself: the same for one process and for several."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitlab.data.loading.batches import Batch
from vitlab.device import sent


class EachImage:
    """A source of random numbers for each image of a batch.

    Attributes:
        sources: one per image, on the host
        device: where what is drawn goes
    """

    def __init__(self, seeds: list[int], device: torch.device) -> None:
        self.sources = [torch.Generator().manual_seed(seed) for seed in seeds]
        self.device = device


Draws = torch.Generator | EachImage
"""What masks are drawn from: one source for a batch, or one for each image of it."""


@torch.compiler.disable  # type: ignore[untyped-decorator]  # no generator in a graph
def draws_of(batch: Batch, generator: torch.Generator) -> Draws:
    """Return what an image's masks are drawn from: its own draws, as its augmentation is.

    They depend on seed, epoch and image alone, not on its neighbors or the process that has it.

    Args:
        batch: with the draws of each image, (B, n)
        generator: for batches without draws
    """
    if not batch.draws.numel():
        return generator
    words = batch.draws.cpu().float().contiguous().numpy().view(np.uint32)
    return EachImage([seed_of(row) for row in words], generator.device)


def seed_of(words: NDArray[np.uint32]) -> int:
    """Return the seed, in [0, 2^63), that some words of 32 bits are hashed to."""
    return int(np.random.SeedSequence(words.tolist()).generate_state(1, np.uint64)[0] >> 1)


def uniform(draws: Draws, batch: int, *shape: int) -> Tensor:
    """Draw numbers from [0, 1): (batch, *shape)."""
    if isinstance(draws, torch.Generator):
        return torch.rand(batch, *shape, generator=draws, device=draws.device)
    each = [torch.rand(shape, generator=source) for source in draws.sources]
    found = torch.stack(each) if each else torch.empty(0, *shape)
    return sent(found, draws.device)


def exponentials(draws: Draws, batch: int, *shape: int) -> Tensor:
    """Draw from the exponential distribution of mean 1: float32 (batch, *shape)."""
    if isinstance(draws, torch.Generator):
        return torch.empty(batch, *shape, device=draws.device).exponential_(generator=draws)
    each = [torch.empty(shape).exponential_(generator=source) for source in draws.sources]
    found = torch.stack(each) if each else torch.empty(0, *shape)
    return sent(found, draws.device)
