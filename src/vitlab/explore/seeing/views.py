"""The views of an image that are one number, or one color, per patch."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from vitlab import inspect
from vitlab.errors import OptionError
from vitlab.explore.seeing.attended import attention_bytes
from vitlab.explore.seeing.first_pass import FirstPass, Grid, has_classes
from vitlab.inspect.feature_colors import TAIL
from vitlab.models.config import ViTConfig
from vitlab.models.model import Model
from vitlab.units import storage

MOST_ATTENTION = 2**30  # bytes of one image's
UNITS = {
    "rollout": "share of what reaches the classifier",
    "relevance": "relevance to the class, no unit",
    "gradcam": "evidence for the class, no unit",
    "occlusion": "nats that the class's log-probability falls by when the square is covered",
    "similarity": "cosine",
    "norms": "length of the token, no unit",
}
VIEWS = ("attention", "rollout", "colors", *list(UNITS)[1:])


def why_not(model: Model) -> dict[str, str]:
    """Return for each view why a model does not have it, in one line; empty where it does."""
    config, found = model.config, dict.fromkeys(VIEWS, "")
    if not isinstance(config, ViTConfig):
        found |= dict.fromkeys(
            ("attention", "rollout", "relevance"), f"{config.name} has no attention"
        )
    elif (size := attention_bytes(config)) > MOST_ATTENTION:
        much = f"the attention of an image would take {storage(size)}: too much to keep"
        found |= dict.fromkeys(("attention", "rollout"), much)
    reason = f"{config.name} has no classifier, and so no class to explain"
    if config.classes and config.answers > 1:
        reason = f"{config.name} scores the classes once per query, not once per image"
    if not has_classes(model):
        found |= dict.fromkeys(("relevance", "gradcam", "occlusion"), reason)
    return found


def rolled_out(seen: FirstPass, layer: int | None) -> Tensor:
    """Return how much of each patch reaches the classifier, (rows, columns).

    Args:
        seen: by a model with attention
        layer: the last one that is followed, from 1; None for all

    Raises:
        OptionError: a layer that the model does not have.
    """
    number = len(seen.rollouts) if layer is None else layer
    if not 1 <= number <= len(seen.rollouts):
        raise OptionError(f"layer {number}: choose from 1 to {len(seen.rollouts)}")
    return seen.rollouts[number - 1].unflatten(0, seen.grid)


def explained(model: Model, seen: FirstPass, kind: str, label: int) -> Tensor:
    """Return what speaks for a class by a method that asks for its gradient, (rows, columns)."""
    method = {"relevance": inspect.relevance, "gradcam": inspect.gradcam}[kind]
    return method(model, seen.image, torch.tensor([label], device=seen.image.device))[0]


def norms(seen: FirstPass, prefix: int, layer: int) -> Tensor:
    """Return the length of each patch's token after a layer, (rows, columns)."""
    tokens, grid = patches(seen, prefix, layer)
    return tokens.norm(dim=-1).unflatten(0, grid)


def similarity(seen: FirstPass, prefix: int, layer: int, token: int) -> Tensor:
    """Return the cosine of one token and every patch after a layer, (rows, columns).

    Args:
        seen: an image
        prefix: tokens before the patches
        layer: as `model.intermediates` counts
        token: prefix tokens first, then patches in raster order; of a ResNet, whose layers have
            different grids, a cell of the last one, which stands for that around its center

    Raises:
        OptionError: there is no such token.
    """
    tokens, grid = patches(seen, prefix, layer)
    (rows, columns) = seen.grid
    if not 0 <= token < prefix + rows * columns:
        raise OptionError(f"token {token} of {prefix + rows * columns}: they are counted from 0")
    own = seen.layers[layer][token] if token < prefix else None
    if own is None:
        row, column = divmod(token - prefix, columns)
        down = (2 * row + 1) * grid[0] // (2 * rows)
        across = (2 * column + 1) * grid[1] // (2 * columns)
        own = tokens[down * grid[1] + across]
    return F.cosine_similarity(tokens, own[None], dim=-1).unflatten(0, grid)


def patches(seen: FirstPass, prefix: int, layer: int | None) -> tuple[Tensor, Grid]:
    """Return the patches' tokens after a layer, (patches, D), and their grid.

    Without a layer they are those after the final norm.

    Raises:
        OptionError: a layer that the model does not have.
    """
    if layer is None:
        return seen.last[prefix:], seen.grid
    if not 0 <= layer < len(seen.layers):
        raise OptionError(f"layer {layer}: choose from 0 to {len(seen.layers) - 1}")
    return seen.layers[layer][prefix:], seen.grids[layer]


def colors(parts: Sequence[Tensor]) -> list[Tensor]:
    """Return a color for each patch of some images, as `vitlab.inspect.feature_colors`.

    Three components are all that is computed here, so that a slider through layers keeps up.

    Args:
        parts: of each image, (patches, D); all share one basis

    Returns:
        Of each image, uint8 (patches, 3).

    Raises:
        OptionError: fewer patches than components.
    """
    from scipy.linalg import eigh  # slow to import

    flat = torch.cat(list(parts))
    count, width = flat.shape
    if min(count, width) < 3:
        raise OptionError(f"colors need at least 3 patches and channels, not {count} and {width}")
    flat = flat - flat.mean(0)
    _, found = eigh((flat.T @ flat).double().numpy(), subset_by_index=[width - 3, width - 1])
    axes = torch.from_numpy(found).flip(1)  # the largest variance first
    largest = axes.gather(0, axes.abs().argmax(0, keepdim=True))
    values = flat.double() @ (axes * largest.sign())
    low, high = (values.quantile(share, dim=0) for share in (TAIL, 1 - TAIL))
    shown = ((values - low) / (high - low).clamp(min=1e-12)).clamp(0, 1)
    return list((255 * shown).round().to(torch.uint8).split([len(part) for part in parts]))
