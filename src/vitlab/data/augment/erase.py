"""Random erasing (Zhong et al., 2020): a rectangle of an image is replaced by noise."""

import math
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitlab.data.augment.policy import Floats, send

AREA, ASPECT, TRIES = (0.02, 1 / 3), (0.3, 1 / 0.3), 10
GOLDEN, FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def erase(pixels: Tensor, draws: Floats, probability: float) -> Tensor:
    """Fill a random rectangle of some images with standard normal noise, value by value.

    Area, aspect ratio and number of attempts are those of timm's `RandomErasing`. The noise comes
    from the image's own random numbers through a counter, so it is the same on every device.

    Args:
        pixels: normalized float (B, C, H, W); changed in place
        draws: uniform in [0, 1), (B, 25): whether to erase, area and aspect ratio of ten attempts,
            position, noise
        probability: of erasing an image

    Returns:
        The same images, (B, C, H, W).
    """
    boxes = rectangles(draws, *pixels.shape[2:])
    chosen = np.flatnonzero((draws[:, 0] < probability) & (boxes[:, 2] > 0))
    if not len(chosen):
        return pixels
    device = pixels.device
    rows = send(chosen, device)
    top, left, height, width = send(boxes[chosen], device)[..., None].unbind(1)
    y, x = (torch.arange(n, device=device) for n in pixels.shape[2:])
    down, right = (y >= top) & (y < top + height), (x >= left) & (x < left + width)
    hole = down[:, None, :, None] & right[:, None, None, :]
    words = (draws[chosen, -2:] * 2**24).astype(np.int64)  # draws are multiples of 2^-24
    noise = normal(send(words[:, 0] << 24 | words[:, 1], device), pixels[0].numel())
    part = pixels.index_select(0, rows)
    part = torch.where(hole, noise.view(part.shape).to(part.dtype), part)
    return pixels.index_copy_(0, rows, part)


def rectangles(draws: Floats, rows: int, columns: int) -> NDArray[np.int64]:
    """Return top, left, height and width per image, (B, 4); zeros if no attempt fits."""
    tries = draws[:, 1 : 1 + 2 * TRIES].reshape(-1, TRIES, 2)
    area = (AREA[0] + (AREA[1] - AREA[0]) * tries[..., 0]) * rows * columns
    low, high = math.log(ASPECT[0]), math.log(ASPECT[1])
    aspect = np.exp(low + (high - low) * tries[..., 1])
    sizes = np.rint(np.sqrt(np.stack([area * aspect, area / aspect], -1)))  # (B, tries, 2)
    fits = (sizes < (rows, columns)).all(-1)
    size = np.take_along_axis(sizes, fits.argmax(1)[:, None, None], 1)[:, 0]
    size = np.where(np.any(fits, axis=1, keepdims=True), size, 0)
    place = np.floor(draws[:, -4:-2] * (np.array([rows, columns]) - size + 1))
    return np.concatenate([place, size], 1).astype(np.int64)


def normal(keys: Tensor, count: int) -> Tensor:
    """Return standard normal numbers from keys: float32 (K, count) from int64 (K,).

    Each 64 bits of the generator give four numbers, each one of 65,536 equally likely values.
    """
    bits = splitmix(keys, -(-count // 4))
    shifts = torch.arange(0, 64, 16, device=keys.device)
    lanes = (bits[..., None] >> shifts) & 0xFFFF
    table = _quantiles(keys.device)
    return table.index_select(0, lanes.view(-1)).view(len(keys), -1)[:, :count]


def splitmix(keys: Tensor, count: int) -> Tensor:
    """Return the first SplitMix64 words (Steele et al., 2014) of each key: int64 (K, count)."""
    steps = torch.arange(1, count + 1, device=keys.device)
    words = keys[:, None] + steps * _signed(GOLDEN)  # integers wrap around
    words = (words ^ _shifted(words, 30)) * _signed(FIRST)
    words = (words ^ _shifted(words, 27)) * _signed(SECOND)
    return words ^ _shifted(words, 31)


def _shifted(words: Tensor, by: int) -> Tensor:
    """Shift right, filling with zeros."""
    return (words >> by) & (2 ** (64 - by) - 1)


def _signed(word: int) -> int:
    return word - 2**64 if word >= 2**63 else word


@lru_cache(maxsize=2)
def _quantiles(device: torch.device) -> Tensor:
    """Return the medians of 65,536 equally likely intervals of the standard normal distribution."""
    middles = (torch.arange(2**16, dtype=torch.float64) + 0.5) / 2**16
    return torch.special.ndtri(middles).float().to(device)
