"""Augmentation of whole batches, on the device that trains; normalization, and random erasing.

Every image brings its own uniform random numbers (see `order.draws`), so its augmentation depends
only on (seed, epoch, image), not on its neighbors, the worker or the device.
"""

import math
from dataclasses import replace
from functools import lru_cache
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from vitlab.data.augment import policy
from vitlab.data.augment.draws import ERASE, mirrored
from vitlab.data.augment.ops import affine, compose, photometric, sample
from vitlab.data.augment.policy import Codes, Floats, Op, send
from vitlab.data.settings import Augment
from vitlab.images import ImageSpec
from vitlab.models.packed import Packed
from vitlab.on_device import WITHOUT_FLOAT64, sent

CACHED = 2**20  # values at once on a CPU, which is several times faster within its cache
AREA, ASPECT, TRIES = (0.02, 1 / 3), (0.3, 1 / 0.3), 10
# of SplitMix64, as signed numbers
GOLDEN, FIRST, SECOND = (
    word - 2**64 for word in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)

Images = TypeVar("Images", Tensor, Packed, Tensor | Packed)


def normalize(images: Images, spec: ImageSpec) -> Images:
    """Turn uint8 (B, H, W, C) into float32 (B, C, H, W): (pixels / 255 - mean) / std.

    Packed images stay packed.
    """
    if isinstance(images, Packed):
        patches = images.patches.unflatten(1, (images.channels, images.patch, -1))
        return replace(images, patches=standardize(_unit(patches), spec).flatten(1))
    return standardize(_unit(images.permute(0, 3, 1, 2)), spec)


def augment(images: Images, draws: Tensor, options: Augment, spec: ImageSpec) -> Images:
    """Augment each image by its own draws, then normalize, then erase rectangles.

    First come flip, rotation, translation, scaling and shear, then the operations of
    `policy.sequence` in their order. All geometric operations of an image are one resampling, made
    in place of the first of them.

    Args:
        images: uint8 (B, H, W, C), or packed
        draws: uniform in [0, 1), (B, `draws_needed`), best on the CPU, where everything is
            decided; the first six are enough without a policy, color jitter or erasing
        options: which operations, and their limits
        spec: the mean and standard deviation of each channel

    Returns:
        float32 (B, C, H, W), or packed. Areas from outside the image are black, or, with operations
        of a policy, which may invert them, the mean color.
    """
    if isinstance(images, Packed):
        return images.changed(
            lambda block, numbers: augment(block.permute(0, 2, 3, 1), draws[numbers], options, spec)
        )
    if images.device.type in WITHOUT_FLOAT64:  # which Pillow's arithmetic needs
        return sent(augment(images.cpu(), draws, options, spec), images.device)
    part = max(1, CACHED // max(1, math.prod(images.shape[1:])))
    if images.device.type != "cpu" or len(images) <= part:
        return _augment(images, draws, options, spec)
    rows, columns, channels = images.shape[1:]
    result = torch.empty(len(images), channels, rows, columns)
    for target, *given in zip(
        result.split(part), images.split(part), draws.split(part), strict=True
    ):
        target.copy_(_augment(given[0], given[1], options, spec))
    return result


def _augment(images: Tensor, draws: Tensor, options: Augment, spec: ImageSpec) -> Tensor:
    """Augment images that are few enough to be processed at once."""
    numbers = draws.cpu().double().numpy()
    ops, arguments = policy.sequence(numbers, options)
    pixels = images.permute(0, 3, 1, 2)
    if ops.shape[1]:
        fill = send(
            np.clip(np.rint(255 * np.array(spec.mean)), 0, 255).astype(np.uint8), images.device
        )
        pixels = pixels.clone(memory_format=torch.contiguous_format)
        result = _unit(_apply(pixels, draws, ops, arguments, options, fill))
    else:
        result = _move(_unit(pixels), draws, options)
    result = standardize(result, spec)
    return erase(result, numbers[:, ERASE], options.erase) if options.erase else result


def _move(pixels: Tensor, draws: Tensor, options: Augment) -> Tensor:
    """Flip, rotate, translate, scale and shear float images (B, C, H, W)."""
    if _moves(options):
        theta = sent(affine(draws, options, *pixels.shape[-2:]), pixels.device)
        grid = F.affine_grid(theta, list(pixels.shape), False)
        mode = options.augment_interpolation
        moved = F.grid_sample(pixels, grid, mode, padding_mode="zeros", align_corners=False)
        return moved.clamp_(0, 1) if mode == "bicubic" else moved  # a cubic overshoots
    return _flip(pixels, draws) if options.flip else pixels


def _apply(
    pixels: Tensor, draws: Tensor, ops: Codes, arguments: Floats, options: Augment, fill: Tensor
) -> Tensor:
    """Apply to each image, uint8 (B, C, H, W), its operations, (B, L), in place.

    Those before an image's first geometric operation precede its one resampling, the others follow.
    An image without any is split in the same way, so that few passes serve all images.
    """
    rows, columns = pixels.shape[2:]
    moving = ops >= Op.ROTATE
    if _moves(options):
        base = affine(draws, options, rows, columns).cpu().double().numpy()
        moved, split = np.ones(len(ops), bool), np.zeros(len(ops), np.int64)
    else:
        base = np.eye(3)[None, :2]
        moved = np.asarray(moving.any(1))
        split = np.where(moved, moving.argmax(1), max(options.rand_ops - 1, 0))
        pixels = _flip(pixels, draws) if options.flip else pixels
    before = np.arange(ops.shape[1]) < split[:, None]
    for op, argument in zip(np.where(before, ops, Op.NONE).T, arguments.T, strict=True):
        pixels = photometric(pixels, op, argument)
    if moved.any():
        theta = (base @ compose(ops, arguments, rows, columns)).astype(np.float32)
        chosen = np.flatnonzero(moved)
        where, places = send(chosen, pixels.device), send(theta[chosen], pixels.device)
        part = pixels.index_select(0, where)
        part = sample(part, places, fill, options.augment_interpolation)
        pixels.index_copy_(0, where, part)
    for op, argument in zip(np.where(before, Op.NONE, ops).T, arguments.T, strict=True):
        pixels = photometric(pixels, op, argument)
    return pixels


def _moves(options: Augment) -> bool:
    return any((options.rotate, options.shift, options.zoom, options.shear))


def _flip(pixels: Tensor, draws: Tensor) -> Tensor:
    """Flip half of the images, in place."""
    rows = send(np.flatnonzero(mirrored(draws.cpu().numpy())), pixels.device)
    return pixels.index_copy_(0, rows, pixels.index_select(0, rows).flip(-1))


def _unit(pixels: Tensor) -> Tensor:
    return pixels.float().div_(255)


def standardize(pixels: Tensor, spec: ImageSpec) -> Tensor:
    """Normalize pixels in [0, 1], float32 (B, C, H, W), in place."""
    shape = (1, -1, 1, 1)
    offset, scale = send(np.array([spec.mean, spec.std], np.float32), pixels.device)
    return pixels.sub_(offset.view(shape)).div_(scale.view(shape))


def erase(pixels: Tensor, draws: Floats, probability: float) -> Tensor:
    """Fill a random rectangle of some images with standard normal noise, value by value.

    Random erasing (Zhong et al., 2020). Area, aspect ratio and number of attempts are those of
    timm's `RandomErasing`. The noise comes from the image's own random numbers through a counter,
    so it is the same on every device.

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
    words = keys[:, None] + steps * GOLDEN  # integers wrap around
    words = (words ^ _shifted(words, 30)) * FIRST
    words = (words ^ _shifted(words, 27)) * SECOND
    return words ^ _shifted(words, 31)


def _shifted(words: Tensor, by: int) -> Tensor:
    """Shift right, filling with zeros."""
    return (words >> by) & (2 ** (64 - by) - 1)


@lru_cache(maxsize=2)
def _quantiles(device: torch.device) -> Tensor:
    """Return the medians of 65,536 equally likely intervals of the standard normal distribution."""
    middles = (torch.arange(2**16, dtype=torch.float64) + 0.5) / 2**16
    return torch.special.ndtri(middles).float().to(device)
