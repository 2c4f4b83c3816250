"""What a model takes for the same thing: the principal components of patch features as colors."""

from collections.abc import Sequence
from typing import Any, overload

import torch
from torch import Tensor

from vitlab.device import exact
from vitlab.errors import OptionError
from vitlab.inspect.passes import dense
from vitlab.models.model import Model

TAIL = 0.01  # of the values at either end are clipped, so that a few do not decide the colors


@overload
def feature_colors(
    model: Model, images: Tensor, *, layer: int | None = None, first: int = 0
) -> Tensor: ...
@overload
def feature_colors(
    model: Model, images: Sequence[Tensor], *, layer: int | None = None, first: int = 0
) -> list[Tensor]: ...
@torch.inference_mode()
def feature_colors(
    model: Model, images: Tensor | Sequence[Tensor], *, layer: int | None = None, first: int = 0
) -> Tensor | list[Tensor]:
    """Compute a color for each patch: its features' first three principal components.

    All images share one basis, so that parts of different images that have one color are alike to
    the model (Oquab et al., DINOv2, 2023, Figure 1).

    Args:
        model: any; used in evaluation mode, and afterwards as before
        images: normalized, (B, channels, H, W), or several such batches, whose sizes may differ
        layer: the block or stage whose output is taken, 0 for the input of the first one; None for
            the last one, after the final norm
        first: how many components to leave out, 1 where the first one only tells the foreground

    Returns:
        (B, rows, columns, 3), red, green and blue from 0 to 1: each component between its 1st and
        its 99th percentile. Of several batches a list, one such tensor for each.

    Raises:
        OptionError: images that do not fit, a layer that the model does not have, fewer patches
            than components, or features that are not finite.
    """
    batches: Sequence[Any] = images if isinstance(images, list | tuple) else [images]
    found = [dense(model, each, layer).map for each in batches]
    if not found:
        raise OptionError("no images: give at least one")
    parts = [each.movedim(1, -1) for each in found]  # (B, rows, columns, D)
    flat = torch.cat([part.flatten(0, 2) for part in parts])
    mixed = _components(exact(flat), first).split([part[..., 0].numel() for part in parts])
    colors = [
        each.unflatten(0, part.shape[:3]).float() for each, part in zip(mixed, parts, strict=True)
    ]
    return colors[0] if isinstance(images, Tensor) else colors


def _components(flat: Tensor, first: int) -> Tensor:
    """Return three principal components of all patches' features, 0 to 1: (N, D) -> (N, 3)."""
    if first < 0 or first + 3 > min(flat.shape):
        raise OptionError(
            f"first={first} and three more components need at least {first + 3} patches and "
            f"channels: there are {flat.shape[0]} and {flat.shape[1]}"
        )
    if not flat.isfinite().all():
        raise OptionError("the patches' features contain numbers that are not finite")
    flat = flat - flat.mean(0)
    _, axes = torch.linalg.eigh(flat.T @ flat)  # the largest variance last
    axes = axes.flip(1)[:, first : first + 3]
    largest = axes.gather(0, axes.abs().argmax(0, keepdim=True))
    values = flat @ (axes * largest.sign())
    low, high = (_quantile(values, share) for share in (TAIL, 1 - TAIL))
    return ((values - low) / (high - low).clamp(min=1e-12)).clamp(0, 1)


def _quantile(values: Tensor, share: float) -> Tensor:
    """Return a quantile of each column, linear between neighbors; torch's own stops at 2^24."""
    place = share * (len(values) - 1)
    ordered = values.sort(0).values
    below = ordered[int(place)]
    return below + (ordered[min(int(place) + 1, len(values) - 1)] - below) * (place - int(place))
