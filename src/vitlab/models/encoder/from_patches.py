"""Tokens from some patches alone, as if the image had no others (MAE)."""

import torch
from torch import Tensor

from vitlab.models.packed import from_patches, to_patches
from vitlab.models.vit import VisionTransformer


def encode_visible(model: VisionTransformer, images: Tensor, visible: Tensor) -> Tensor:
    """Compute the tokens of some patches as if the image had no others (MAE; He et al., 2021).

    Class token and registers take part. Each patch has the position of its place in the whole
    grid. A stem that does not mix patches sees the visible ones alone.

    Args:
        model: without attention over rows and columns, whose positions, if any, are added before
            the encoder
        images: normalized, (B, channels, H, W)
        visible: numbers of the visible patches of each image in raster order, int64 (B, K)

    Returns:
        (B, prefix + K, D), the patches in the order of `visible`, after the final norm where it is
        on tokens.

    Raises:
        OptionError: images of a size that the model does not take.
    """
    model.check_images(images)
    config, batch = model.config, len(images)
    grid, prefix = config.grid_of(images.shape[-2:]), config.prefix
    patches = visible_patches(model, images, visible)
    before = [part for part in (model.token, model.registers) if part is not None]
    tokens = torch.cat([*(part.expand(batch, -1, -1) for part in before), patches], dim=1)
    scheme = model.positions[0].at(grid)
    table = scheme.start(patches.new_zeros(1, prefix + grid[0] * grid[1], config.width))
    places = table[0, prefix:][visible]  # (B, K, D)
    tokens = tokens + torch.cat([table[:, :prefix].expand(batch, -1, -1), places], dim=1)
    tokens = model.pre_norm(model.dropout(tokens))
    for block in model.blocks:
        tokens = block(tokens)
    return model.norm(tokens)


def visible_patches(model: VisionTransformer, images: Tensor, visible: Tensor) -> Tensor:
    """Compute the patch tokens of some patches.

    A stem that keeps patches apart sees these alone, side by side in one row: as an image of that
    shape they take it less time than as many small images.

    Args:
        model: its stem is used
        images: normalized, (B, channels, H, W)
        visible: numbers of the patches of each image in raster order, int64 (B, K)

    Returns:
        (B, K, D), in the order of `visible`.
    """
    if model.stem.mixes:
        return gathered(model.stem(images), visible)
    side, count = model.config.patch, visible.shape[1]
    pixels = gathered(patches_of(images, side), visible)
    tokens: Tensor = model.stem(from_patches(pixels.flatten(0, 1), (1, count), side))
    return tokens


def gathered(rows: Tensor, numbers: Tensor) -> Tensor:
    """Return the rows of each image with these numbers: (B, N, C), int64 (B, K) -> (B, K, C)."""
    return rows.gather(1, numbers[..., None].expand(-1, -1, rows.shape[-1]))


def patches_of(images: Tensor, patch: int) -> Tensor:
    """Cut images into patches: (B, channels, H, W) -> (B, patches, channels P P)."""
    return to_patches(images, patch).unflatten(0, (len(images), -1))
