"""Augmentation of whole batches, on the device that trains.

Every image brings its own uniform random numbers (see `order.draws`), so its augmentation depends
only on (seed, epoch, image), not on its neighbors, the worker or the device.
"""

from dataclasses import replace
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from vitlab.data.augment import policy
from vitlab.data.augment.erase import erase
from vitlab.data.augment.ops import affine, compose, photometric, sample
from vitlab.data.augment.policy import Codes, Floats, Op, send
from vitlab.data.settings import Augment
from vitlab.device import WITHOUT_FLOAT64, sent
from vitlab.models.packed import Packed

CACHED = 2**20  # values at once on a CPU, which is several times faster within its cache
Images = TypeVar("Images", Tensor, Packed, Tensor | Packed)


def normalize(images: Images, mean: tuple[float, ...], std: tuple[float, ...]) -> Images:
    """Turn uint8 (B, H, W, C) into float32 (B, C, H, W): (pixels / 255 - mean) / std.

    Packed images stay packed.
    """
    if isinstance(images, Packed):
        patches = images.patches.unflatten(1, (images.channels, images.patch, -1))
        return replace(images, patches=_standardize(_unit(patches), mean, std).flatten(1))
    return _standardize(_unit(images.permute(0, 3, 1, 2)), mean, std)


def augment(
    images: Images,
    draws: Tensor,
    options: Augment,
    mean: tuple[float, ...],
    std: tuple[float, ...],
) -> Images:
    """Augment each image by its own draws, then normalize, then erase rectangles.

    First come flip, rotation, translation, scaling and shear, then the operations of
    `policy.sequence` in their order. All geometric operations of an image are one resampling, made
    in place of the first of them.

    Args:
        images: uint8 (B, H, W, C), or packed
        draws: uniform in [0, 1), (B, `policy.draws_needed`), best on the CPU, where everything is
            decided; the first six are enough without a policy, color jitter or erasing
        options: which operations, and their limits
        mean: subtracted from values in [0, 1], one per channel
        std: divisor, one per channel

    Returns:
        float32 (B, C, H, W), or packed. Areas from outside the image are black, or, with operations
        of a policy, which may invert them, the mean color.
    """
    if isinstance(images, Packed):
        return images.changed(
            lambda block, numbers: augment(
                block.permute(0, 2, 3, 1), draws[numbers], options, mean, std
            )
        )
    if images.device.type in WITHOUT_FLOAT64:  # which Pillow's arithmetic needs
        return sent(augment(images.cpu(), draws, options, mean, std), images.device)
    part = max(1, CACHED // max(1, images[0].numel())) if len(images) else 1
    if images.device.type != "cpu" or len(images) <= part:
        return _augment(images, draws, options, mean, std)
    rows, columns, channels = images.shape[1:]
    result = torch.empty(len(images), channels, rows, columns)
    for target, *given in zip(
        result.split(part), images.split(part), draws.split(part), strict=True
    ):
        target.copy_(_augment(given[0], given[1], options, mean, std))
    return result


def _augment(
    images: Tensor,
    draws: Tensor,
    options: Augment,
    mean: tuple[float, ...],
    std: tuple[float, ...],
) -> Tensor:
    """Augment images that are few enough to be processed at once."""
    numbers = draws.cpu().double().numpy()
    ops, arguments = policy.sequence(numbers, options)
    pixels = images.permute(0, 3, 1, 2)
    if ops.shape[1]:
        fill = send(np.clip(np.rint(255 * np.array(mean)), 0, 255).astype(np.uint8), images.device)
        pixels = pixels.clone(memory_format=torch.contiguous_format)
        result = _unit(_apply(pixels, draws, ops, arguments, options, fill))
    else:
        result = _move(_unit(pixels), draws, options)
    result = _standardize(result, mean, std)
    return erase(result, numbers[:, policy.ERASE], options.erase) if options.erase else result


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
    layers = list(enumerate(zip(ops.T, arguments.T, strict=True)))
    for layer, (op, argument) in layers:
        pixels = photometric(pixels, np.where(layer < split, op, Op.NONE), argument)
    if moved.any():
        theta = (base @ compose(ops, arguments, rows, columns)).astype(np.float32)
        chosen = np.flatnonzero(moved)
        where, places = send(chosen, pixels.device), send(theta[chosen], pixels.device)
        part = pixels.index_select(0, where)
        part = sample(part, places, fill, options.augment_interpolation)
        pixels.index_copy_(0, where, part)
    for layer, (op, argument) in layers:
        pixels = photometric(pixels, np.where(layer >= split, op, Op.NONE), argument)
    return pixels


def _moves(options: Augment) -> bool:
    return any((options.rotate, options.shift, options.zoom, options.shear))


def _flip(pixels: Tensor, draws: Tensor) -> Tensor:
    """Flip half of the images, in place."""
    rows = send(np.flatnonzero(draws[:, 0].cpu().numpy() < 0.5), pixels.device)
    return pixels.index_copy_(0, rows, pixels.index_select(0, rows).flip(-1))


def _unit(pixels: Tensor) -> Tensor:
    return pixels.float().div_(255)


def _standardize(pixels: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    shape = (1, -1, 1, 1)
    offset, scale = send(np.array([mean, std], np.float32), pixels.device)
    return pixels.sub_(offset.view(shape)).div_(scale.view(shape))
