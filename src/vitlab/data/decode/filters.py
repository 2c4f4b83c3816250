"""Pillow's resizing as two matrix products, for batches on any device and for exported graphs.

The result is Pillow's to the last bit. Its weights are whole numbers of 2**-22; here each is a sum
of two parts of at most 11 bits, whose products with pixels are exact in float32, in TF32 too.
"""

import torch
from torch import SymInt, Tensor

from vitlab.data.decode.resized_box import Side
from vitlab.images import ImageSpec

SUPPORT = {"bilinear": 1.0, "bicubic": 2.0}  # pixels on either side
SHARPNESS = -0.5  # of Pillow's bicubic filter (Keys, 1981)
PART = 2.0**11  # units of 2**-22 in a unit of the coarse part


def filter_matrix(
    size: int | SymInt, start: float | Tensor, end: float | Tensor, out: int, interpolation: str
) -> Tensor:
    """Return the matrix that resizes one side of an image: (2, out, size), in two parts.

    Antialiased as Pillow's `resize(…, box=…)`: a pixel of the result is a weighted mean of the
    pixels around its place, over an area that grows with the reduction. The first part holds units
    of 2**-11, the second ones of 2**-22.

    Args:
        size: pixels of the image's side
        start: where the box begins, in pixels
        end: where it ends
        out: pixels of the result's side
        interpolation: bilinear or bicubic
    """
    first, last = (torch.as_tensor(edge, dtype=torch.float64).float() for edge in (start, end))
    scale = (last - first).double() / out  # Pillow keeps the edges in single precision
    wide = scale.clamp(min=1)
    reach = SUPPORT[interpolation] * wide
    center = (first.double() + (torch.arange(out, dtype=torch.float64) + 0.5) * scale)[:, None]
    place = torch.arange(size, dtype=torch.float64)  # type: ignore[arg-type]  # a SymInt too
    near = (place >= (center - reach + 0.5).floor()) & (place < (center + reach + 0.5).floor())
    weights = kernel((place - center + 0.5) * (1 / wide), cubic=interpolation == "bicubic") * near
    weights = weights / weights.sum(1, keepdim=True) * PART**2
    units = weights.sign() * (weights.abs() + 0.5).floor()
    coarse = (units / PART + 0.5).floor()
    return torch.stack([coarse, units - coarse * PART]).float()


def kernel(distance: Tensor, *, cubic: bool) -> Tensor:
    """Weights at distances in pixels of the result: of a triangle, or Keys' cubic (1981)."""
    x = distance.abs()
    a = SHARPNESS
    if not cubic:
        return (1 - x).clamp(min=0)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * a
    return torch.where(x < 1, near, torch.where(x < 2, far, torch.zeros_like(x)))


def resize(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Resize a batch: (B, C, H, W) -> (B, C, out rows, out columns), whole numbers from 0 to 255.

    Each pass rounds halves up, as Pillow does for bytes; the horizontal one comes first.

    Args:
        images: whole numbers from 0 to 255, as floating-point numbers
        rows: from `filter_matrix`
        columns: from `filter_matrix`
    """
    return _along_columns(_along_rows(images, columns), rows)


def resize_tall(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Resize as `resize`, with the vertical pass first, for images that `is_tall` names."""
    return _along_rows(_along_columns(images, rows), columns)


def is_tall(rows: Side, columns: Side, spec: ImageSpec, high: Side) -> bool | Tensor:
    """Return whether Pillow (13) starts with the vertical pass, which saves work.

    Args:
        rows: of the whole image, whatever the box
        columns: of the whole image
        spec: size of the result, and whether it is the center of the whole image resized
        high: rows of the box
    """
    out = spec.size
    tall = (rows > out[0]) & (rows - out[0] > 2 * (columns - out[1]))
    if spec.fit == "crop":
        tall = tall & (rows > 2 * columns) & (high > out[0])
    return tall


def _along_rows(images: Tensor, columns: Tensor) -> Tensor:
    """Resize every row: (B, C, H, W) -> (B, C, H, out)."""
    return _rounded(images @ columns.to(images).flatten(0, 1).T, -1)


def _along_columns(images: Tensor, rows: Tensor) -> Tensor:
    """Resize every column: (B, C, H, W) -> (B, C, out, W)."""
    return _rounded(rows.to(images).flatten(0, 1) @ images, -2)


def _rounded(sums: Tensor, side: int) -> Tensor:
    """Join the two parts of weighted sums along one side, and round halves up."""
    coarse, fine = sums.chunk(2, side)
    units = coarse + (fine / PART).floor()  # what is lost cannot change the result
    return ((units + PART / 2) / PART).floor().clamp(0, 255)
