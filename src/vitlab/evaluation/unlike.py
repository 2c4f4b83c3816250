"""Unlike the training images: fit what a classifier keeps of their features, and its threshold."""

from dataclasses import replace

import numpy as np
import torch

from vitlab.data.images import Images
from vitlab.data.labels import classes_of_images
from vitlab.distributed.world import World
from vitlab.effort import FULL
from vitlab.evaluation.answers import Float32s, Floats, Integers, sample
from vitlab.evaluation.compute import Compute
from vitlab.evaluation.feature_cache import features_of
from vitlab.evaluation.features import ImageFeatures
from vitlab.evaluation.probes.feature_options import InnerFeatures
from vitlab.evaluation.probes.few_shot import classes_of
from vitlab.models.config import ModelConfig
from vitlab.models.model import Model
from vitlab.models.unlike import Unlike, layer_of

LIKE = 0.95  # share of new images of the same kind that are within the threshold
AXES = 64  # those along which images of a class differ most
MOST = 20_000  # images that it is fitted to
LEAST = 1e-6  # deviation of features, and distance, that is told from none
FEWEST = 20  # images that the features of a trained model are described from
TITLE = "features of the training images"


def learned_unlike(
    model: Model,
    learned: Images,
    held: Images | None,
    compute: Compute,
    world: World,
    folds: int = FULL.folds,
) -> Unlike | None:
    """Return what a model that was trained keeps of the features of its training images.

    Args:
        model: trained, with one class per image
        learned: its training images, of which at most 20,000 are looked at
        held: others of the same kind, if there are some, for the threshold
        compute: where and how
        world: the processes, which compute features together
        folds: parts that are left out in turn for the threshold, without others

    Returns:
        None for all processes but the first, and for fewer than 20 images.
    """
    if len(learned) < FEWEST:
        return None
    rows = sample(len(learned), MOST, 0)
    layer = layer_of(model.last_layer)
    taken = InnerFeatures(layer=layer)
    part = learned.take(rows)
    found = features_of(model, part, compute, taken, world=world, title=TITLE)
    others = None
    if held is not None:
        others = features_of(model, held, compute, taken, world=world, title=TITLE)
    with world.agreed():
        if not world.first or not np.isfinite(found.values).all():
            return None
        y = classes_of_images(learned.target)[rows][found.indices]
        parts = np.random.default_rng(0).permutation(len(y)) % folds
        beside = None if others is None else np.array(others.values)
        return fit_unlike(np.array(found.values), y, parts, layer, beside)


def fit_unlike_behind(
    source: Images, cuts: ImageFeatures, folds: Integers, config: ModelConfig, layer: int
) -> Unlike:
    """Fit it to what `Cuts` have behind the vectors that a head is fitted to.

    Args:
        source: the images, of one class each
        cuts: of those that could be decoded, (n, …), that end with what `Model.inner` gives
        folds: the part of each, (n,), in which the head was judged
        config: of the model
        layer: that gives them
    """
    inner = cuts.values[:, -config.layer_width(layer) :]
    return fit_unlike(inner, classes_of(source, "the data")[cuts.indices], folds, layer)


def fit_unlike(
    x: Float32s,
    y: Integers,
    folds: Integers,
    layer: int,
    held: Float32s | None = None,
) -> Unlike:
    """Fit the covariance within classes, shrunk (Ledoit and Wolf, 2004), and the threshold.

    The threshold is a quantile of the distances of images that a fit has not seen (split conformal
    prediction; Vovk et al., 2005): a new image of the same kind exceeds it once in twenty times at
    most. With fewer than 19 images, it is the largest distance.

    Args:
        x: what `Model.inner` gives, (n, d); of more than 20,000 rows so many are drawn
        y: the class of each, (n,)
        folds: the part of each, (n,); those of the other parts are fitted to
        layer: that gives them
        held: the same of images that are not among these, (m, d), for the threshold; None for the
            parts in turn
    """
    rows = sample(len(y), MOST, 0)
    x = x[rows]
    y = y[rows]
    folds = folds[rows]
    whole = _fitted(x, y, layer)
    if held is not None:
        far = _distances(whole, held)
    else:
        far = np.empty(len(y))
        for each in np.unique(folds):
            part = folds == each
            far[part] = _distances(_fitted(x[~part], y[~part], layer), x[part])
    share = min(1, LIKE * (1 + 1 / len(far)))
    limit = max(np.quantile(far, share, method="inverted_cdf"), LEAST)
    return replace(whole, limit=torch.tensor([limit]).float())


def _distances(unlike: Unlike, x: Float32s) -> Floats:
    """Return the distances of images, (n,), before they are compared with the threshold."""
    found: Floats = unlike.raw(torch.from_numpy(x).double()).numpy()
    return found


def _fitted(x: Float32s, y: Integers, layer: int) -> Unlike:
    """Return what is kept, without a threshold."""
    from scipy.linalg import eigh
    from sklearn.covariance import ledoit_wolf_shrinkage

    z = x.astype(np.float64)
    classes, place = np.unique(y, return_inverse=True)
    middle = z.mean(0)
    centers = np.stack([z[place == each].mean(0) for each in range(len(classes))])
    apart = z - (centers[place] if len(classes) < len(z) else middle)  # else all are zero
    width = x.shape[1]
    shrinkage = float(ledoit_wolf_shrinkage(apart, assume_centered=True))
    covariance = apart.T @ apart / len(apart)
    typical = np.trace(covariance) / width
    others = max(0, width - AXES)  # axes, whose mean variance stands for each
    values, axes = eigh(covariance, subset_by_index=(others, width - 1))
    rest = (np.trace(covariance) - values.sum()) / others if others else typical
    variances = (1 - shrinkage) * np.append(values, rest).clip(0) + shrinkage * typical + LEAST
    scales = 1 / np.sqrt(variances)
    spread = centers - middle
    spread = spread * scales[-1] + ((spread @ axes) * (scales[:-1] - scales[-1])) @ axes.T
    kept = middle, axes, scales, spread, np.ones(1)
    return Unlike(layer, *(torch.from_numpy(each).float().contiguous() for each in kept))
