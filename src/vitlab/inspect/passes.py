"""Images through a model a few at a time, so that what is looked at fits into memory."""

import math
from collections.abc import Iterable, Iterator

from torch import Tensor

from vitlab.errors import OptionError
from vitlab.models.model import Model
from vitlab.models.resnets.resnet import ResNet
from vitlab.models.vit import VisionTransformer

AT_ONCE = 2**28  # bytes of attention maps in memory


def transformer(model: Model) -> VisionTransformer:
    """Return a model that has attention.

    Raises:
        OptionError: it has none.
    """
    if not isinstance(model, VisionTransformer):
        raise OptionError(
            f"{model.config.name} has no attention: use a Vision Transformer, or "
            "vitlab.inspect.occlusion, which works for every model"
        )
    return model


def last_layer(model: Model) -> int:
    """Return the number of the last block or stage, as `model.intermediates` counts them."""
    return len(model.body.stages) if isinstance(model, ResNet) else len(transformer(model).blocks)


def chunks(model: Model, images: Tensor | Iterable[Tensor]) -> Iterator[Tensor]:
    """Yield images (b, channels, H, W), few enough that their attention maps fit into memory.

    Args:
        model: a Vision Transformer
        images: (B, channels, H, W), or batches of them
    """
    seer = transformer(model)
    config, home = seer.config, next(model.parameters()).device
    layers = len(seer.blocks) + config.class_blocks
    for batch in [images] if isinstance(images, Tensor) else images:
        model.check_images(batch)
        tokens = config.prefix + math.prod(config.grid_of((batch.shape[2], batch.shape[3])))
        each = 4 * layers * config.branches * config.heads * tokens**2
        yield from (part.to(home) for part in batch.split(max(1, AT_ONCE // each)))
