"""The k-nearest-neighbor classifier by which DINO judges features."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

NEIGHBORS = (10, 20, 100, 200)
TEMPERATURE = 0.07
TRAIN, TEST = 16_384, 1024  # rows that are compared at once


def nearest_neighbors(
    x_train: NDArray[np.float32],
    y_train: NDArray[np.int64],
    x_test: NDArray[np.float32],
    neighbors: Sequence[int] = NEIGHBORS,
    *,
    temperature: float = TEMPERATURE,
    device: torch.device | None = None,
) -> dict[int, NDArray[np.int64]]:
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
    queries: Tensor, x_train: NDArray[np.float32], k: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return the k largest similarities of each query, and the rows they belong to: (m, k) each."""
    best = queries.new_empty(len(queries), 0)
    rows = torch.empty(len(queries), 0, dtype=torch.int64, device=device)
    for start in range(0, len(x_train), TRAIN):
        block = _normalized(x_train[start : start + TRAIN], device)
        own = torch.arange(start, start + len(block), device=device).expand(len(queries), -1)
        best, rows = torch.cat([best, queries @ block.T], 1), torch.cat([rows, own], 1)
        best, places = best.topk(min(k, best.shape[1]), dim=1)
        rows = rows.gather(1, places)
    return best, rows


def _normalized(values: NDArray[np.float32], device: torch.device) -> Tensor:
    return F.normalize(torch.from_numpy(np.array(values, np.float32)).to(device), dim=1)
