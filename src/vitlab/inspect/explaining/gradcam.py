"""A class activation map weighted by gradients, for every architecture."""

import torch
from torch import Tensor, nn

from vitlab.errors import OptionError
from vitlab.inspect.explaining.class_scores import scored, watched
from vitlab.inspect.passes import transformer
from vitlab.models.model import Model
from vitlab.models.resnets.resnet import ResNet


def gradcam(model: Model, images: Tensor, classes: Tensor) -> Tensor:
    """Compute where the features are that speak for a class.

    The channels of what enters the last block's attention, after its norm (of a ResNet: of the
    last map), are summed, each weighted by the mean gradient of the class score, and what is
    negative is cut off. Source: Selvaraju et al., Grad-CAM, 2017, equations 1 and 2.

    Args:
        model: any with a classifier; used in evaluation mode, and afterwards as before
        images: normalized, (B, channels, H, W)
        classes: of each image, (B,)

    Returns:
        (B, rows, columns), not negative. A model that pools the class token alone passes gradients
        of patches on through the last attention only.

    Raises:
        OptionError: class-attention layers, norms after attention, or no such class.
    """
    last = _last(model)
    with scored(model, images, classes) as run, watched(last, gradient=True) as seen:
        run()
    values = seen[0][0]
    gradient = values.grad
    with torch.no_grad():
        if not isinstance(model, ResNet):
            config = transformer(model).config
            grid = config.grid_of((images.shape[-2], images.shape[-1]))
            values, gradient = (
                each[:, config.leading :].transpose(1, 2).unflatten(2, grid)
                for each in (values, gradient)
            )
        weights = gradient.mean((2, 3), keepdim=True)
        return (weights * values).sum(1).relu()


def _last(model: Model) -> nn.Module:
    """Return the module whose output is weighted."""
    if isinstance(model, ResNet):
        return model.body.stages[-1]
    seer = transformer(model)
    branch = seer.blocks[-1].attention[0]
    if branch.after or seer.config.class_blocks:
        raise OptionError(
            f"Grad-CAM needs a norm before the last attention, and no class_blocks, unlike "
            f"{model.config.name}: use vitlab.inspect.occlusion"
        )
    return branch.norm
