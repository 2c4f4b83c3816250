"""Variation of whole batches, on the device that trains.

Every image brings its own uniform random numbers (see `order.draws`), so what happens to it depends
on (seed, epoch, image) alone and not on its neighbours, the worker or the device.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from vitlab.data.options import Augment


def normalise(images: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """uint8 (B, H, W, C) to float32 (B, C, H, W): scaled to [0, 1], less the mean, by the std."""
    return _standardise(_unit(images), mean, std)


def augment(
    images: Tensor, draws: Tensor, how: Augment, mean: tuple[float, ...], std: tuple[float, ...]
) -> Tensor:
    """Flip, turn, shift, zoom and slant each image by its own draws, then normalise.

    Args:
        images: uint8 (B, H, W, C)
        draws: uniform in [0, 1), (B, 6) or wider
        how: how far each may go
        mean: subtracted from values in [0, 1], one a channel
        std: divided by, one a channel

    Returns:
        float32 (B, C, H, W). All movements are one bilinear sampling; what comes in from outside
        the image is black.
    """
    pixels = _unit(images)
    if any((how.rotate, how.shift, how.zoom, how.shear)):
        grid = F.affine_grid(affine(draws, how, *pixels.shape[-2:]), list(pixels.shape), False)
        pixels = F.grid_sample(pixels, grid, padding_mode="zeros", align_corners=False)
    elif how.flip:  # alone it needs no sampling
        mirrored = (draws[:, 0] < 0.5)[:, None, None, None]
        pixels = torch.where(mirrored, pixels.flip(-1), pixels)
    return _standardise(pixels, mean, std)


def affine(draws: Tensor, how: Augment, rows: int, columns: int) -> Tensor:
    """The map from output to input places, as `affine_grid` takes it: (B, 2, 3)."""
    flip, *spread = draws[:, :6].double().unbind(1)
    turn, right, down, zoom, shear = (2 * each - 1 for each in spread)  # uniform in [-1, 1)
    angle = turn * math.radians(how.rotate)
    slant = torch.tan(shear * math.radians(how.shear))
    scale = torch.exp(zoom * math.log1p(how.zoom))
    mirror = torch.where((flip < 0.5) & how.flip, -1.0, 1.0)
    cos, sin = angle.cos() / scale, angle.sin() / scale
    # in pixels: mirror the columns, slant along them, then turn and zoom
    xx, xy = mirror * cos, slant * cos - sin
    yx, yy = mirror * sin, slant * sin + cos
    aspect = rows / columns  # [-1, 1] spans the columns in x, the rows in y
    theta = torch.stack(
        [xx, xy * aspect, 2 * how.shift * right, yx / aspect, yy, 2 * how.shift * down]
    )
    return theta.view(2, 3, -1).permute(2, 0, 1).float()


def _unit(images: Tensor) -> Tensor:
    return images.permute(0, 3, 1, 2).float() / 255


def _standardise(pixels: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    shape = (1, -1, 1, 1)
    offset = torch.tensor(mean, device=pixels.device).view(shape)
    return (pixels - offset) / torch.tensor(std, device=pixels.device).view(shape)
