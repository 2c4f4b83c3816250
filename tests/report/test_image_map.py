"""The map of a report: each image in a cell of its own, near its point."""

from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch

import vitlab
from vitlab.data.labels import MultiLabels
from vitlab.data.learning import open_to_learn
from vitlab.data.sources.source import Source, Subset
from vitlab.evaluation.compute import Compute
from vitlab.evaluation.infer import Predictions, predict
from vitlab.models.model import Model
from vitlab.report import gather, image_map
from vitlab.report.facts import Doubts, ImageMap
from vitlab.report.image_map import grid_cells

IMAGES = 120


@pytest.fixture(scope="module")
def model() -> Model:
    return vitlab.create(
        "ViT(width=16,depth=1,heads=2,mlp=32)/4", classes=10, channels=1, image_size=8,
        generator=torch.Generator().manual_seed(0),
    )  # fmt: skip


@pytest.fixture(scope="module")
def source() -> Source:
    return Subset(open_to_learn("digits").test, np.arange(IMAGES))


@pytest.fixture(scope="module")
def predictions(model: Model, source: Source) -> Predictions:
    """Of a model that is right but for twelve images, and sure of three of them."""
    done = predict(model, source, Compute(torch.device("cpu"), workers=0))
    truth = done.labels.values
    table = np.full((IMAGES, 10), 0.02)
    table[np.arange(IMAGES), truth] = 0.82
    for place in range(0, 120, 10):
        sure = place < 30
        table[place] = 0.01 if sure else 0.05
        table[place, (truth[place] + 1) % 10] = 0.9 if sure else 0.5
        table[place, truth[place]] = 0.02 if sure else 0.1
    return Predictions(table / table.sum(1, keepdims=True), done.labels, done.indices, {}, 1.0)


@pytest.fixture(scope="module")
def plotted(model: Model, source: Source, predictions: Predictions) -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(image_map, "LEAST", IMAGES)
        return gather._plotted(model, source, predictions)


@pytest.fixture(scope="module")
def drawn(plotted: dict[str, Any]) -> ImageMap:
    found: ImageMap = plotted["image_map"]
    return found


def test_every_image_is_there_with_what_is_known_of_it(
    drawn: ImageMap, predictions: Predictions
) -> None:
    assert drawn.truth.tolist() == predictions.labels.values.tolist()
    assert set(np.flatnonzero(drawn.wrong)) == set(range(0, 120, 10))
    assert set(np.flatnonzero(drawn.doubted)) == {0, 10, 20}
    xs, ys = drawn.points.T
    assert (xs.min(), xs.max(), ys.min(), ys.max()) == (0, 1, 0, 1)
    assert 1 <= drawn.aspect <= image_map.WIDEST
    assert drawn.of == IMAGES


def test_each_thumbnail_is_in_the_cell_of_its_point(drawn: ImageMap, source: Source) -> None:
    columns, rows, cells = grid_cells(drawn.points, drawn.aspect)
    assert len({tuple(each) for each in cells.tolist()}) == IMAGES
    side = drawn.sheet.shape[1] // columns
    assert drawn.sheet.shape == (rows * side, columns * side, 3)
    for place in (0, 7, 119):
        column, row = cells[place]
        cell = drawn.sheet[row * side : (row + 1) * side, column * side : (column + 1) * side]
        pixels = source.image(place).decode(1)[..., 0]
        assert (cell[side // 16 :: side // 8, side // 16 :: side // 8, 0] == pixels).all()


def test_the_doubts_are_the_sure_mistakes(plotted: dict[str, Any], source: Source) -> None:
    doubts: Doubts = plotted["doubts"]
    assert {each.name for each in doubts.shown} == {source.name(i) for i in (0, 10, 20)}
    assert (doubts.listed, doubts.images) == (3, IMAGES)
    for each in doubts.shown:
        assert each.own == pytest.approx(0.02)
        assert each.other == pytest.approx(0.9)
        assert each.picture is not None


def test_cells_are_the_nearest_there_are() -> None:
    """Against every assignment of four points, to cells that are laid out in the same way."""
    points = np.random.default_rng(0).random((4, 2)).astype(np.float32)
    columns, rows, cells = grid_cells(points, 1.0)
    table = [(c, r) for r in range(rows) for c in range(columns)]

    def cost(own: tuple[tuple[int, int], ...]) -> float:
        centers = (np.array(own) + 0.5) / (columns, rows)
        return float(((centers - points) ** 2).sum())

    best = min(cost(own) for own in permutations(table, 4))
    assert cost(tuple(map(tuple, cells.tolist()))) == pytest.approx(best)
    assert columns * rows >= 5
    wide = grid_cells(np.random.default_rng(1).random((100, 2)).astype(np.float32), 1.6)
    assert wide[0] / wide[1] == pytest.approx(1.6, rel=0.2)


def test_several_labels_a_sample_and_what_cannot_be_placed(
    model: Model, source: Source, predictions: Predictions, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert gather._plotted(model, source, predictions) == {}  # fewer than there must be
    monkeypatch.setattr(image_map, "LEAST", 30)
    monkeypatch.setattr(image_map, "MOST", 40)
    table = np.eye(10, dtype=np.uint8)[predictions.labels.values]
    several = Predictions(
        predictions.probabilities, MultiLabels(table), predictions.indices, {}, 1.0
    )
    found = gather._plotted(model, source, several)
    shown = found["image_map"]
    assert found["doubts"].shown[0].other is None
    assert set(shown.truth.tolist()) == {-1}
    assert not shown.wrong.any()
    assert shown.doubted.sum() == len(found["doubts"].shown) > 0  # though the sample is small
    assert len(shown.points) <= 40 + shown.doubted.sum()
    assert shown.of == IMAGES
    monkeypatch.setattr(model, "features", lambda images: torch.full((len(images), 16), torch.nan))
    assert image_map.image_map(model, source, predictions, set()) is None
