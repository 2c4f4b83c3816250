"""A class activation map weighted by gradients, for every architecture."""

from contextlib import AbstractContextManager, ExitStack

import torch
from torch import Tensor

from vitlab.errors import OptionError
from vitlab.inspect.explaining.class_scores import Seen, asked, scored, watched
from vitlab.inspect.passes import transformer
from vitlab.models.encoder.block import Block
from vitlab.models.model import Model
from vitlab.models.resnets.resnet import ResNet

AT_ONCE = 16  # images whose every layer is kept for the gradients


def gradcam(model: Model, images: Tensor, classes: Tensor) -> Tensor:
    """Compute where the features are that speak for a class.

    The channels of the patches that enter the last layer's attention, after its norm (of a ResNet:
    of the map that leaves the last stage), are summed, each weighted by the mean gradient of the
    class score, and what is negative is cut off. Source: Selvaraju et al., Grad-CAM, 2017,
    equations 1 and 2.

    The last layer is the last block or, of CaiT, the last class-attention layer. The channels of
    parallel branches, each with a norm of its own, stand side by side. Where norms come after
    attention (norm_order=after) they are those of the block's input, on which the residual path
    draws too. The score of a class is its logit; of several queries, the mean.

    Args:
        model: any with a classifier; used in evaluation mode, and afterwards as before
        images: normalized, (B, channels, H, W)
        classes: of each image, (B,)

    Returns:
        (B, rows, columns), not negative. A model that pools the class token alone passes gradients
        of patches on through the last attention only.

    Raises:
        OptionError: a fused model, images that do not fit, or no such class.
    """
    images, classes = asked(model, images, classes)
    parts = zip(images.split(AT_ONCE), classes.split(AT_ONCE), strict=True)
    return torch.cat([_gradcam(model, *part) for part in parts])


def _gradcam(model: Model, images: Tensor, classes: Tensor) -> Tensor:
    """Return the maps of a few images, (B, rows, columns)."""
    with ExitStack() as stack:
        seen = [stack.enter_context(each) for each in _watching(model)]
        stack.enter_context(scored(model, images, classes))()
    # Branches whose norms come after attention share one input
    entered = {id(each[0][0]): each[0][0] for each in seen}.values()
    with torch.no_grad():
        values = torch.cat([_as_map(model, images, each) for each in entered], 1)
        slopes = torch.cat([_as_map(model, images, each.grad) for each in entered], 1)
        return (slopes.mean((2, 3), keepdim=True) * values).sum(1).relu().float()


def _watching(model: Model) -> list[AbstractContextManager[Seen]]:
    """Return what collects the values that are weighted, with their gradients."""
    if isinstance(model, ResNet):
        return [watched(model.body.stages[-1], gradient=True)]
    seer = transformer(model)
    if seer.class_layers is not None:
        bodies = [seer.class_layers.blocks[-1].attention.body]
    elif isinstance(last := seer.blocks[-1], Block):
        bodies = [branch.body for branch in last.attention]
    else:
        raise OptionError(
            f"Grad-CAM weighs what the last norm returns, which fusing {model.config.name} has "
            "folded away: use the model itself"
        )
    return [watched(body, inputs=True, gradient=True) for body in bodies]


def _as_map(model: Model, images: Tensor, values: Tensor) -> Tensor:
    """Return values as maps, (B, D, rows, columns): those of patches, (B, N, D), or of a ResNet."""
    if isinstance(model, ResNet):
        return values
    rows, columns = transformer(model).config.grid_of((images.shape[-2], images.shape[-1]))
    return values[:, -rows * columns :].transpose(1, 2).unflatten(2, (rows, columns))
