"""A sample of a source's images: what a model makes of each, and a thumbnail of what it sees."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from vitlab.data.loading.batches import center, load_image
from vitlab.data.sources.protocol import Source, Subset
from vitlab.evaluation.compute import Compute
from vitlab.evaluation.infer import Inferred, Progress, Want, infer, silent
from vitlab.evaluation.probes.wanted import Pooled
from vitlab.models.model import Model

WANT: tuple[Want, ...] = ("probabilities", "pixels", Pooled())
GROUND = 128  # of what a thumbnail does not fill


@dataclass(frozen=True, eq=False)
class Sampled:
    """Some images of a source, those that could be decoded.

    Attributes:
        indices: int64 (n,), their numbers in the source, ascending
        features: float32 (n, width), what the classifier sees
        probabilities: float64 (n, classes); (n, 0) of a model without a classifier
        thumbnails: uint8 (n, side, side, 3)
        bad: message about each damaged image, by its number in the source
    """

    indices: NDArray[np.int64]
    features: NDArray[np.float32]
    probabilities: NDArray[np.float64]
    thumbnails: NDArray[np.uint8]
    bad: dict[int, str]


def sample(count: int, most: int, seed: int, always: Iterable[int] = ()) -> NDArray[np.int64]:
    """Choose numbers at random, all equally likely, and some in any case.

    Args:
        count: how many there are to choose from
        most: how many to choose at random
        seed: of the choice
        always: numbers that are chosen too

    Returns:
        int64, ascending.
    """
    if count <= most:
        return np.arange(count)
    chosen = np.random.default_rng(seed).choice(count, most, replace=False)
    return np.union1d(chosen, np.fromiter(always, np.int64))


def look_at(
    model: Model,
    source: Source,
    chosen: NDArray[np.int64],
    side: int,
    compute: Compute,
    progress: Progress = silent,
) -> Sampled:
    """Run a model once over some images of a source.

    Args:
        model: any; its device, and the mode of each of its modules, are the same afterwards
        source: images; of their labels the kind matters alone
        chosen: numbers of the images, ascending
        side: pixels of a thumbnail
        compute: where and how
        progress: called after every batch

    Raises:
        DataError: a worker process died.
    """
    part = Subset(source, chosen)
    features, chances, small, indices, bad = [], [], [], [], dict[int, str]()
    for batch in infer(model, part, compute, WANT, progress=progress):
        if len(batch.indices):
            features.append(batch.features)
            chances.append(batch.probabilities)
            small.append(_thumbnails(model, part, batch, side))
            indices.append(chosen[batch.indices])
        bad |= {int(chosen[index]): message for index, message in batch.bad}
    return Sampled(
        np.concatenate([np.empty(0, np.int64), *indices]),
        np.concatenate(features) if features else np.empty((0, 0), np.float32),
        np.concatenate(chances) if chances else np.empty((0, model.config.classes)),
        np.concatenate([np.empty((0, side, side, 3), np.uint8), *small]),
        bad,
    )


def _thumbnails(model: Model, source: Source, batch: Inferred, side: int) -> NDArray[np.uint8]:
    """Return small pictures of a batch: uint8 (b, side, side, 3)."""
    if isinstance(batch.pixels, torch.Tensor):
        return np.stack([thumbnail(pixels, side) for pixels in batch.pixels.numpy()])
    spec = model.config  # packed: each has its own size
    return np.stack(
        [
            thumbnail(load_image(source, index, spec, center(spec)), side)
            for index in batch.indices.tolist()
        ]
    )


def thumbnail(pixels: NDArray[np.uint8], side: int) -> NDArray[np.uint8]:
    """Return an image (H, W, channels) in a square of `side` pixels: uint8 (side, side, 3).

    Its aspect ratio stays. Few pixels are enlarged without being blurred.
    """
    rows, columns, channels = pixels.shape
    shown = Image.fromarray(pixels[..., 0] if channels < 3 else pixels[..., :3]).convert("RGB")
    scale = side / max(rows, columns)
    size = (max(1, round(columns * scale)), max(1, round(rows * scale)))
    how = Image.Resampling.NEAREST if scale > 1 else Image.Resampling.BOX
    square = Image.new("RGB", (side, side), (GROUND,) * 3)
    square.paste(shown.resize(size, how), ((side - size[0]) // 2, (side - size[1]) // 2))
    return np.asarray(square)
