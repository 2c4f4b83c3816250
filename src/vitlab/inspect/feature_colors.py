"""What a model takes for the same thing: the principal components of patch features as colors."""

import torch
from torch import Tensor

from vitlab.errors import OptionError
from vitlab.inspect.passes import transformer
from vitlab.models.layers import evaluating
from vitlab.models.model import Model

TAIL = 0.01  # of the values at either end are clipped, so that a few do not decide the colors


@torch.inference_mode()
def feature_colors(
    model: Model, images: Tensor, *, layer: int | None = None, first: int = 0
) -> Tensor:
    """Compute a color for each patch: its features' first three principal components.

    All images share one basis, so that parts of different images that have one color are alike to
    the model (Oquab et al., DINOv2, 2023, Figure 1).

    Args:
        model: a Vision Transformer; used in evaluation mode, and afterwards as before
        images: normalized, (B, channels, H, W)
        layer: the block whose output is taken, 0 for the input of the first one; None for the
            last one, after the final norm
        first: how many components to leave out, 1 where the first one only tells the foreground

    Returns:
        (B, rows, columns, 3), red, green and blue from 0 to 1: each component between its 1st and
        its 99th percentile.

    Raises:
        OptionError: a ResNet, images of another shape, a layer that the model does not have, or
            fewer patches than components.
    """
    seer = transformer(model)
    config = seer.config
    grid = config.grid_of((images.shape[-2], images.shape[-1]))
    with evaluating(model):
        tokens = seer.encode(images) if layer is None else seer.intermediates(images, [layer])[0]
    patches = tokens[:, config.prefix :].double()
    flat = patches.flatten(0, 1)
    if first < 0 or first + 3 > min(flat.shape):
        raise OptionError(
            f"first={first} and three more components need at least {first + 3} patches and "
            f"channels: there are {flat.shape[0]} and {flat.shape[1]}"
        )
    flat = flat - flat.mean(0)
    _, axes = torch.linalg.eigh(flat.T @ flat)  # the largest variance last
    axes = axes.flip(1)[:, first : first + 3]
    largest = axes.gather(0, axes.abs().argmax(0, keepdim=True))
    values = flat @ (axes * largest.sign())
    low, high = (values.quantile(share, dim=0) for share in (TAIL, 1 - TAIL))
    colors = ((values - low) / (high - low).clamp(min=1e-12)).clamp(0, 1)
    return colors.unflatten(0, (len(images), *grid)).float()
