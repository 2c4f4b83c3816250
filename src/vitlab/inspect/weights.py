"""Weights seen without an image: filters, positions, and the receptive field."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitlab.errors import OptionError
from vitlab.inspect.look import transformer
from vitlab.models.model import Model
from vitlab.models.resnets.axial import AxialBody
from vitlab.models.resnets.body import StdConv, unit_shapes
from vitlab.models.resnets.resnet import ResNet
from vitlab.models.stems.hybrid import Hybrid
from vitlab.models.stems.local import LocalTransformer
from vitlab.on_device import exact

Steps = list[tuple[int, int]]  # kernel and stride of one layer after the other


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


@torch.no_grad()
def position_similarity(model: Model, table: int = 0) -> Tensor:
    """Compute the cosine of every two patches' position embeddings (ViT paper, Figures 7 and 10).

    Args:
        model: a Vision Transformer with positions that are added to the tokens (1d, 2d, and those
            beside others within attention)
        table: of which block, where each has positions of its own (positions_at=every)

    Returns:
        (rows, columns, rows, columns): how alike the position of a patch is to that of every other,
        from -1 to 1. The class token's is left out; no mean is subtracted.

    Raises:
        OptionError: a model without such positions, or without this table.
    """
    config = transformer(model).config
    tables = transformer(model).positions
    if not 0 <= table < len(tables):
        raise OptionError(f"table must be from 0 to {len(tables) - 1}, not {table}")
    none = next(model.parameters()).new_zeros(1, config.length, config.width)
    grid = config.grid
    scheme = tables[table].at(grid)
    places = exact(scheme.place(scheme.start(none))[0, config.prefix :])
    if not places.any():
        raise OptionError(
            f"{config.name} adds no positions to its tokens (positions={config.positions}): their "
            "similarity is that of 1d and 2d positions"
        )
    unit = F.normalize(places, dim=1)
    return (unit @ unit.T).unflatten(1, grid).unflatten(0, grid).float()


def receptive_field(model: Model) -> int:
    """Compute how many pixels per side one token draws on before any attention.

    The patch of a linear stem; more where convolutions overlap: 31 pixels for LeViT's with patch
    16, 363 for R50+ViT-B/16, more than its images have. Of a ResNet it is what a place of the last
    map sees. The statistics of group norms, which are those of the whole map, are left out. For
    kernels k and strides s of the layers, 1 + sum_l (k_l - 1) prod_{i<l} s_i (Araujo et al.,
    Computing Receptive Fields of Convolutional Neural Networks, 2019, equation 2).

    Args:
        model: any

    Returns:
        Pixels per side; what lies beyond the image is padding.

    Raises:
        OptionError: an axial ResNet, which sees whole rows and columns.
    """
    if isinstance(model, ResNet):
        if isinstance(model.body, AxialBody):
            raise OptionError(
                f"every place of {model.config.name} sees the whole image, through attention along "
                "rows and columns"
            )
        steps = _of_body(model.config.stages)
    else:
        steps = _of_stem(transformer(model).stem)
    field, stride = 1, 1
    for kernel, step in steps:
        field += (kernel - 1) * stride
        stride *= step
    return field


def _of_stem(stem: nn.Module) -> Steps:
    """Return the layers of a stem that mix places."""
    if isinstance(stem, LocalTransformer):
        return [(stem.pixels.kernel_size[0], stem.side), (stem.WORDS, stem.WORDS)]
    before = _of_body(stem.config.stages) if isinstance(stem, Hybrid) else []
    convolutions = (part for part in stem.modules() if isinstance(part, nn.Conv2d))
    return before + [(each.kernel_size[0], each.stride[0]) for each in convolutions]


def _of_body(stages: tuple[int, ...]) -> Steps:
    """Return the layers of a ResNet that mix places: those of its root, then one of each unit."""
    units = [(3, unit.stride) for stage in unit_shapes(stages, 64) for unit in stage]
    return [(7, 2), (3, 2), *units]
