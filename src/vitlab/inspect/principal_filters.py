"""What the first layer looks for: the principal components of its filters."""

import torch
from torch import Tensor, nn

from vitlab.device import exact
from vitlab.errors import OptionError
from vitlab.models.model import Model
from vitlab.models.resnets.body import StdConv


@torch.no_grad()
def embedding_filters(model: Model, count: int = 28) -> Tensor:
    """Compute the principal components of the filters that meet the pixels (ViT paper, Figure 7).

    Those of a linear stem are the embedding's, one per channel of a token; of other stems and of
    ResNets they are those of the first convolution, whose kernel is smaller than the patch. Those
    of ResNets and hybrids are standardized first, as in every pass.

    Args:
        model: any
        count: how many, the one with the largest share of the variance first

    Returns:
        (count, patch, patch, channels), each of length 1 and with a positive largest number; in
        units of the weights, not of a picture.

    Raises:
        OptionError: more components than there are filters or numbers in a filter, or weights that
            are not finite.
    """
    filters = exact(first_kernel(model)).permute(0, 2, 3, 1)
    if not filters.isfinite().all():
        raise OptionError(f"the first filters of {model.config.name} are not finite")
    flat = filters.flatten(1)
    most = min(flat.shape)
    if not 1 <= count <= most:
        raise OptionError(
            f"count must be from 1 to {most}, the number of filters or of numbers in one, not "
            f"{count}"
        )
    _, _, components = torch.linalg.svd(flat - flat.mean(0), full_matrices=False)
    largest = components.gather(1, components.abs().argmax(1, keepdim=True))
    shown = (components * largest.sign())[:count]
    return shown.unflatten(1, filters.shape[1:]).float()


def first_kernel(model: Model) -> Tensor:
    """Return the weights that meet the pixels, (filters, channels, rows, columns)."""
    first = next(part for part in model.modules() if isinstance(part, nn.Conv2d | StdConv))
    return first.kernels() if isinstance(first, StdConv) else first.weight
