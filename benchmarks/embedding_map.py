"""How much of the neighborhood of images the map in two dimensions keeps; one JSON object.

    python benchmarks/embedding_map.py RUN DATA

Trustworthiness (Venna & Kaski, 2001) is 1 if every image's 10 nearest neighbors in the map are its
nearest neighbors among the features too, by their angle; and the accuracy of a classifier by the 10
nearest neighbors, by 5-fold cross-validation, is that of the features, and that of the map.
"""

import json
import sys
import time

import numpy as np
from numpy.typing import NDArray
from sklearn.manifold import trustworthiness
from sklearn.model_selection import cross_val_score
from sklearn.neighbors import KNeighborsClassifier

import vitlab
from vitlab.data.open import open_images
from vitlab.data.open_splits import split_opened
from vitlab.evaluation.answers import sample
from vitlab.evaluation.compute import Compute
from vitlab.evaluation.embedding_map import embedding_map, look_at

MOST = 2_000  # images
NEIGHBORS = 10


def nearest(values: NDArray[np.float32], labels: NDArray[np.int64]) -> float:
    """Return the accuracy of a classifier by nearest neighbors."""
    found = cross_val_score(KNeighborsClassifier(NEIGHBORS), values, labels, cv=5)
    return float(found.mean())


def main(run: str, data: str) -> None:
    """Place the test images, and print the figures."""
    model = vitlab.load(run)
    source = split_opened(open_images(data, classes=model.config.labels)).test
    seen = look_at(model, source, sample(len(source), MOST, 0), 8, Compute("cpu"))
    start = time.perf_counter()
    points = embedding_map(seen.features)
    seconds = time.perf_counter() - start
    unit = seen.features / np.linalg.norm(seen.features, axis=1, keepdims=True)
    labels = source.target.take(seen.indices).batch()
    result = {
        "images": len(points),
        "seconds": seconds,
        "trustworthiness": float(trustworthiness(unit, points, n_neighbors=NEIGHBORS)),
        "nearest neighbors in the features": nearest(unit, labels),
        "nearest neighbors in the map": nearest(points, labels),
    }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main(*sys.argv[1:])
