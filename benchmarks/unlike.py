"""Which distance says that an image is unlike the training images: AUROC with classes left out.

    python benchmarks/unlike.py WEIGHTS DATA [DATA ...] [--image-size 98] [--out RESULT.json]

Three classes of each DATA (any of `vitlab train`, a test split included) are left out of the
training images, in three draws. The test images of the other classes are to be told from those of
the classes left out; and, where several DATA are given, from the test images of the others. Each
candidate gives one number per image, higher for stranger ones. The area under the ROC curve is that
a stranger has the higher number (0.5: chance). `found` is the share of strangers above the 95th
percentile of the known test images. Features are the class token and the mean of the patches after
the last block. --images caps the training images of each class.
"""

import argparse
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.covariance import ledoit_wolf
from sklearn.metrics import roc_auc_score
from sklearn.neighbors import NearestNeighbors

import vitlab
from vitlab.data.learning import open_to_learn
from vitlab.data.sources.source import Source, Subset
from vitlab.evaluation.compute import Compute
from vitlab.evaluation.features import default_cache, features_of
from vitlab.evaluation.probes.feature_options import Cuts
from vitlab.evaluation.probes.heads import swept_logistic
from vitlab.evaluation.probes.probing import classes_of
from vitlab.evaluation.unlike import fit_unlike
from vitlab.models.model import Model

DRAWS, LEFT_OUT = 3, 3
TESTED = 100  # most test images of a class
Floats = NDArray[np.float64]
Score = Callable[[NDArray[np.float32]], Floats]
Rows = tuple[NDArray[np.float32], NDArray[np.int64]]  # features (n, d) and classes (n,)


def main() -> None:
    """Measure each data set, and print one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("weights")
    parser.add_argument("data", nargs="+")
    parser.add_argument("--image-size", type=int, default=98)
    parser.add_argument("--images", type=int, default=160, help="training images of a class")
    parser.add_argument("--out")
    options = parser.parse_args()
    model = vitlab.load(options.weights, image_size=options.image_size)
    taken = Cuts(layers=(model.last_layer,))
    sides: dict[str, tuple[Rows, Rows]] = {}
    for data in options.data:
        splits = open_to_learn(data)
        parts = (splits.train, options.images), (splits.test, TESTED)
        first, second = (features(model, part, most, taken) for part, most in parts)
        sides[data] = first, second
    found = [row for data in sides for row in measured(sides, data)]
    for row in found:
        print(*(f"{each:.3f}" if isinstance(each, float) else each for each in row), sep="\t")
    if options.out:
        Path(options.out).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def features(model: Model, source: Source, most: int, taken: Cuts) -> Rows:
    """Return class token and mean of at most so many images of each class, and the classes."""
    labels = classes_of(source, "the data")
    rng = np.random.default_rng(0)
    chosen = [rng.permutation(np.flatnonzero(labels == each))[:most] for each in np.unique(labels)]
    rows = np.sort(np.concatenate(chosen))
    made = features_of(model, Subset(source, rows), Compute(), taken, cache=default_cache())
    return np.array(made.values), labels[rows][made.indices]


def measured(
    sides: dict[str, tuple[Rows, Rows]], data: str
) -> Iterator[tuple[str, str, str, str, float, float]]:
    """Yield data, features, candidate, strangers, the mean AUROC and the mean share found."""
    (x, y), (test, truth) = sides[data]
    width = x.shape[1] // 2
    views = {"token": slice(0, width), "mean": slice(width, None)}
    for name, view in views.items():
        scores: dict[tuple[str, str], list[tuple[float, float]]] = {}
        for draw in range(DRAWS):
            out = np.random.default_rng(draw).choice(y.max() + 1, LEFT_OUT, replace=False)
            kept, known = ~np.isin(y, out), ~np.isin(truth, out)
            classes, place = np.unique(y[kept], return_inverse=True)
            groups = {"left-out classes": test[~known]} | {
                other: sides[other][1][0] for other in sides if other != data
            }
            for candidate, score in candidates(x[kept][:, view], place, len(classes)):
                usual = score(test[known][:, view])
                for title, strange in groups.items():
                    both = np.concatenate([usual, odd := score(strange[:, view])])
                    area = roc_auc_score(np.arange(len(both)) >= len(usual), both)
                    share = (odd > np.quantile(usual, 0.95)).mean()
                    scores.setdefault((candidate, title), []).append((area, share))
        for (candidate, title), each in scores.items():
            area, share = np.mean(each, 0)
            yield Path(data).stem, name, candidate, Path(title).stem, float(area), float(share)


def candidates(
    x: NDArray[np.float32], y: NDArray[np.int64], classes: int
) -> Iterator[tuple[str, Score]]:
    """Yield each candidate, fitted to features (n, d) and classes (n,), as a function of rows."""
    for metric, form in (("cosine", unit), ("Euclidean", np.asarray)):
        index = NearestNeighbors(n_neighbors=5).fit(form(x))
        for k in (1, 5):
            yield f"nearest feature, {metric}, k={k}", partial(nearest, index, form, k)
    z, means = x.astype(np.float64), np.stack([x[y == each].mean(0) for each in range(classes)])
    within, _ = ledoit_wolf(z - means[y], assume_centered=True)
    across, _ = ledoit_wolf(z)
    middle = z.mean(0, keepdims=True)
    yield "Mahalanobis", lambda rows: squares(rows, means, within).min(1)
    yield (
        "relative Mahalanobis",
        lambda rows: squares(rows, means, within).min(1) - squares(rows, middle, across)[:, 0],
    )
    kept = fit_unlike(x, y, np.arange(len(y)) % 5)
    yield "the same, on 128 axes", lambda rows: kept.relative(as_tensor(rows)).numpy()
    head = swept_logistic(x, y)
    yield "maximum softmax probability", lambda rows: -softmax(head.logits(rows)).max(1)
    yield "energy", lambda rows: -np.logaddexp.reduce(head.logits(rows), 1)


def nearest(
    index: NearestNeighbors, form: Callable[..., Any], k: int, rows: NDArray[np.float32]
) -> Floats:
    """Return the distance to the k-th nearest row, (n,)."""
    found: Floats = index.kneighbors(form(rows))[0][:, k - 1]
    return found


def as_tensor(rows: NDArray[np.float32]) -> torch.Tensor:
    """Return rows in double precision."""
    return torch.from_numpy(np.array(rows, np.float64))


def unit(rows: NDArray[np.floating]) -> NDArray[np.floating]:
    """Return rows of length 1."""
    found: NDArray[np.floating] = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return found


def squares(rows: NDArray[np.float32], means: Floats, covariance: Floats) -> Floats:
    """Return the squared Mahalanobis distances of rows to means, (n, c)."""
    whiten = np.linalg.cholesky(np.linalg.inv(covariance))
    gaps = rows[:, None].astype(np.float64) - means[None]
    found: Floats = ((gaps @ whiten) ** 2).sum(-1)
    return found


def softmax(logits: Floats) -> Floats:
    """Return probabilities, (n, c)."""
    found: Floats = np.exp(logits - np.logaddexp.reduce(logits, 1)[:, None])
    return found


if __name__ == "__main__":
    main()
