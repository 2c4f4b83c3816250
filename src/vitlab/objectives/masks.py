"""Masks: hidden patches in blocks (BEiT), or each by itself, and what they are drawn from.

Random numbers of each image by itself are the same for one process and for several.
"""

import math
from collections.abc import Callable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitlab.data.loading.batch import Batch
from vitlab.errors import OptionError
from vitlab.models.grid import Grid
from vitlab.on_device import sent


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
    return _filled(Tensor.uniform_, draws, batch, shape)


def exponentials(draws: Draws, batch: int, *shape: int) -> Tensor:
    """Draw from the exponential distribution of mean 1: float32 (batch, *shape)."""
    return _filled(Tensor.exponential_, draws, batch, shape)


def _filled(
    fill: Callable[..., Tensor], draws: Draws, batch: int, shape: tuple[int, ...]
) -> Tensor:
    if isinstance(draws, torch.Generator):
        return fill(torch.empty(batch, *shape, device=draws.device), generator=draws)
    each = [fill(torch.empty(shape), generator=source) for source in draws.sources]
    found = torch.stack(each) if each else torch.empty(0, *shape)
    return sent(found, draws.device)


TRIES = 10  # to place a block, before single patches make up the count
LOG_ASPECT = math.log(1 / 0.3)
BLOCK, OF = 16, 14 * 14  # BEiT's smallest block, and the grid that it is for


def block_mask(
    rows: int, columns: int, count: int, generator: torch.Generator, min_block: int = 0
) -> Tensor:
    """Draw BEiT's blockwise mask (Bao et al., 2021, section 2.3 and Algorithm 1).

    Rectangles are added until `count` patches are hidden. The area of each is uniform between
    `min_block` and what is still to be hidden, its rows to columns log-uniform in [0.3, 1 / 0.3],
    its place uniform. One is tried again if it is as long as a side of the grid, hides nothing new,
    or hides more than is left. When ten tries fail, BEiT's code stops short of the count; here, as
    in DINOv2's, single patches make it up, so that all images have as many.

    Args:
        rows: of patches
        columns: of patches
        count: patches to hide, at most all of them
        generator: the only source of random numbers, on any device
        min_block: patches that a block has at least (0: BEiT's 16; on grids of less than 14x14
            patches the same share, a twelfth)

    Returns:
        (rows, columns) bool, on the generator's device; true where a patch is hidden.

    Raises:
        OptionError: a count that the grid does not have.
    """
    return block_masks(1, (rows, columns), count, generator, min_block).view(rows, columns)


# numbers on the host, which a graph cannot hold
@torch.compiler.disable  # type: ignore[untyped-decorator]
def block_masks(batch: int, grid: Grid, count: int, draws: Draws, min_block: int = 0) -> Tensor:
    """Draw a mask as `block_mask` does for each of several images: (batch, rows * columns) bool."""
    patches = math.prod(grid)
    if not 0 <= count <= patches:
        raise OptionError(f"count must be from 0 to the {patches} patches, not {count}")
    least = min_block or smallest_block(grid)
    if isinstance(draws, EachImage):
        sources = [_numbers(source) for source in draws.sources]
    else:
        sources = [_numbers(_on_host(draws))] * batch
    each = [_drawn(grid, count, least, source) for source in sources]
    size = -(-patches // 8)
    packed = np.frombuffer(b"".join(mask.to_bytes(size, "little") for mask in each), np.uint8)
    bits = np.unpackbits(packed.reshape(batch, size), axis=1, count=patches, bitorder="little")
    return sent(torch.from_numpy(bits.astype(np.bool_)), draws.device)


def smallest_block(grid: Grid) -> int:
    """Return the patches that a block has at least: BEiT's 16, or its share of a smaller grid."""
    return max(1, min(BLOCK, round(BLOCK / OF * math.prod(grid))))


def random_places(batch: int, patches: int, count: int, draws: Draws) -> Tensor:
    """Draw the same number of patches for each image, all sets alike: (batch, count) int64."""
    noise = uniform(draws, batch, patches)
    return noise.argsort(dim=1)[:, :count]


def places_of(masks: Tensor, count: int) -> Tensor:
    """Return which patches are hidden, in raster order: (B, P) bool -> (B, count) int64.

    Args:
        masks: true at `count` patches of each image
        count: their number, given so that the shape does not wait for a GPU
    """
    return masks.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, :count]


def _drawn(grid: Grid, count: int, least: int, numbers: Iterator[float]) -> int:
    """Draw the mask of one image, as a number whose bits are the patches in raster order."""
    mask, left = 0, count
    while left and (block := _block(grid, mask, left, least, numbers)):
        mask, left = mask | block, left - (block & ~mask).bit_count()
    visible = [place for place in range(math.prod(grid)) if not mask >> place & 1] if left else []
    for _ in range(left):
        mask |= 1 << visible.pop(int(next(numbers) * len(visible)))
    return mask


def _block(grid: Grid, mask: int, left: int, least: int, numbers: Iterator[float]) -> int:
    """Draw a block that hides some new patches and not more than are left; 0 if no try does."""
    rows, columns = grid
    for _ in range(TRIES):
        area = least + (left - least) * next(numbers)
        aspect = math.exp(LOG_ASPECT * (2 * next(numbers) - 1))
        high, wide = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if high >= rows or wide >= columns:
            continue
        top = int(next(numbers) * (rows - high + 1))
        first = int(next(numbers) * (columns - wide + 1))
        line = ((1 << wide) - 1) << first
        block = sum(line << row * columns for row in range(top, top + high))
        if 0 < (block & ~mask).bit_count() <= left:
            return block
    return 0


def _numbers(generator: torch.Generator) -> Iterator[float]:
    """Draw numbers from [0, 1), 64 at a time."""
    while True:
        yield from torch.rand(64, generator=generator).tolist()


def _on_host(generator: torch.Generator) -> torch.Generator:
    """Return a generator on the host that continues from one on any device.

    The state of a GPU's generator, a seed and an offset, is on the host: it is hashed, and a draw
    moves it on, so that nothing waits for the GPU.
    """
    if generator.device.type == "cpu":
        return generator
    words = np.frombuffer(generator.get_state().numpy().tobytes(), np.uint32)
    torch.rand(1, generator=generator, device=generator.device)
    return torch.Generator().manual_seed(seed_of(words))
