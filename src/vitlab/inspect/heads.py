"""What each head of each layer does: how far it looks, and how widely it spreads its attention."""

import math
from collections.abc import Callable, Iterable
from functools import lru_cache

import torch
from torch import Tensor

from vitlab.device import exact
from vitlab.inspect.passes import Grid, chunks, transformer
from vitlab.models.layers import evaluating
from vitlab.models.model import Model


def attention_distance(
    model: Model, images: Tensor | Iterable[Tensor], *, among_patches: bool = False
) -> Tensor:
    """Compute how far each head looks, in pixels (ViT paper, Figure 7 right and Figure 11).

    The mean, over images and over the patches that look, of the distance between the centers of a
    patch and of every patch, weighted by the attention it pays. Class token and registers count
    neither as what looks nor as what is seen. The paper does not say whether attention to them is
    shared out among the patches: it is lost here, as in the authors' own sketch, so that a head
    that looks at the class token alone has distance 0. So is what falls on the padding of windows.

    Pixels are those of the image: two neighbors are a patch apart, the whole stride of the stem,
    even where each of them draws on more than its patch (`receptive_field`), as in hybrids.

    Args:
        model: a Vision Transformer; used in evaluation mode, and afterwards as before
        images: normalized, (B, channels, H, W), or any number of such batches: nothing is kept of
            one batch when the next comes
        among_patches: share the attention out instead, so that a patch's weights sum to one

    Returns:
        (layers, branches * heads), float64. An axial block has two layers; class-attention layers
        are left out.

    Raises:
        OptionError: a ResNet, no images, or images that do not fit.
    """
    config = transformer(model).config

    def measure(weights: Tensor, grid: Grid) -> Tensor:
        seen = weights[:, :, config.leading :, config.leading :]
        if among_patches:
            seen = seen / seen.sum(-1, keepdim=True).clamp(min=torch.finfo(seen.dtype).tiny)
        return (seen * distances(grid).to(seen) * config.patch).sum(-1).mean(-1)

    return _mean(model, images, measure)


def attention_entropy(model: Model, images: Tensor | Iterable[Tensor]) -> Tensor:
    """Compute how widely each head spreads its attention, in bits.

    The mean, over images and tokens, of the entropy of the attention that a token pays to all
    tokens: 0 for a head that looks at one, log2(N) for one that looks at all N alike. What falls on
    the padding of windows is left out, and the rest makes one.

    Args:
        model: a Vision Transformer; used in evaluation mode, and afterwards as before
        images: normalized, (B, channels, H, W), or any number of such batches

    Returns:
        (layers, branches * heads), float64; layers as of `attention_distance`.

    Raises:
        OptionError: a ResNet, no images, or images that do not fit.
    """

    def measure(weights: Tensor, grid: Grid) -> Tensor:
        whole = weights / weights.sum(-1, keepdim=True)
        return torch.special.entr(whole).sum(-1).mean(-1) / math.log(2)

    return _mean(model, images, measure)


@lru_cache(maxsize=4)
def distances(grid: Grid) -> Tensor:
    """Return the distances between patches, (patches, patches), in patches."""
    rows, columns = (torch.arange(side, dtype=torch.float64) for side in grid)
    places = torch.cartesian_prod(rows, columns)
    return (places[:, None] - places[None]).square().sum(-1).sqrt()


@torch.inference_mode()
def _mean(
    model: Model, images: Tensor | Iterable[Tensor], measure: Callable[[Tensor, Grid], Tensor]
) -> Tensor:
    """Return the mean over images of what is measured of attention, (B, h, N, N) -> (B, h)."""
    config, total, count = transformer(model).config, torch.zeros(0), 0
    with evaluating(model):
        for few in chunks(model, images):
            grid = config.grid_of((few.shape[2], few.shape[3]))
            maps = model.attention_maps(few)
            if config.class_blocks:
                maps = [each[:, :, 1:, 1:] for each in maps[: -config.class_blocks]]
            rows = torch.stack([measure(exact(each), grid).sum(0).cpu() for each in maps])
            total = total + rows if count else rows
            count += len(few)
    return total / count
