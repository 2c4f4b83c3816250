"""Agreement of an exported file with its model."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitlab.data.preprocess import preprocess
from vitlab.errors import WeightsError
from vitlab.evaluation.infer import probabilities
from vitlab.models.layers import evaluating
from vitlab.models.model import Model

COUNTS = (1, 2, 7)  # of images in a batch
TOLERANCE = 1e-4  # of a file in fp32
Pixels = NDArray[np.uint8]
Run = Callable[[NDArray[Any]], Sequence[NDArray[Any]]]  # images to a file's numbers


def agree(
    run: Run,
    model: Model,
    *,
    bare: bool,
    where: str,
    counts: Sequence[int] = COUNTS,
    tolerance: float = TOLERANCE,
) -> dict[str, Any]:
    """Compare a file with the model it was made from, on images of noise.

    Args:
        run: what runs the file
        model: on any device
        bare: whether the file takes normalized images
        where: it runs, for the message
        counts: numbers of images in the batches
        tolerance: of probabilities; of logits, features and distances, relative to the largest

    Returns:
        `batches`, the numbers of images compared; `difference`, the largest.

    Raises:
        WeightsError: a difference is above the tolerance.
    """
    worst = 0.0
    for number, count in enumerate(counts):
        images: NDArray[Any]
        if bare:
            images = normal_noise(model, count)
            ready = torch.from_numpy(images)
        else:
            images = noise(model, count, number)
            ready = preprocess(model)([*images])
        for found, own in zip(run(images), wanted(model, ready, bare), strict=True):
            away = np.abs(found - own).max() / max(1.0, np.abs(own).max())
            worst = float(np.maximum(worst, away))  # NaN stays
    if not worst <= tolerance:
        raise WeightsError(
            f"the file would differ from {model.config.name} by {worst:.2g} in {where}, more "
            f"than {tolerance:g}: nothing is written"
        )
    return {"batches": [*counts], "difference": worst}


def noise(model: Model, count: int, number: int) -> Pixels:
    """Return images that are not those of the trace, of another size each time: uint8 (B, …)."""
    rows, columns = model.config.size
    draw = np.random.default_rng(number)
    high, wide = ((rows, columns), (rows + 5, 2 * columns), (3 * rows, columns))[number]
    return draw.integers(0, 256, (count, high, wide, model.config.channels), dtype=np.uint8)


def normal_noise(model: Model, count: int) -> NDArray[np.float32]:
    """Return normalized images, (B, channels, H, W)."""
    shape = (count, model.config.channels, *model.config.size)
    return np.random.default_rng(count).standard_normal(shape, np.float32)


def wanted(model: Model, images: Tensor, logits: bool) -> list[NDArray[np.float64]]:
    """Return what the model itself gives for normalized images."""
    device, classes = next(model.parameters()).device, model.config.classes
    with evaluating(model), torch.inference_mode():
        seen = model.features(images.to(device))
        found = [(model.scores(seen) if classes else seen).double()]
        if classes and not logits:
            found = [probabilities(found[0], model)]
            if model.unlike is not None:
                found.append(model.unlike.distances(seen.double()))
        return [each.cpu().numpy() for each in found]
