"""The map of a report: test images where the model sees them, each with a thumbnail."""

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from vitlab.data.sources.source import Source
from vitlab.errors import DataError
from vitlab.evaluation.compute import Compute
from vitlab.evaluation.embedding_map import embedding_map, look_at, sample
from vitlab.evaluation.predictions import Predictions
from vitlab.models.model import Model
from vitlab.report.album import named
from vitlab.report.atlas.plotted import ImageMap, Spot

MOST = 1_000  # images chosen at random; the page stays under 600 kB
SEED = 0
SIDES = ((400, 40), (650, 32), (MOST, 24))  # pixels of a thumbnail, by images at most
ROOM = 1.25  # cells of the grid of pictures for each image: some stay empty, and groups stay apart
WIDEST = 1.7  # columns of the map to its rows, at most


def image_map(
    model: Model, source: Source, predictions: Predictions, doubted: Iterable[int] = ()
) -> ImageMap | None:
    """Place test images; None if no image, or no feature, is as it was.

    Args:
        model: the tested model
        source: the test images
        predictions: the model's, of these images
        doubted: rows of predictions whose labels are likely wrong, which are shown in any case
    """
    count, doubts = len(predictions.indices), set(doubted)
    chosen = sample(count, MOST, SEED, doubts)
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
    rows_of = {index: row for row, index in enumerate(predictions.indices.tolist())}
    places = [rows_of[index] for index in seen.indices.tolist()]
    spots = [
        _spot(model, source, predictions, place, place in doubts, point, cell)
        for place, point, cell in zip(places, points.tolist(), cells.tolist(), strict=True)
    ]
    sheet = _sheet(seen.thumbnails, cells, columns, rows)
    return ImageMap(spots, sheet, columns, rows, aspect, count, min(count, MOST))


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


def _sheet(
    thumbnails: NDArray[np.uint8], cells: NDArray[np.int64], columns: int, rows: int
) -> NDArray[np.uint8]:
    side = thumbnails.shape[1]
    table = np.full((rows, columns, side, side, 3), 128, np.uint8)
    table[cells[:, 1], cells[:, 0]] = thumbnails
    return table.swapaxes(1, 2).reshape(rows * side, columns * side, 3)


def _spot(
    model: Model,
    source: Source,
    predictions: Predictions,
    place: int,
    doubted: bool,
    point: list[float],
    cell: list[int],
) -> Spot:
    seen = named(source, predictions, place, np.array(model.thresholds))
    truth, guess = seen.pair or (-1, -1)
    return Spot(
        seen.name,
        seen.truth,
        seen.guess,
        seen.confidence,
        truth,
        truth != guess,
        doubted,
        (point[0], point[1]),
        (cell[0], cell[1]),
    )
