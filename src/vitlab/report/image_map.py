"""Map of the test images: each where the model sees it, as a point and as a thumbnail."""

import math

import numpy as np
from numpy.typing import NDArray

from vitlab.data.labels import SingleLabels
from vitlab.data.sources.source import Source
from vitlab.errors import DataError
from vitlab.evaluation.compute import Compute
from vitlab.evaluation.embedding_map import embedding_map, look_at, sample
from vitlab.evaluation.infer import Predictions
from vitlab.models.model import Model
from vitlab.report.facts import ImageMap

LEAST = 100  # images: a map, and the thresholds of confident learning, need some of each class
MOST = 1_000  # images chosen at random; the page stays under 600 kB
SEED = 0
SIDES = ((400, 40), (650, 32), (MOST, 24))  # pixels of a thumbnail, by images at most
ROOM = 1.25  # cells of the grid of pictures for each image: some stay empty, and groups stay apart
WIDEST = 1.7  # columns of the map to its rows, at most


def image_map(
    model: Model, source: Source, predictions: Predictions, doubted: set[int]
) -> ImageMap | None:
    """Place test images; None if no image, or no feature, is as it was.

    Args:
        model: the tested model
        source: the test images
        predictions: the model's, of these images
        doubted: rows of predictions whose labels are likely wrong, which are shown in any case
    """
    count = len(predictions.indices)
    chosen = sample(count, MOST, SEED, doubted)
    side = next((side for limit, side in SIDES if len(chosen) <= limit), SIDES[-1][1])
    compute = Compute(next(model.parameters()).device, engine="plain", workers=0)
    try:
        seen = look_at(model, source, predictions.indices[chosen], side, compute)
        points = embedding_map(seen.features, SEED)
    except DataError:  # of a diverged model, the report still has all the rest
        return None
    if not len(points):
        return None
    points, aspect = _landscape(points)
    columns, rows, cells = grid_cells(points, aspect)
    sheet = np.full((rows, columns, side, side, 3), 128, np.uint8)
    sheet[cells[:, 1], cells[:, 0]] = seen.thumbnails
    rows_of = {index: row for row, index in enumerate(predictions.indices.tolist())}
    places = np.array([rows_of[index] for index in seen.indices.tolist()])
    labels, single = predictions.labels, isinstance(predictions.labels, SingleLabels)
    truth = labels.values[places] if single else np.full(len(places), -1)
    wrong = (predictions.probabilities[places].argmax(1) != truth) & single
    pixels = sheet.swapaxes(1, 2).reshape(rows * side, columns * side, 3)
    doubts = np.isin(places, list(doubted))
    return ImageMap(points, truth, wrong, doubts, pixels, aspect, count)


def _landscape(points: NDArray[np.float32]) -> tuple[NDArray[np.float32], float]:
    """Return the points filling the unit square, wider than high, and their aspect ratio.

    t-SNE leaves the direction open, so that x and y may change places.
    """
    low, spans = points.min(0), np.ptp(points, axis=0)
    if spans[1] > spans[0]:
        points, low, spans = points[:, ::-1], low[::-1], spans[::-1]
    filled = (points - low) / np.where(spans > 0, spans, 1)
    return filled, min(float(spans[0]) / max(float(spans[1]), 1e-6), WIDEST)


def grid_cells(points: NDArray[np.float32], aspect: float) -> tuple[int, int, NDArray[np.int64]]:
    """Give each point a cell of its own, so that the cells are as near to the points as possible.

    The sum of squared distances is the least there is (a linear assignment).

    Args:
        points: (n, 2), x and y from 0 to 1
        aspect: width to height

    Returns:
        Columns and rows of the grid, and the column and row of each point, int64 (n, 2).
    """
    from scipy.optimize import linear_sum_assignment
    from scipy.spatial.distance import cdist

    columns = max(1, math.ceil(math.sqrt(ROOM * len(points) * aspect)))
    rows = -(-math.ceil(ROOM * len(points)) // columns)
    table = np.stack(np.meshgrid(np.arange(columns), np.arange(rows)), -1).reshape(-1, 2)
    centers, stretch = (table + 0.5) / (columns, rows), np.array([aspect, 1.0])
    _, own = linear_sum_assignment(cdist(points * stretch, centers * stretch, "sqeuclidean"))
    return columns, rows, table[own].astype(np.int64)
