"""Unlike the training images: fit what a classifier keeps of their features, and its threshold."""

from dataclasses import replace

import numpy as np
import torch

from vitlab.data.sources.source import Source, Subset
from vitlab.distributed.world import World
from vitlab.evaluation.answers import Float32s, Integers
from vitlab.evaluation.compute import Compute
from vitlab.evaluation.embedding_map import sample
from vitlab.evaluation.features import features_of
from vitlab.models.model import Model
from vitlab.models.unlike import Unlike

LIKE = 0.95  # share of new images of the same kind that are within the threshold
AXES = 128  # those along which classes lie furthest apart
MOST = 20_000  # images that it is fitted to
LEAST = 1e-6  # variance of features, and difference of distances, that is told from none
FEWEST = 20  # images that the features of a trained model are described from
FOLDS = 5


def learned_unlike(
    model: Model, learned: Source, held: Source | None, compute: Compute, world: World
) -> Unlike | None:
    """Return what a model that was trained keeps of the features of its training images.

    Args:
        model: trained, with one class per image
        learned: its training images, of which at most 20,000 are looked at
        held: others of the same kind, if there are some, for the threshold
        compute: where and how
        world: the processes, which compute features together

    Returns:
        None for all processes but the first, and for fewer than 20 images.
    """
    if len(learned) < FEWEST:
        return None
    rows = sample(len(learned), MOST, 0)
    part = Subset(learned, rows)
    title = "features of the training images"
    found = features_of(model, part, compute, world=world, title=title)
    others = None if held is None else features_of(model, held, compute, world=world, title=title)
    if not world.first or not np.isfinite(found.values).all():
        return None
    y = np.asarray(learned.labels.values, np.int64)[rows][found.indices]
    folds = np.random.default_rng(0).permutation(len(y)) % FOLDS
    return fit_unlike(
        np.array(found.values), y, folds, None if others is None else np.array(others.values)
    )


def fit_unlike(
    x: Float32s,
    y: Integers,
    folds: Integers,
    held: Float32s | None = None,
) -> Unlike:
    """Fit the covariance within classes and that of all images, shrunk (Ledoit and Wolf, 2004).

    The threshold is a quantile of the distances of images that a fit has not seen (split conformal
    prediction; Vovk et al., 2005): a new image of the same kind exceeds it once in twenty times at
    most. With fewer than 19 images, it is the largest distance.

    Args:
        x: features, (n, d); of more than 20,000 rows so many are drawn
        y: the class of each, (n,)
        folds: the part of each, (n,); those of the other parts are fitted to
        held: features of images that are not among these, (m, d), for the threshold; None for the
            parts in turn
    """
    rows = sample(len(y), MOST, 0)
    x = x[rows]
    y = y[rows]
    folds = folds[rows]
    whole = _fitted(x, y)
    if held is not None:
        far = whole.relative(torch.from_numpy(held).double()).numpy()
    else:
        far = np.empty(len(y))
        for each in np.unique(folds):
            part = folds == each
            far[part] = _fitted(x[~part], y[~part]).relative(torch.from_numpy(x[part]).double())
    least = far.min()
    share = min(1, LIKE * (1 + 1 / len(far)))
    limit = max(np.quantile(far, share, method="inverted_cdf"), least + LEAST)
    return replace(whole, level=torch.tensor([least, limit]).float())


def _fitted(x: Float32s, y: Integers) -> Unlike:
    """Return what is kept, without a threshold."""
    from scipy.linalg import eigh
    from sklearn.covariance import ledoit_wolf

    z, (classes, place) = x.astype(np.float64), np.unique(y, return_inverse=True)
    middle = z.mean(0)
    centers = np.stack([middle, *(z[place == each].mean(0) for each in range(len(classes)))])
    apart = z - (centers[1 + place] if len(classes) < len(z) else middle)  # else all are zero
    within, total = (
        ledoit_wolf(each, assume_centered=True)[0] + LEAST * np.eye(z.shape[1])
        for each in (apart, z - middle)
    )
    spread, axes = eigh(total, within)  # by rising spread, at least 1 but for the shrinkage
    axes = axes[:, -AXES:]
    kept = axes, centers @ axes, spread[-AXES:].clip(1), np.arange(2)
    return Unlike(*(torch.from_numpy(each).float().contiguous() for each in kept))
