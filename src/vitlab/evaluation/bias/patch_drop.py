"""Images of which a share is missing: patches dropped at random, or by what they contribute.

Source: Naseer et al., Intriguing Properties of Vision Transformers, 2021, section 3.1 (PatchDrop;
the share dropped is their information loss). They take salient patches from the attention of a
self-supervised ViT. Here they come from the gradients of the model itself, so that all
architectures are treated alike.
"""

from functools import partial

import numpy as np
import torch
from torch import Tensor

from vitlab.evaluation.bias.probed_images import Probed

GRID = 8  # patches per side, whatever the patches of a ViT
SHARES = (0.25, 0.5, 0.75)


def patch_numbers(size: tuple[int, int], grid: int = GRID) -> Tensor:
    """Return the number of the patch that each pixel belongs to, in raster order.

    Where the grid does not divide a side, its patches differ by one pixel. A side of fewer pixels
    than that has a patch for each.

    Args:
        size: rows and columns of the image, in pixels
        grid: patches per side

    Returns:
        int64 (rows, columns), each number from 0 on at least once.
    """
    high, wide = (torch.arange(side) * min(grid, side) // side for side in size)
    return high[:, None] * min(grid, size[1]) + wide


def drop_patches(images: Tensor, scores: Tensor, fraction: float) -> Tensor:
    """Set the patches of the highest scores to zero, the mean of normalized pixels.

    Args:
        images: normalized, (b, channels, H, W)
        scores: of each patch of each image, (b, patches), numbered as `patch_numbers` does
        fraction: of the patches to drop, rounded to whole patches

    Returns:
        (b, channels, H, W).
    """
    gone = scores.argsort(dim=1, descending=True, stable=True)[
        :, : round(fraction * scores.shape[1])
    ]
    kept = torch.ones_like(scores, dtype=torch.bool).scatter(1, gone, False)
    numbers = patch_numbers((images.shape[-2], images.shape[-1]))
    mask = kept[:, numbers.flatten()].unflatten(1, numbers.shape)
    return images * mask[:, None].to(images.device)


def contributions(probed: Probed) -> Tensor:
    """Return what each patch contributes to the logit of the likeliest class: gradient x input.

    To first order, the logit falls by so much when the patch is set to zero. Source: Shrikumar et
    al., Not Just a Black Box: Learning Important Features Through Propagating Activation
    Differences, 2016.

    Returns:
        float32 (n, patches), numbered as `patch_numbers` does.
    """
    numbers = patch_numbers(probed.size).flatten()
    found = []
    for images, _ in probed.batches():
        each = (probed.gradients(images) * images).sum(1).flatten(1).float().cpu()
        sums = each.new_zeros(len(each), int(numbers.max()) + 1)
        found.append(sums.index_add(1, numbers, each))
    return torch.cat(found)


def occluded_figures(probed: Probed, generator: np.random.Generator) -> dict[str, float]:
    """Return the accuracy with a share of the patches dropped, in percent in each key.

    `occluded_50` is half of them at random, the same ones for every model, and fewer of the same
    where the share is less; `occluded_salient_50` the half that contributes most to the prediction;
    `occluded_nonsalient_50` the half that contributes least.
    """
    salient = contributions(probed)
    noise = torch.from_numpy(generator.random(salient.shape))
    orders = {"": noise, "salient_": salient, "nonsalient_": -salient}
    return {
        f"occluded_{name}{round(100 * fraction)}": probed.accuracy(
            partial(_dropped, scores=scores, fraction=fraction)
        )
        for name, scores in orders.items()
        for fraction in SHARES
    }


def _dropped(images: Tensor, places: slice, *, scores: Tensor, fraction: float) -> Tensor:
    """Drop patches of the images at some places, by scores for all (n, patches)."""
    return drop_patches(images, scores[places], fraction)
