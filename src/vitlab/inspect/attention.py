"""Attention, from one pass: rollout, where the class token's heads look, how far and how widely."""

import math
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from itertools import islice

import torch
from torch import Tensor
from torch.nn import functional as F

from vitlab.errors import OptionError
from vitlab.inspect.look import NONE, Grid, Look, looks
from vitlab.models.model import Model
from vitlab.on_device import exact

LATE = 3  # layers of `late_attention`


@torch.inference_mode()
def rollout(
    model: Model | Look, images: Tensor = NONE, *, layer: int | None = None, first: int = 1
) -> Tensor:
    """Compute how much of each patch reaches the classifier (ViT paper, appendix D.7).

    Each layer is the identity of the residual path plus the mean of the heads' attention, with one
    such mean for each of several parallel branches, normalized to rows that sum to one; the layers
    are multiplied (Abnar and Zuidema, 2020). The rows are those that the model pools: the class
    token's, the mean of the patches', of both, of the prefix tokens', or as attention pooling
    weighs them.

    Args:
        model: a Vision Transformer; used in evaluation mode, and afterwards as before. Or a `Look`
        images: normalized, (B, channels, H, W)
        layer: the last one that is followed, of `model.attention_maps`, from 1; None for all
        first: the one to begin with, from 1: its input counts as the patches

    Returns:
        (B, rows, columns) on the patch grid, not negative; the rest of one is what the class token
        and registers keep.

    Raises:
        OptionError: a ResNet, images that do not fit, or a layer that the model does not have.
    """
    found = []
    for seen in looks(model, images):
        number = _number(seen, layer)
        if not 1 <= first <= number:
            raise OptionError(f"first must be from 1 to {number}, not {first}")
        *_, rows = islice(rollouts(seen, first), number - first + 1)
        found.append(rows)
    return torch.cat(found)


def late_attention(model: Model | Look, images: Tensor = NONE) -> Tensor:
    """Compute where the last three layers look: what shows the object in really trained models.

    A rollout that begins there. Through all layers of such a model, what reaches the classifier is
    mixed with everything by the layers before: on 20 photographs, of a DINOv2 ViT-S/14's rollout
    57% fell on the object, which was half of the image, of its last three layers' 70% (docs/log.md,
    2026-11-26).

    Args:
        model: a Vision Transformer; used in evaluation mode, and afterwards as before. Or a `Look`
        images: normalized, (B, channels, H, W)

    Returns:
        (B, rows, columns), as `rollout`.

    Raises:
        OptionError: a ResNet, or images that do not fit.
    """
    return torch.cat(
        [rollout(seen, first=max(1, seen.depth - LATE + 1)) for seen in looks(model, images)]
    )


@torch.inference_mode()
def rollouts(seen: Look, first: int = 1, maps: Iterable[Tensor] | None = None) -> Iterator[Tensor]:
    """Yield the rollout through the layers from one on, after each of them: (B, rows, columns).

    Args:
        seen: a pass through a Vision Transformer
        first: the layer to begin with, from 1
        maps: the attention of these layers; None to take it from the pass
    """
    model = seen.transformer
    config, head = model.config, model.head
    tokens = config.prefix + math.prod(seen.grid)
    # All pools but attention share alike whatever the tokens are: their number is enough
    blank = torch.empty(len(seen.images), tokens, 0, device=seen.images.device)
    pooled = head.shares(blank if head.attend is None else seen.last).float()  # (B, N)
    flow = torch.eye(tokens, device=seen.images.device)
    for weights in seen.attention(first) if maps is None else maps:
        flow = _carried_on(weights, config.heads) @ flow
        rows = (pooled[:, None] @ flow)[:, 0]
        yield rows[:, config.prefix :].unflatten(1, seen.grid)


def _carried_on(weights: Tensor, heads: int) -> Tensor:
    """Return what a layer carries from token to token, with its residual path: rows sum to one."""
    branches = weights.shape[1] // heads
    own = weights.float().mean(dim=1)
    own = own / own.sum(-1, keepdim=True)  # to one again, where attention is in bfloat16
    return (branches * own + torch.eye(own.shape[-1], device=own.device)) / (branches + 1)


@torch.inference_mode()
def class_attention(model: Model | Look, images: Tensor = NONE, layer: int | None = None) -> Tensor:
    """Return the attention that each head's class token pays to the patches.

    In the last layer these maps separate objects in models that learned without labels (Caron et
    al., DINO, 2021, Figure 1). With attention pooling they are the pool's own, query by query.

    Args:
        model: a Vision Transformer with a class token or attention pooling; used in evaluation
            mode, and afterwards as before. Or a `Look`
        images: normalized, (B, channels, H, W)
        layer: of `model.attention_maps`, from 1; None for the last one, or the pool

    Returns:
        (B, branches * heads, rows, columns), or (B, queries * heads, rows, columns) of a pool; the
        rest of one is what class token and registers get.

    Raises:
        OptionError: a ResNet, a model without a class token, a layer that it does not have, or
            images that do not fit.
    """
    return torch.cat([_heads(seen, layer) for seen in looks(model, images)])


def _number(seen: Look, layer: int | None) -> int:
    """Return the number of a layer of attention, from 1; the last one for None."""
    number = seen.depth if layer is None else layer
    if not 1 <= number <= seen.depth:
        raise OptionError(f"layer must be from 1 to {seen.depth}, not {layer}")
    return number


def pool_attention(seen: Look) -> Tensor | None:
    """Return what each head of the pool attends to, (B, heads, queries, N); None without a pool."""
    config, pool = seen.transformer.config, seen.transformer.head.attend
    if pool is None:
        return None
    first = 0 if config.pool_prefix else config.prefix
    return F.pad(pool.weights(seen.last[:, first:]), (first, 0))


def _heads(seen: Look, layer: int | None) -> Tensor:
    """Return where the heads of a few images look, (B, h, rows, columns)."""
    config = seen.transformer.config
    pool = pool_attention(seen) if layer is None else None
    if pool is not None:
        return pool.flatten(1, 2)[..., config.prefix :].unflatten(-1, seen.grid)
    if not config.has_token:
        raise OptionError(
            f"{config.name} has no class token (pool={config.pool}): "
            "vitlab.inspect.rollout shows what reaches the classifier"
        )
    weights = next(seen.attention(_number(seen, layer)))
    return weights[:, :, 0, config.prefix :].unflatten(-1, seen.grid)


def attention_distance(
    model: Model | Look, images: Tensor | Iterable[Tensor] = NONE, *, among_patches: bool = False
) -> Tensor:
    """Compute how far each head looks, in pixels (ViT paper, Figure 7 right and Figure 11).

    The mean, over images and over the patches that look, of the distance between the centers of a
    patch and of every patch, weighted by the attention it pays. Class token and registers count
    neither as what looks nor as what is seen. The paper does not say whether attention to them is
    shared out among the patches: it is lost here, as in the authors' own sketch, so that a head
    that looks at the class token alone has distance 0 (`attention_elsewhere` is this share).

    Pixels are those of the image: two neighbors are a patch apart, the whole stride of the stem,
    even where each of them draws on more than its patch (`receptive_field`), as in hybrids.

    Args:
        model: a Vision Transformer; used in evaluation mode, and afterwards as before. Or a `Look`
        images: normalized, (B, channels, H, W), or any number of such batches: nothing is kept of
            one batch when the next comes
        among_patches: share the attention out instead, so that a patch's weights sum to one

    Returns:
        (layers, branches * heads), float64. An axial block has two layers; class-attention layers
        are left out.

    Raises:
        OptionError: a ResNet, no images, or images that do not fit.
    """

    def measure(weights: Tensor, seen: Look) -> Tensor:
        own = _among_patches(weights, seen)
        if among_patches:
            own = own / own.sum(-1, keepdim=True).clamp(min=torch.finfo(own.dtype).tiny)
        apart, config = _distances(seen.grid).to(own), seen.transformer.config
        return (own * apart * (config.stem_stride or config.patch)).sum(-1).mean(-1)

    return _mean(model, images, measure)


def attention_elsewhere(model: Model | Look, images: Tensor | Iterable[Tensor] = NONE) -> Tensor:
    """Compute the share of a patch's attention that no patch gets: the class token's, mostly.

    Registers get it too. Where it is large, the distances among patches say more
    (`attention_distance` with `among_patches`).

    Args:
        model: a Vision Transformer; used in evaluation mode, and afterwards as before. Or a `Look`
        images: normalized, (B, channels, H, W), or any number of such batches

    Returns:
        (layers, branches * heads), float64, from 0 to 1; layers as of `attention_distance`.

    Raises:
        OptionError: a ResNet, no images, or images that do not fit.
    """
    return _mean(model, images, lambda *given: (1 - _among_patches(*given).sum(-1)).mean(-1))


def attention_entropy(model: Model | Look, images: Tensor | Iterable[Tensor] = NONE) -> Tensor:
    """Compute how widely each head spreads its attention, in bits.

    The mean, over images and tokens, of the entropy of the attention that a token pays to all
    tokens: 0 for a head that looks at one, log2(N) for one that looks at all N alike.

    Args:
        model: a Vision Transformer; used in evaluation mode, and afterwards as before. Or a `Look`
        images: normalized, (B, channels, H, W), or any number of such batches

    Returns:
        (layers, branches * heads), float64; layers as of `attention_distance`.

    Raises:
        OptionError: a ResNet, no images, or images that do not fit.
    """

    def measure(weights: Tensor, seen: Look) -> Tensor:
        whole = weights / weights.sum(-1, keepdim=True)
        return torch.special.entr(whole).sum(-1).mean(-1) / math.log(2)

    return _mean(model, images, measure)


def _among_patches(weights: Tensor, seen: Look) -> Tensor:
    """Return the attention that patches pay to patches, (B, h, P, P)."""
    first = seen.transformer.config.prefix
    return weights[:, :, first:, first:]


@lru_cache(maxsize=4)
def _distances(grid: Grid) -> Tensor:
    """Return the distances between patches, (patches, patches), in patches."""
    rows, columns = (torch.arange(side, dtype=torch.float64) for side in grid)
    places = torch.cartesian_prod(rows, columns)
    return (places[:, None] - places[None]).square().sum(-1).sqrt()


@torch.inference_mode()
def _mean(
    model: Model | Look,
    images: Tensor | Iterable[Tensor],
    measure: Callable[[Tensor, Look], Tensor],
) -> Tensor:
    """Return the mean over images of what is measured, (B, h, N, N) -> (B, h)."""
    total, count = torch.zeros(0), 0
    for seen in looks(model, images):
        rows = torch.stack([measure(exact(each), seen).sum(0).cpu() for each in seen.attention()])
        total = total + rows if count else rows
        count += len(seen.images)
    return total / count
