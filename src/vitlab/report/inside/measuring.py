"""What a model's weights and all images show together, each part tried, and noted if missing."""

import math
from collections.abc import Callable, Iterable
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitlab import inspect
from vitlab.errors import OptionError
from vitlab.inspect.principal_filters import first_kernel
from vitlab.models.config import ViTConfig
from vitlab.models.model import Model
from vitlab.report.inside.looked import Floats, Looked
from vitlab.units import si

FILTERS = 28  # as in the ViT paper
MOST = 2**32  # bytes of an image's attention maps


def tried(found: Looked, name: str, what: Callable[[], Tensor]) -> Floats | None:
    """Return an array, or None and a note of why it has no meaning here."""
    try:
        result: Floats = what().float().cpu().numpy()
    except OptionError as error:
        found.lacks(name, str(error))
        return None
    return result


def look_at_weights(model: Model, found: Looked) -> None:
    """Look at what needs no image: filters and positions."""
    kernel = first_kernel(model)
    count = min(FILTERS, len(kernel), kernel[0].numel())
    found.filters = tried(found, "filters", lambda: inspect.embedding_filters(model, count))
    found.positions = tried(found, "positions", lambda: inspect.position_similarity(model))


def look_at_all(model: Model, found: Looked, batches: Iterable[Tensor]) -> None:
    """Look at all images in one pass, of which nothing but sums is kept.

    Args:
        model: any
        found: gets what is found
        batches: normalized images, (B, channels, H, W) each
    """
    wanted: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
        "distance": ("attention distance", partial(_distance, model)),
        "entropy": ("attention entropy", partial(_entropy, model)),
        "norms": ("token norms", partial(_norms, model)),
        "alike": ("token similarity", partial(_alike, model)),
    }
    sums: dict[str, NDArray[np.float64]] = {}
    for batch in batches:
        for field, (name, measure) in list(wanted.items()):
            part = tried(found, name, partial(measure, batch))
            if part is None:
                del wanted[field]
                continue
            if field == "norms":
                part, longest = part
                before = longest if found.longest is None else found.longest
                found.longest = np.maximum(longest, before)
            sums[field] = part.astype(np.float64) * len(batch) + sums.get(field, 0)
        found.count += len(batch)
    for field in wanted.keys() & sums.keys():
        setattr(found, field, (sums[field] / found.count).astype(np.float32))
    if found.alike is not None and not np.isfinite(found.alike).any():
        found.alike = None  # a single patch has none to be alike to


def roomy(model: Model, images: Tensor) -> Tensor:
    """Return images whose attention maps fit into memory, one image at a time.

    Raises:
        OptionError: they do not; it says how large they are.
    """
    config = model.config
    if not isinstance(config, ViTConfig):
        return images
    tokens = config.prefix + math.prod(config.grid_of((images.shape[2], images.shape[3])))
    layers = config.blocks + config.class_blocks
    size = 4 * layers * config.branches * config.heads * tokens**2
    if size > MOST:
        raise OptionError(
            f"the attention maps of {tokens:,} tokens take {si(size)}B of memory per image, more "
            f"than {si(MOST)}B: pass a smaller --image-size"
        )
    return images


def _distance(model: Model, images: Tensor) -> Tensor:
    return inspect.attention_distance(model, roomy(model, images))


def _entropy(model: Model, images: Tensor) -> Tensor:
    return inspect.attention_entropy(model, roomy(model, images))


def _norms(model: Model, images: Tensor) -> Tensor:
    """Return the mean and the largest length of patches, (2, layers + 1)."""
    prefix = model.config.prefix if isinstance(model.config, ViTConfig) else 0
    patches = inspect.token_norms(model, images)[:, :, prefix:]
    return torch.stack([patches.mean((0, 2)), patches.amax((0, 2))])


def _alike(model: Model, images: Tensor) -> Tensor:
    return inspect.token_similarity(model, images).mean(0)
