"""Tokens, from one pass: their norms, their likeness, features as colors."""

from collections.abc import Sequence
from typing import Any, overload

import torch
from torch import Tensor
from torch.nn import functional as F

from vitlab.errors import OptionError
from vitlab.inspect.look import NONE, Look, entering, looked
from vitlab.models.layers import evaluating
from vitlab.models.model import DenseFeatures, Model
from vitlab.models.vit import VisionTransformer
from vitlab.on_device import exact

TAIL = 0.01  # of the values at either end are clipped, so that a few do not decide the colors


@torch.inference_mode()
def token_norms(model: Model | Look, images: Tensor = NONE) -> Tensor:
    """Compute the length of every token after every block.

    Some patches of large models have tokens many times as long as the others', which registers
    cure (Darcet et al., Vision Transformers Need Registers, 2024, section 2.1).

    Args:
        model: a Vision Transformer; used in evaluation mode, and afterwards as before. Or a `Look`
        images: normalized, (B, channels, H, W)

    Returns:
        (B, layers + 1, prefix + patches): layer 0 is what enters the first block; before the final
        norm.

    Raises:
        OptionError: a ResNet or a tokenizer, or images that do not fit.
    """
    body = model.model if isinstance(model, Look) else model
    if not isinstance(body, VisionTransformer):
        raise OptionError(
            f"the maps of {body.config.name} differ in size from stage to stage: "
            "vitlab.inspect.norm_map shows one of them"
        )
    return torch.stack([each.norm(dim=-1) for each in looked(model, images).layers], dim=1)


@torch.inference_mode()
def token_similarity(model: Model | Look, images: Tensor = NONE) -> Tensor:
    """Compute how alike the patches' tokens of an image are after every block.

    The mean cosine of two different patches' tokens: it nears 1 where a model over-smooths (Zhou
    et al., DeepViT, 2021, section 3). The places of a ResNet's map are its patches.

    Args:
        model: any; used in evaluation mode, and afterwards as before. Or a `Look`
        images: normalized, (B, channels, H, W)

    Returns:
        (B, layers + 1), from -1 to 1: layer 0 is what enters the first block or stage. NaN where a
        layer has one patch only.

    Raises:
        OptionError: images that do not fit.
    """
    seen, rows = looked(model, images), []
    for layer in range(len(seen.outputs)):
        unit = F.normalize(exact(seen.dense(layer).map.flatten(2)), dim=1)  # (B, D, patches)
        count = unit.shape[2]
        same = unit.sum(2).square().sum(1) - unit.square().sum((1, 2))  # with themselves
        rows.append((same / (count * (count - 1) or torch.nan)).float())
    return torch.stack(rows, dim=1)


@torch.inference_mode()
def norm_map(model: Model | Look, images: Tensor = NONE, *, layer: int | None = None) -> Tensor:
    """Compute the length of each patch's token, as a map.

    In large models without registers a few patches, most of them background, have by far the
    longest tokens (Darcet et al., Vision Transformers Need Registers, 2024, Figures 2 and 3).

    Args:
        model: any; used in evaluation mode, and afterwards as before. Or a `Look`
        images: normalized, (B, channels, H, W)
        layer: the block or stage whose output is taken, 0 for the input of the first one; None for
            the last one. In any case before the final norm, which makes most tokens equally long

    Returns:
        (B, rows, columns), in the units of the tokens; of a ResNet, on the grid of that stage.

    Raises:
        OptionError: images that do not fit, or a layer that the model does not have.
    """
    return _dense(model, images, -1 if layer is None else layer).map.float().norm(dim=1)


@torch.inference_mode()
def similar_patches(
    model: Model | Look, images: Tensor = NONE, token: int = 0, *, layer: int | None = None
) -> Tensor:
    """Compute how alike each patch is to one token: the cosine of their features.

    Args:
        model: any; used in evaluation mode, and afterwards as before. Or a `Look`
        images: normalized, (B, channels, H, W)
        token: its number from 0: class token and registers first, then patches in raster order
        layer: the block or stage whose output is taken, 0 for the input of the first one; None for
            the last one, after the final norm

    Returns:
        (B, rows, columns), from -1 to 1; of a ResNet, on the grid of that stage.

    Raises:
        OptionError: images that do not fit, or a layer or token that the model does not have.
    """
    return likeness(_dense(model, images, layer), token)


@torch.inference_mode()
def likeness(features: DenseFeatures, token: int) -> Tensor:
    """Return what `similar_patches` does, for features at hand: (B, rows, columns)."""
    places, prefix = features
    patches = F.normalize(exact(places), dim=1)  # (B, D, rows, columns)
    tokens = torch.cat([F.normalize(exact(prefix), dim=2), patches.flatten(2).mT], 1)
    if not 0 <= token < tokens.shape[1]:
        raise OptionError(f"token must be from 0 to {tokens.shape[1] - 1}, not {token}")
    return torch.einsum("bdij,bd->bij", patches, tokens[:, token]).clamp(-1, 1).float()


@overload
def feature_colors(
    model: Model | Look, images: Tensor = NONE, *, layer: int | None = None, first: int = 0
) -> Tensor: ...
@overload
def feature_colors(
    model: Model, images: Sequence[Tensor], *, layer: int | None = None, first: int = 0
) -> list[Tensor]: ...
@torch.inference_mode()
def feature_colors(
    model: Model | Look,
    images: Tensor | Sequence[Tensor] = NONE,
    *,
    layer: int | None = None,
    first: int = 0,
) -> Tensor | list[Tensor]:
    """Compute a color for each patch: its features' first three principal components.

    All images share one basis, so that parts of different images that have one color are alike to
    the model (Oquab et al., DINOv2, 2023, Figure 1).

    Args:
        model: any; used in evaluation mode, and afterwards as before. Or a `Look`
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
    colors = colors_of([_dense(model, each, layer).map for each in batches], first)
    return colors[0] if isinstance(images, Tensor) else colors


@torch.inference_mode()
def colors_of(maps: Sequence[Tensor], first: int = 0) -> list[Tensor]:
    """Return the colors of `feature_colors` for features at hand.

    Args:
        maps: features of some images each, (B, D, rows, columns); all share one basis
        first: how many components to leave out

    Returns:
        Of each, (B, rows, columns, 3), from 0 to 1.
    """
    if not maps:
        raise OptionError("no images: give at least one")
    parts = [each.movedim(1, -1) for each in maps]  # (B, rows, columns, D)
    flat = torch.cat([part.flatten(0, 2) for part in parts])
    mixed = _components(exact(flat), first).split([part[..., 0].numel() for part in parts])
    return [
        each.unflatten(0, part.shape[:3]).float() for each, part in zip(mixed, parts, strict=True)
    ]


def _dense(model: Model | Look, images: Tensor, layer: int | None) -> DenseFeatures:
    """Return what leaves one layer as a map; of a model, no layer above it is computed."""
    if isinstance(model, Look):
        return model.dense(layer)
    ready = entering(model, images)
    with evaluating(model):
        number = model.last_layer if layer is None else layer
        return model.intermediates(ready, [number], norm=layer is None, maps=True)[0]


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
    low, high = values.quantile(values.new_tensor((TAIL, 1 - TAIL)), 0)
    return ((values - low) / (high - low).clamp(min=1e-12)).clamp(0, 1)
