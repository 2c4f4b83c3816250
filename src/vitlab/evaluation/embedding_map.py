"""The map of a data set: a sample of its images, and their features as points in two dimensions.

Images that a model sees as alike lie close together. Each has a thumbnail of what the model sees.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitlab.data.images import Images
from vitlab.evaluation.answers import Float32s, Floats, Integers, check_numbers
from vitlab.evaluation.compute import Compute
from vitlab.evaluation.infer import Inferred, Progress, Want, infer, silent
from vitlab.evaluation.probes.feature_options import Pooled
from vitlab.models.model import Model
from vitlab.models.packed import Packed

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

    indices: Integers
    features: Float32s
    probabilities: Floats
    thumbnails: NDArray[np.uint8]
    bad: dict[int, str]


def look_at(
    model: Model,
    source: Images,
    chosen: Integers,
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
    part = source.take(chosen)
    none = np.empty((0, model.config.features), np.float32), np.empty((0, model.config.classes))
    kept = [(np.empty(0, np.int64), *none, np.empty((0, side, side, 3), np.uint8))]
    bad: dict[int, str] = {}
    for batch in infer(model, part, compute, WANT, progress=progress):
        if len(batch.indices):
            small = np.stack([thumbnail(each, side) for each in _pictures(batch)])
            kept.append((chosen[batch.indices], batch.features, batch.probabilities, small))
        bad |= {int(chosen[index]): message for index, message in batch.bad}
    indices, features, chances, shown = (np.concatenate(each) for each in zip(*kept, strict=True))
    return Sampled(indices, features, chances, shown, bad)


def _pictures(batch: Inferred) -> Iterable[NDArray[np.uint8]]:
    """Return the images of a batch as the model sees them, (H, W, channels) each."""
    if isinstance(batch.pixels, Packed):
        return [each.permute(1, 2, 0).numpy() for each in batch.pixels.images()]
    return batch.pixels.numpy()


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


PERPLEXITY = 30.0  # neighbors that count, scikit-learn's usual value; a third of few images
STEPS = 500  # half of scikit-learn's usual number: trustworthiness is the same (docs/explore.md)
DIMENSIONS = 50  # that the features are reduced to first (van der Maaten & Hinton, 2008, section 4)
ALIKE = 1e-6  # a spread of unit vectors below it is rounding


def embedding_map(features: Float32s, seed: int = 0) -> Float32s:
    """Place images in the plane by t-SNE, so that near neighbors stay near neighbors.

    Distances between groups, and their sizes, mean little. Features are compared by their angle
    (cosine): each is divided by its length, reduced by principal components, which are the start
    too. The result depends on the features and the seed alone, to the bit, not on the number of
    threads.

    Source: van der Maaten & Hinton, Visualizing Data using t-SNE, Journal of Machine Learning
    Research 9, 2008; van der Maaten, Accelerating t-SNE using Tree-Based Algorithms, 2014.

    Args:
        features: (n, width), of `model.features`
        seed: of what is random in it

    Returns:
        float32 (n, 2), x and y from 0 to 1, both to the same scale, around the center.

    Raises:
        DataError: a feature is not a number.
    """
    check_numbers(features, "images a feature")
    count = len(features)
    lengths = np.linalg.norm(features, axis=1, keepdims=True)
    unit = features / np.maximum(lengths, np.finfo(np.float32).tiny)
    if count < 4 or float(np.ptp(unit, axis=0).max(initial=0)) < ALIKE:
        return _few(count)
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    # Sums over several threads would be rounded in another order each time.
    with threadpool_limits(1):
        kept = min(DIMENSIONS, *unit.shape)
        reduced = PCA(kept, svd_solver="full").fit_transform(unit.astype(np.float64))
        placed = TSNE(
            init="pca" if kept > 1 else "random",
            perplexity=min(PERPLEXITY, (count - 1) / 3),
            max_iter=STEPS,
            random_state=seed,
            n_jobs=1,
        ).fit_transform(reduced)
    return _in_unit_square(placed)


def _few(count: int) -> Float32s:
    """Place images that cannot be told apart, or are too few, in a row."""
    x = (np.arange(count) + 0.5) / max(count, 1)
    return np.stack([x, np.full(count, 0.5)], 1).astype(np.float32)


def _in_unit_square(points: NDArray[np.floating]) -> Float32s:
    low = points.min(0)
    high = points.max(0)
    side = float((high - low).max()) or 1.0
    return (0.5 + (points - (low + high) / 2) / side).clip(0, 1).astype(np.float32)
