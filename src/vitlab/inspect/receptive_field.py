"""How much of an image one cell of the grid sees before any attention."""

from torch import nn

from vitlab.errors import OptionError
from vitlab.inspect.passes import transformer
from vitlab.models.model import Model
from vitlab.models.resnets.axial import AxialBody
from vitlab.models.resnets.body import unit_shapes
from vitlab.models.resnets.resnet import ResNet
from vitlab.models.stems.hybrid import Hybrid
from vitlab.models.stems.local import LocalTransformer

Steps = list[tuple[int, int]]  # kernel and stride of one layer after the other


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
