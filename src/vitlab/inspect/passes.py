"""Images through a model a few at a time, so that what is looked at fits into memory."""

import math
from collections.abc import Iterable, Iterator

from torch import Tensor

from vitlab.errors import OptionError
from vitlab.models.layers import evaluating
from vitlab.models.model import DenseFeatures, Model
from vitlab.models.packed import Packed
from vitlab.models.vit import VisionTransformer

AT_ONCE = 2**28  # bytes of attention maps in memory
Grid = tuple[int, int]


def transformer(model: Model) -> VisionTransformer:
    """Return a model that has attention.

    Raises:
        OptionError: it has none.
    """
    if not isinstance(model, VisionTransformer):
        raise OptionError(
            f"{model.config.name} has no attention maps: use a Vision Transformer, or "
            "vitlab.inspect.occlusion, which works for every model"
        )
    return model


def entering(model: Model, images: Tensor) -> Tensor:
    """Return images on the model's device and in its type.

    Args:
        model: any
        images: normalized, (B, channels, H, W)

    Raises:
        OptionError: no images, anything but normalized images of a size that the model takes, or
            numbers that are not finite.
    """
    if isinstance(images, Packed):
        raise OptionError("packed images have no common grid: pass images of one size")
    if not isinstance(images, Tensor | str | bytes | list | tuple):
        raise OptionError(f"images must be a tensor, not {type(images).__name__}")
    model.check_images(images)
    if not images.numel():
        raise OptionError("no images: give at least one")
    if not images.is_floating_point():
        raise OptionError(
            f"images must be normalized numbers, not {images.dtype}: "
            "vitlab.preprocess(model)(images) makes them"
        )
    if not images.isfinite().all():
        raise OptionError("images contain numbers that are not finite")
    home = next(model.parameters())
    return images.to(home.device, home.dtype)


def dense(model: Model, images: Tensor, layer: int | None) -> DenseFeatures:
    """Return what leaves one layer, as a map beside the tokens before the patches.

    Args:
        model: any
        images: normalized, (B, channels, H, W)
        layer: as `model.intermediates` counts them; None for the last one, after the final norm

    Raises:
        OptionError: images that do not fit, or a layer that the model does not have.
    """
    images, last = entering(model, images), layer is None
    with evaluating(model):
        number = model.last_layer if layer is None else layer
        return model.intermediates(images, [number], norm=last, maps=True)[0]


def together(model: Model, images: Tensor) -> int:
    """Return how many images may pass at once, so that their attention maps fit into memory.

    Args:
        model: a Vision Transformer
        images: (B, channels, H, W)
    """
    config = transformer(model).config
    layers = config.blocks + config.class_blocks
    tokens = config.prefix + math.prod(config.grid_of((images.shape[2], images.shape[3])))
    each = 4 * layers * config.branches * config.heads * tokens**2
    return max(1, AT_ONCE // max(1, each))


def chunks(model: Model, images: Tensor | Iterable[Tensor]) -> Iterator[Tensor]:
    """Yield images (b, channels, H, W), few enough that their attention maps fit into memory.

    Args:
        model: a Vision Transformer
        images: (B, channels, H, W), or batches of them

    Raises:
        OptionError: no images, or some that do not fit.
    """
    transformer(model)
    none = True
    for batch in [images] if isinstance(images, Tensor | Packed | str | bytes) else images:
        ready = entering(model, batch)
        yield from ready.split(together(model, ready))
        none = False
    if none:
        raise OptionError("no images: give at least one")
