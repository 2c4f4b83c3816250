"""What the prediction needs: the same image again and again, a part of it covered."""

import torch
from torch import Tensor

from vitlab.errors import OptionError
from vitlab.inspect.explaining.class_scores import asked, log_chances, scores_of
from vitlab.models.layers import evaluating
from vitlab.models.model import Model

AT_ONCE = 2**23  # numbers of covered images in memory


@torch.inference_mode()
def occlusion(
    model: Model, images: Tensor, classes: Tensor, *, size: int = 0, step: int = 0
) -> Tensor:
    """Compute how much the log-probability of a class falls when a square is covered.

    The cover is zero, the mean of the pixels that the model was trained with. Source: Zeiler and
    Fergus, Visualizing and Understanding Convolutional Networks, 2014, section 4.2. It asks
    nothing of the architecture, and takes a forward pass per place. Where images have several
    classes, a class has a probability by itself; of several queries it is the mean over them.

    Args:
        model: any with a classifier; used in evaluation mode, and afterwards as before
        images: normalized, (B, channels, H, W)
        classes: of each image, whose probability is watched, (B,)
        size: pixels per side of the square; 0 for the model's patch, or a 14th of a ResNet's image
        step: pixels from one place to the next; 0 for `size`

    Returns:
        (B, rows, columns), in nats, one for each place in raster order: positive where the class
        needs what was covered.

    Raises:
        OptionError: images that do not fit, no such class, or a square larger than the image.
    """
    images, classes = asked(model, images, classes)
    high, wide = images.shape[-2:]
    size = size or getattr(model.config, "patch", max(1, min(high, wide) // 14))
    step = step or size
    if not 0 < size <= min(high, wide) or step < 1:
        raise OptionError(f"size must be from 1 to {min(high, wide)} and step at least 1")
    tops, lefts = range(0, high - size + 1, step), range(0, wide - size + 1, step)
    corners = [(top, left) for top in tops for left in lefts]
    with evaluating(model):
        whole = _chances(model, images, classes)
        rows = [
            whole[n] - _covered(model, image, label.expand(len(corners)), corners, size)
            for n, (image, label) in enumerate(zip(images, classes, strict=True))
        ]
    return torch.stack(rows).unflatten(1, (len(tops), len(lefts)))


def _covered(
    model: Model, image: Tensor, classes: Tensor, corners: list[tuple[int, int]], size: int
) -> Tensor:
    """Return a class's log-probability for one image with each square covered: (places,)."""
    few, found = max(1, AT_ONCE // image.numel()), []
    for first in range(0, len(corners), few):
        part = corners[first : first + few]
        copies = image.expand(len(part), -1, -1, -1).clone()
        for copy, (top, left) in zip(copies, part, strict=True):
            copy[:, top : top + size, left : left + size] = 0
        found.append(_chances(model, copies, classes[: len(part)]))
    return torch.cat(found)


def _chances(model: Model, images: Tensor, classes: Tensor) -> Tensor:
    """Return the log-probability of each image's class, (B,)."""
    return scores_of(log_chances(model, images), classes)
