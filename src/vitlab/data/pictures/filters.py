"""Pillow's resizing as two matrix products, for batches on any device and for exported graphs."""

import torch
from torch import Tensor

SUPPORT = {"bilinear": 1.0, "bicubic": 2.0}  # pixels on either side
SHARPNESS = -0.5  # of Pillow's bicubic filter (Keys, 1981)


def filter_matrix(size: int, start: float, end: float, out: int, interpolation: str) -> Tensor:
    """Return what resizes one side of an image: (out, size), rows sum to 1.

    Antialiased as Pillow's `resize(…, box=…)`: a pixel of the result is a weighted mean of the
    pixels around its place, over an area that grows with the reduction.

    Args:
        size: pixels of the image's side
        start: where the box begins, in pixels
        end: where it ends
        out: pixels of the result's side
        interpolation: bilinear or bicubic
    """
    scale = (end - start) / out
    wide = max(scale, 1.0)
    reach = SUPPORT[interpolation] * wide
    center = start + (torch.arange(out, dtype=torch.float64) + 0.5) * scale
    place = torch.arange(size, dtype=torch.float64)
    first = (center - reach + 0.5).floor().clamp(min=0)[:, None]
    last = (center + reach + 0.5).floor().clamp(max=size)[:, None]
    weights = _kernel((place + 0.5 - center[:, None]) / wide, interpolation)
    weights = weights * ((place >= first) & (place < last))
    return (weights / weights.sum(1, keepdim=True)).float()


def _kernel(distance: Tensor, interpolation: str) -> Tensor:
    """Weights at distances in pixels of the result."""
    x = distance.abs()
    if interpolation == "bilinear":
        return (1 - x).clamp(min=0)
    a = SHARPNESS
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * a
    return torch.where(x < 1, near, torch.where(x < 2, far, torch.zeros_like(x)))


def resize(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Resize a batch: (B, C, H, W) -> (B, C, out rows, out columns), whole numbers from 0 to 255.

    Both passes round halves up, the horizontal one first, as Pillow does for bytes.
    """
    wide = (images @ columns.T.to(images) + 0.5).floor().clamp(0, 255)
    return (rows.to(images) @ wide + 0.5).floor().clamp(0, 255)
