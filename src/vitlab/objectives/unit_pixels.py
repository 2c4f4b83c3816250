"""Normalized images back in [0, 1]: for targets, for figures, and as pictures."""

import torch
from torch import Tensor

from vitlab.device import sent
from vitlab.images import ImageSpec

GRAY = 0.5  # of what is hidden in a picture


def unit_pixels(images: Tensor, spec: ImageSpec) -> Tensor:
    """Undo the normalization of images: (B, channels, H, W) -> float32 (B, channels, H, W)."""
    mean, std = (
        sent(torch.tensor(each), images.device)[:, None, None] for each in (spec.mean, spec.std)
    )
    return images.float() * std + mean


def as_pictures(pixels: Tensor) -> Tensor:
    """Return pixels in [0, 1], (B, channels, H, W), as RGB pictures, uint8 (B, H, W, 3).

    Values outside are cut off. Gray becomes RGB; of four channels and more the first three count.
    """
    shown = pixels.expand(-1, 3, -1, -1) if pixels.shape[1] == 1 else pixels[:, :3]
    if shown.shape[1] == 2:  # two channels have no colors
        shown = pixels.mean(1, keepdim=True).expand(-1, 3, -1, -1)
    return (shown.clamp(0, 1) * 255).round().byte().permute(0, 2, 3, 1)
