"""Images that are shifted by a few pixels: whether the prediction stays.

Source: Zhang, Making Convolutional Networks Shift-Invariant Again, 2019, section 4. There, two
random shifts of an image are compared; here, the image and its shift by a given distance.
"""

from functools import partial

import numpy as np
import torch
from torch import Tensor

from vitlab.evaluation.bias.probed_images import Probed, share

DISTANCES = (1, 2, 3, 4)  # pixels of the model's input
DIRECTIONS = torch.tensor(
    [(y, x) for y in (-1, 0, 1) for x in (-1, 0, 1) if (y, x) != (0, 0)], dtype=torch.int64
)


def shift(images: Tensor, shifts: Tensor) -> Tensor:
    """Shift each image; what enters at a border is the image reflected there, and nothing wraps.

    Args:
        images: (b, channels, H, W)
        shifts: rows down and columns to the right of each image, int64 (b, 2); of less than the
            sides of the image

    Returns:
        (b, channels, H, W); the pixel at the border is not repeated.
    """
    shifts = shifts.to(images.device)
    rows = _reflected(images.shape[-2], shifts[:, 0])
    columns = _reflected(images.shape[-1], shifts[:, 1])
    count = torch.arange(len(images), device=images.device)
    moved = images.permute(0, 2, 3, 1)[count[:, None, None], rows[:, :, None], columns[:, None]]
    return moved.permute(0, 3, 1, 2)


def _reflected(side: int, shifts: Tensor) -> Tensor:
    """Return where each pixel along a side comes from: int64 (b, side)."""
    found = (torch.arange(side, device=shifts.device) - shifts[:, None]).abs()
    return torch.minimum(found, 2 * (side - 1) - found)


def shifted_figures(
    probed: Probed, clean: Tensor, generator: np.random.Generator
) -> dict[str, float]:
    """Return accuracy and consistency under shifts, `shift_2` and `consistency_2` of two pixels.

    Each image is shifted in one of eight directions, the same for every distance and every model.
    Consistency is the share of images whose class stays, right or wrong. A distance that is no less
    than a side of the image is left out.

    Args:
        probed: model and images
        clean: the classes of the unchanged images, int64 (n,)
        generator: of the directions
    """
    drawn = generator.integers(len(DIRECTIONS), size=len(probed))
    directions = DIRECTIONS[torch.from_numpy(drawn)]
    figures = {}
    for distance in DISTANCES:
        if distance < min(probed.size):
            classes = probed.predicted(partial(_shifted, shifts=distance * directions))
            figures[f"shift_{distance}"] = share(classes == probed.labels)
            figures[f"consistency_{distance}"] = share(classes == clean)
    return figures


def _shifted(images: Tensor, places: slice, *, shifts: Tensor) -> Tensor:
    """Shift the images at some places, by the shifts of all (n, 2)."""
    return shift(images, shifts[places])
