"""Normalization of pixels, by the mean and standard deviation that a model has for each channel."""

from dataclasses import replace
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from vitlab.images import ImageSpec
from vitlab.models.packed import Packed
from vitlab.on_device import sent

Images = TypeVar("Images", Tensor, Packed, Tensor | Packed)


def normalize(images: Images, spec: ImageSpec) -> Images:
    """Turn uint8 (B, H, W, C) into float32 (B, C, H, W): (pixels / 255 - mean) / std.

    Packed images stay packed.
    """
    if isinstance(images, Packed):
        patches = images.patches.unflatten(1, (images.channels, images.patch, -1))
        return replace(images, patches=standardize(unit_range(patches), spec).flatten(1))
    return standardize(unit_range(images.permute(0, 3, 1, 2)), spec)


def unit_range(pixels: Tensor) -> Tensor:
    """Turn uint8 pixels into float32, in [0, 1]."""
    return pixels.float().div_(255)


def standardize(pixels: Tensor, spec: ImageSpec) -> Tensor:
    """Normalize pixels in [0, 1], float32 (B, C, H, W), in place."""
    shape = (1, -1, 1, 1)
    moments = torch.from_numpy(np.array([spec.mean, spec.std], np.float32))
    offset, scale = sent(moments, pixels.device)
    return pixels.sub_(offset.view(shape)).div_(scale.view(shape))
