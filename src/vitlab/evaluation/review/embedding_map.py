"""Images as points in two dimensions: those that a model sees as alike lie close together."""

import numpy as np
from numpy.typing import NDArray

from vitlab.errors import DataError

PERPLEXITY = 30.0  # neighbors that count, scikit-learn's usual value; a third of few images
STEPS = 500  # half of scikit-learn's usual number: trustworthiness is the same (docs/evaluation.md)
DIMENSIONS = 50  # that the features are reduced to first (van der Maaten & Hinton, 2008, section 4)
ALIKE = 1e-6  # a spread of unit vectors below it is rounding


def embedding_map(features: NDArray[np.float32], seed: int = 0) -> NDArray[np.float32]:
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
    if not np.isfinite(features).all():
        raise DataError(
            "some features are not numbers: the weights are damaged, or training diverged"
        )
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


def _few(count: int) -> NDArray[np.float32]:
    """Place images that cannot be told apart, or are too few, in a row."""
    x = (np.arange(count) + 0.5) / max(count, 1)
    return np.stack([x, np.full(count, 0.5)], 1).astype(np.float32)


def _in_unit_square(points: NDArray[np.floating]) -> NDArray[np.float32]:
    low, high = points.min(0), points.max(0)
    side = float((high - low).max()) or 1.0
    return (0.5 + (points - (low + high) / 2) / side).clip(0, 1).astype(np.float32)
