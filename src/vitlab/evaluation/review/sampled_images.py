"""A sample of a source's images: what a model makes of each, and a thumbnail of what it sees."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import nn

from vitlab.data.augment.augment import normalize
from vitlab.data.loading.batches import Batch, EvaluationBatches, center, load_image
from vitlab.data.loading.loader import choose_workers, evaluation_loader
from vitlab.data.loading.workers import deaths_explained
from vitlab.data.sources.protocol import Source, Subset
from vitlab.evaluation.borrowing import borrowed
from vitlab.evaluation.predictions import batch_of
from vitlab.models.model import Model
from vitlab.models.vit import VisionTransformer

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


@torch.inference_mode()
def look_at(
    model: Model,
    source: Source,
    chosen: NDArray[np.int64],
    side: int,
    *,
    device: torch.device,
    workers: int | None = 0,
    progress: Callable[[int], None] = lambda images: None,
) -> Sampled:
    """Run a model once over some images of a source.

    Args:
        model: any; its device, and the mode of each of its modules, are the same afterwards
        source: images; of their labels the kind matters alone
        chosen: numbers of the images, ascending
        side: pixels of a thumbnail
        device: where to compute
        workers: processes that decode; None to choose
        progress: called after every batch with the number of images processed

    Raises:
        DataError: a worker process died.
    """
    part = Subset(source, chosen)
    features, chances, small, indices, bad, done = [], [], [], [], dict[int, str](), 0
    batches = EvaluationBatches(part, model.config, batch_of(model))
    with borrowed(model, device), deaths_explained():
        for batch in evaluation_loader(batches, choose_workers(part, workers)):
            if len(batch):
                seen, scores = _seen(model, batch, device)
                features.append(seen)
                chances.append(part.labels.probabilities(scores / model.temperature).numpy())
                small.append(_thumbnails(model, part, batch, side))
                indices.append(chosen[batch.indices.numpy()])
            bad |= {int(chosen[index]): message for index, message in batch.bad}
            done += len(batch) + len(batch.bad)
            progress(done)
    return Sampled(
        np.concatenate([np.empty(0, np.int64), *indices]),
        np.concatenate(features) if features else np.empty((0, 0), np.float32),
        np.concatenate(chances) if chances else np.empty((0, model.config.classes)),
        np.concatenate([np.empty((0, side, side, 3), np.uint8), *small]),
        bad,
    )


def _seen(
    model: Model, batch: Batch, device: torch.device
) -> tuple[NDArray[np.float32], torch.Tensor]:
    """Return features (b, width) and logits (b, classes), float64, of one pass."""
    spec = model.config
    found = model.features(normalize(batch.to(device).images, spec.mean, spec.std))
    classify: nn.Module = model.get_submodule(
        "head" if isinstance(model, VisionTransformer) else "classify"
    )
    scores = classify(found) if spec.classes else found.new_empty(len(found), 0)
    return found.flatten(1).float().cpu().numpy(), scores.cpu().double()


def _thumbnails(model: Model, source: Source, batch: Batch, side: int) -> NDArray[np.uint8]:
    """Return small pictures of a batch: uint8 (b, side, side, 3)."""
    if isinstance(batch.images, torch.Tensor):
        return np.stack([thumbnail(pixels, side) for pixels in batch.images.numpy()])
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
