"""Few-shot linear evaluation in closed form, and the k-nearest-neighbor (k-NN) classifier.

The first as in the ViT paper (section 4.1) and big_vision, the second as DINO judges features.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor
from torch.nn import functional as F

from vitlab.data.images import Images
from vitlab.data.labels import SingleLabels
from vitlab.errors import DataError, OptionError
from vitlab.evaluation.answers import Float32s, Floats, Integers
from vitlab.evaluation.probes.blocks import Blocks
from vitlab.evaluation.probes.ridge import best_ridge, signs, solve_ridge
from vitlab.units import counted

BIAS = 100.0  # the constant feature: so large that its weight is hardly penalized
SEEDS = 3
L2 = 1024.0  # big_vision's, 2^10


def fewshot(
    x_train: ArrayLike, y_train: ArrayLike, x_test: ArrayLike, l2: float | Literal["auto"] = L2
) -> Integers:
    """Predict classes by a linear model that was fitted to few examples in closed form.

    Regularized least squares: features are standardized by the mean and standard deviation (plus
    1e-5) of the training examples, a constant feature of 100 is appended, targets are 1 for the
    class and -1 for the others, and the prediction is the class of the largest output. Everything
    is computed in float64.

    Source: big_vision's evaluators/fewshot_lsr.py, with its l2 of 2^10; ViT paper, section 4.1.

    Args:
        x_train: features, (n, d)
        y_train: classes, whole numbers, (n,)
        x_test: features, (m, d)
        l2: weight of the squared norm, above 0; auto: the best power of four from 2^-4 to 2^20 by
            leave-one-out on the training examples, in closed form; with one example of each class,
            where nothing can be left out, 2^10

    Returns:
        Predicted classes, int64 (m,), each one of those in `y_train`.

    Raises:
        OptionError: an l2 that is not above 0.
        DataError: arrays that do not fit together, or features that are not finite.
    """
    x, test = _features("x_train", x_train), _features("x_test", x_test)
    labels = np.asarray(y_train)
    if l2 != "auto" and (isinstance(l2, str) or not 0 < l2 < np.inf):
        raise OptionError(f"l2 must be a number above 0 or auto, not {l2!r}")
    if not len(x) or x.shape[1] != test.shape[1]:
        raise DataError(
            f"x_train {x.shape} and x_test {test.shape} must be (n, d) and (m, d) with n above 0"
        )
    if labels.shape != (len(x),) or not np.issubdtype(labels.dtype, np.integer):
        raise DataError(f"y_train must be {len(x)} whole numbers, one per row of x_train")
    classes, place = np.unique(labels, return_inverse=True)
    mean = x.mean(0)
    std = x.std(0) + 1e-5
    own = (x - mean) / std
    if l2 == "auto":
        several = len(x) > len(classes)
        l2 = best_ridge(Blocks(own, scaled=False), place, len(classes))[1] if several else L2
    weights = solve_ridge(_extended(own), signs(place, len(classes)), l2)
    outputs = _extended((test - mean) / std) @ weights
    return classes[outputs.argmax(1)].astype(np.int64)


def sample_shots(
    labels: Integers, classes: Sequence[str], shots: Sequence[int], seed: int
) -> dict[int, Integers]:
    """Choose the training examples of every number of shots, as big_vision does.

    One permutation per class, in the order of the classes, all from one generator; its first k
    are the k shots, so that more shots contain fewer.

    Args:
        labels: index of the class of each example, (n,)
        classes: their names
        shots: examples per class
        seed: of the generator

    Returns:
        For each number of shots, indices of the examples, class by class.

    Raises:
        DataError: a class has fewer examples than the most shots.
    """
    have, line = smallest(labels, classes)
    if have < max(shots):
        advice = f"choose at most {have}" if have else "add images of it"
        raise DataError(f"{line}, too few for {max(shots)} shots: {advice}")
    generator = np.random.default_rng(seed)
    ends = np.bincount(labels, minlength=len(classes)).cumsum()
    by_class = np.split(np.argsort(labels, kind="stable"), ends[:-1])
    order = [generator.permutation(own) for own in by_class]
    return {count: np.concatenate([own[:count] for own in order]) for count in shots}


def smallest(labels: Integers, classes: Sequence[str]) -> tuple[int, str]:
    """Return how many training images the smallest class has, as a number and as words."""
    counts = np.bincount(labels, minlength=len(classes))
    have = int(counts.min())
    return have, f"class {classes[int(counts.argmin())]!r} has {counted(have, 'training image')}"


def classes_of(source: Images, data: str) -> Integers:
    """Return the class of each image, (n,).

    Raises:
        DataError: they have several labels each.
    """
    if not isinstance(source.target, SingleLabels):
        raise DataError(
            f"{data} has several labels per image: a probe needs one class per image; vitlab "
            "finetune --tune head learns several"
        )
    return source.target.values


def _features(name: str, given: ArrayLike) -> Floats:
    """Return features as float64."""
    try:
        values = np.asarray(given, np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"{name} must be an array of numbers: {error}") from None
    if values.ndim != 2:
        raise DataError(f"{name} must have two dimensions, (images, features), not {values.ndim}")
    if not np.isfinite(values).all():
        raise DataError(f"{name} contains numbers that are not finite")
    return values


def _extended(x: Floats) -> Floats:
    return np.pad(x, ((0, 0), (0, 1)), constant_values=BIAS)


NEIGHBORS = (10, 20, 100, 200)
TEMPERATURE = 0.07
TRAIN, TEST = 16_384, 1024  # rows that are compared at once


def nearest_neighbors(
    x_train: Float32s,
    y_train: Integers,
    x_test: Float32s,
    neighbors: Sequence[int] = NEIGHBORS,
    *,
    temperature: float = TEMPERATURE,
    device: torch.device | None = None,
) -> dict[int, Integers]:
    """Predict the class that the k training images of highest cosine similarity vote for.

    A neighbor's vote is exp(similarity / temperature). The features are not standardized. Where
    there are fewer than k training images, all of them vote.

    Source: eval_knn.py of DINO (Caron et al., 2021), with its temperature; dinov2/eval/knn.py, with
    its numbers of neighbors.

    Args:
        x_train: features, (n, d), possibly memory-mapped: they are read in blocks
        y_train: classes, (n,)
        x_test: features, (m, d)
        neighbors: the numbers k
        temperature: of the votes
        device: where to compute; None for the CPU

    Returns:
        Predicted classes, int64 (m,), for each k.
    """
    device = device or torch.device("cpu")
    labels = torch.from_numpy(np.asarray(y_train)).to(device)
    classes = int(labels.max()) + 1
    found = {k: np.empty(len(x_test), np.int64) for k in neighbors}
    for start in range(0, len(x_test), TEST):
        queries = _normalized(x_test[start : start + TEST], device)
        similar, nearest = _nearest(queries, x_train, max(neighbors), device)
        votes = (similar / temperature).exp()
        for k in neighbors:
            tally = votes.new_zeros(len(queries), classes)
            tally.scatter_add_(1, labels[nearest[:, :k]], votes[:, :k])
            found[k][start : start + TEST] = tally.argmax(1).cpu()
    return found


def _nearest(
    queries: Tensor, x_train: Float32s, k: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return the k largest similarities of each query, and the rows they belong to: (m, k) each."""
    best = queries.new_empty(len(queries), 0)
    rows = torch.empty(len(queries), 0, dtype=torch.int64, device=device)
    for start in range(0, len(x_train), TRAIN):
        block = _normalized(x_train[start : start + TRAIN], device)
        own = torch.arange(start, start + len(block), device=device).expand(len(queries), -1)
        best = torch.cat([best, queries @ block.T], 1)
        rows = torch.cat([rows, own], 1)
        best, places = best.topk(min(k, best.shape[1]), dim=1)
        rows = rows.gather(1, places)
    return best, rows


def _normalized(values: Float32s, device: torch.device) -> Tensor:
    return F.normalize(torch.from_numpy(np.array(values, np.float32)).to(device), dim=1)
