"""Pictures of crops and of features."""

import torch
from torch import Tensor
from torch.nn import functional as F

from vitlab.device import exact


def random_crop(
    images: Tensor, size: tuple[int, int], area: tuple[float, float], generator: torch.Generator
) -> Tensor:
    """Return a random crop of each image, with its aspect ratio, bilinear.

    Args:
        images: normalized, (B, C, H, W)
        size: rows and columns of the result
        area: least and greatest share of the image
        generator: draws share and place

    Returns:
        (B, C, rows, columns)
    """
    count, channels = images.shape[:2]
    share, across, down = torch.rand(3, count, generator=generator, device=generator.device)
    side = (area[0] + (area[1] - area[0]) * share).sqrt()  # the box, as a share of each side
    theta = torch.zeros(count, 2, 3, device=generator.device)
    theta[:, 0, 0] = theta[:, 1, 1] = side
    theta[:, 0, 2] = (1 - side) * (2 * across - 1)  # its center, where the image goes from -1 to 1
    theta[:, 1, 2] = (1 - side) * (2 * down - 1)
    grid = F.affine_grid(theta.to(images), [count, channels, *size], align_corners=False)
    return F.grid_sample(images, grid, padding_mode="border", align_corners=False)


def principal_colors(maps: Tensor, size: tuple[int, int]) -> Tensor:
    """Return the first three principal components of patch features as red, green and blue.

    They are those of all images together, each stretched to 0 … 255, its sign such that its
    largest weight is positive (DINOv2; Oquab et al., 2023, section 7.5).

    Args:
        maps: features of patches, (B, D, rows, columns)
        size: of the pictures, rows and columns in pixels

    Returns:
        uint8 (B, H, W, 3); fewer than three features leave colors at 0.
    """
    points = exact(maps.permute(0, 2, 3, 1)).flatten(0, 2)
    points = points - points.mean(0)
    axes = torch.linalg.eigh(points.T @ points).eigenvectors.flip(1)[:, :3]  # the largest last
    axes = axes * axes.gather(0, axes.abs().argmax(0, keepdim=True)).sign()
    values = F.pad(points @ axes, (0, 3 - axes.shape[1]))
    low, high = values.amin(0), values.amax(0)
    colors = (255 * (values - low) / (high - low).clamp(min=1e-12)).round().byte()
    grid = colors.view(len(maps), *maps.shape[-2:], 3).permute(0, 3, 1, 2).float()
    return F.interpolate(grid, size, mode="nearest").byte().permute(0, 2, 3, 1)
