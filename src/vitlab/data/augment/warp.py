"""Geometric operations: any number of them is one affine map and one resampling."""

import math
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from vitlab.data.augment.policy import Codes, Floats, Op
from vitlab.data.settings import Augment

Interpolation = Literal["bilinear", "bicubic"]


def affine(draws: Tensor, options: Augment, rows: int, columns: int) -> Tensor:
    """Flip, rotate, translate, scale and shear by six draws per image, (B, 6) or wider.

    Returns:
        The map from output to input coordinates, as `affine_grid` expects it: (B, 2, 3).
    """
    flip, *spread = draws[:, :6].double().unbind(1)
    turn, right, down, zoom, shear = (2 * each - 1 for each in spread)  # uniform in [-1, 1)
    angle = turn * math.radians(options.rotate)
    slant = torch.tan(shear * math.radians(options.shear))
    scale = torch.exp(zoom * math.log1p(options.zoom))
    mirror = torch.where((flip < 0.5) & options.flip, -1.0, 1.0)
    cos, sin = angle.cos() / scale, angle.sin() / scale
    # in pixels: mirror the columns, slant along them, then turn and zoom
    xx, xy = mirror * cos, slant * cos - sin
    yx, yy = mirror * sin, slant * sin + cos
    aspect = rows / columns  # [-1, 1] spans the columns in x, the rows in y
    theta = torch.stack(
        [xx, xy * aspect, 2 * options.shift * right, yx / aspect, yy, 2 * options.shift * down]
    )
    return theta.view(2, 3, -1).permute(2, 0, 1).float()


def compose(ops: Codes, arguments: Floats, rows: int, columns: int) -> Floats:
    """Compose the geometric operations of each image, in their order, into one map.

    Args:
        ops: (B, L), codes of `Op`; those that change values are ignored
        arguments: (B, L), with Pillow's meaning
        rows: height in pixels
        columns: width in pixels

    Returns:
        The map from output to input coordinates in units of half a side: (B, 3, 3).
    """
    whole = np.broadcast_to(np.eye(3), (len(ops), 3, 3))
    for op, argument in zip(ops.T, arguments.T, strict=True):
        if (op >= Op.ROTATE).any():
            whole = whole @ _matrices(op, argument, rows / columns)
    return np.asarray(whole)


def _matrices(ops: Codes, arguments: Floats, aspect: float) -> Floats:
    """Return one map per image, (B, 3, 3). Pillow shears about the top left, (-1, -1) here."""
    turned, x, y, right, down = (
        np.where(ops == op, arguments, 0.0)
        for op in (Op.ROTATE, Op.SHEAR_X, Op.SHEAR_Y, Op.TRANSLATE_X, Op.TRANSLATE_Y)
    )
    x, y, angle = x * aspect, y / aspect, np.radians(turned)
    cos, sin = np.cos(angle), np.sin(angle)
    zero, one = np.zeros_like(x), np.ones_like(x)
    rows = [
        [cos, x - sin * aspect, x + 2 * right],
        [y + sin / aspect, cos, y + 2 * down],
        [zero, zero, one],
    ]
    return np.moveaxis(np.array(rows), -1, 0)


def sample(pixels: Tensor, theta: Tensor, fill: Tensor, interpolation: Interpolation) -> Tensor:
    """Resample images by maps from output to input coordinates.

    Coordinates outside the image give the fill color; at the border, the outermost pixels are
    repeated. Both are as in Pillow, which truncates interpolated values where this rounds. The
    cubic of "bicubic" is PyTorch's, a little softer (a = -0.75) than Pillow's here (a = -1).

    Args:
        pixels: uint8 (B, C, H, W)
        theta: (B, 2, 3), as for `affine_grid`
        fill: one value per channel, (C,)
        interpolation: bilinear or bicubic

    Returns:
        uint8 (B, C, H, W)
    """
    grid = _grid(theta, *pixels.shape[2:])
    moved = F.grid_sample(pixels.float(), grid, interpolation, "border", align_corners=False)
    inside = (grid.abs() <= 1).all(-1)[:, None]
    return torch.where(inside, (moved + 0.5).clamp_(0, 255).byte(), fill.view(1, -1, 1, 1))


def _grid(theta: Tensor, rows: int, columns: int) -> Tensor:
    """Return the source of each output pixel, (B, H, W, 2): `affine_grid` without a product.

    A matrix product may be imprecise on a GPU (TF32): a tenth of a pixel.
    """
    x = (torch.arange(columns, device=theta.device) * 2 + 1) / columns - 1
    y = ((torch.arange(rows, device=theta.device) * 2 + 1) / rows - 1)[:, None]
    entry = theta[..., None, None]  # (B, 2, 3, 1, 1)
    return torch.stack(
        [entry[:, i, 0] * x + entry[:, i, 1] * y + entry[:, i, 2] for i in (0, 1)], -1
    )
