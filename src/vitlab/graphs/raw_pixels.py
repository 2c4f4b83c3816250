"""Preprocessing inside an exported graph, for images of any size."""

import torch
from torch import SymInt, Tensor, nn

from vitlab.data.decode.filters import is_tall, resize, resize_tall
from vitlab.errors import OptionError
from vitlab.graphs.single_precision import edges, filter_units
from vitlab.images import ImageSpec


class Pixels(nn.Module):
    """Raw images of one size to a model's batch, as `vitlab.preprocess` prepares each of them.

    uint8 (B, rows, columns, channels) -> (B, channels, H, W), normalized float32. The matrices that
    resize are computed from the size of the images, so one graph serves all sizes.

    Args:
        spec: size, crop, interpolation and normalization

    Raises:
        OptionError: images that keep their aspect ratio, or have no colors.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, spec: ImageSpec) -> None:
        super().__init__()
        check_pixels(spec)
        self.spec = spec
        for name in ("mean", "std"):
            self.register_buffer(name, torch.tensor(getattr(spec, name)).reshape(-1, 1, 1))

    def forward(self, image: Tensor) -> Tensor:
        """Crop, resize and normalize."""
        rows, columns = image.shape[1:3]
        high = whole_number(rows)
        wide = whole_number(columns)
        down, across = edges(high, wide, self.spec)
        out = self.spec.size
        sides = (
            filter_units(rows, down, out[0], self.spec.interpolation),
            filter_units(columns, across, out[1], self.spec.interpolation),
        )
        tall = is_tall(high, wide, self.spec, down.length)
        pixels = torch.cond(tall, _resize_tall, _resize, (image, *sides))
        return (pixels / 255 - self.mean) / self.std


def _resize(image: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Resize bytes (B, H, W, C).

    The planes are made here, not before the condition: AOTInductor (PyTorch 2.13) does not keep
    the strides of what it hands to a branch, except those of the graph's own inputs.
    """
    return resize(_planes(image), rows, columns)


def _resize_tall(image: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Resize bytes (B, H, W, C), with the vertical pass first."""
    return resize_tall(_planes(image), rows, columns)


def _planes(image: Tensor) -> Tensor:
    """Return bytes as numbers, channel by channel: (B, H, W, C) -> (B, C, H, W)."""
    return image.permute(0, 3, 1, 2).float().contiguous()


def check_pixels(spec: ImageSpec) -> None:
    """Refuse images that a graph cannot prepare.

    Raises:
        OptionError: they keep their aspect ratio, or their channels are not gray or RGB.
    """
    instead = "pass --bare (bare=True) and prepare them with vitlab.preprocess"
    if spec.fit == "native":
        raise OptionError(
            f"the size of images with fit=native cannot be computed inside a graph: {instead}"
        )
    if spec.channels not in (1, 3):
        raise OptionError(
            f"images of {spec.channels} channels cannot be prepared inside a graph: {instead}"
        )


def whole_number(size: int | SymInt) -> Tensor:
    """Return a size as a number that a graph computes with."""
    return torch.full((), size, dtype=torch.int64)  # type: ignore[arg-type]
