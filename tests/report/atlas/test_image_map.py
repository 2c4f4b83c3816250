"""The map of a report: each image in a cell of its own, near its point."""

from itertools import permutations

import numpy as np
import pytest
import torch

import vitlab
from vitlab.data.labels import MultiLabels
from vitlab.data.learning import open_to_learn
from vitlab.data.sources.source import Source, Subset
from vitlab.evaluation.compute import Compute
from vitlab.evaluation.predictions import Predictions, predict
from vitlab.models.model import Model
from vitlab.report.atlas import gathered, image_map
from vitlab.report.atlas.image_map import grid_cells
from vitlab.report.atlas.plotted import Atlas

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
def drawn(model: Model, source: Source, predictions: Predictions) -> Atlas:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gathered, "LEAST", IMAGES)
        found = gathered.atlas(model, source, predictions)
    assert found is not None
    return found


def test_every_image_is_there_with_what_is_known_of_it(
    drawn: Atlas, source: Source, predictions: Predictions
) -> None:
    shown = drawn.image_map
    assert shown is not None
    assert [each.name for each in shown.spots] == [source.name(i) for i in range(IMAGES)]
    truth = predictions.labels.values
    assert [each.kind for each in shown.spots] == truth.tolist()
    assert {i for i, each in enumerate(shown.spots) if each.wrong} == set(range(0, 120, 10))
    assert {i for i, each in enumerate(shown.spots) if each.doubted} == {0, 10, 20}
    assert shown.spots[10].guess == source.classes[(truth[10] + 1) % 10]
    xs, ys = np.array([each.at for each in shown.spots]).T
    assert (xs.min(), xs.max(), ys.min(), ys.max()) == (0, 1, 0, 1)
    assert 1 <= shown.aspect <= image_map.WIDEST
    assert (shown.of, shown.sampled) == (IMAGES, IMAGES)


def test_a_cell_holds_the_image_that_it_belongs_to(drawn: Atlas, source: Source) -> None:
    shown = drawn.image_map
    assert shown is not None
    cells = [each.cell for each in shown.spots]
    assert len(set(cells)) == IMAGES
    side = shown.sheet.shape[1] // shown.columns
    assert shown.sheet.shape == (shown.rows * side, shown.columns * side, 3)
    for place in (0, 7, 119):
        column, row = cells[place]
        cell = shown.sheet[row * side : (row + 1) * side, column * side : (column + 1) * side]
        pixels = source.image(place).decode(1)[..., 0]
        assert (cell[side // 16 :: side // 8, side // 16 :: side // 8, 0] == pixels).all()


def test_the_doubts_are_the_sure_mistakes(drawn: Atlas, source: Source) -> None:
    doubts = drawn.doubts
    assert {each.name for each in doubts.shown} == {source.name(i) for i in (0, 10, 20)}
    assert (doubts.listed, doubts.images, doubts.several) == (3, IMAGES, False)
    for each in doubts.shown:
        assert each.own == pytest.approx(0.02)
        assert each.other == pytest.approx(0.9)
        assert each.pixels is not None


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
    assert gathered.atlas(model, source, predictions) is None  # fewer than there must be
    monkeypatch.setattr(gathered, "LEAST", 30)
    monkeypatch.setattr(image_map, "MOST", 40)
    table = np.eye(10, dtype=np.uint8)[predictions.labels.values]
    several = Predictions(
        predictions.probabilities, MultiLabels(table), predictions.indices, {}, 1.0
    )
    found = gathered.atlas(model, source, several)
    assert found is not None
    assert found.image_map is not None
    assert found.doubts.several
    assert found.doubts.shown[0].other is None
    assert {each.kind for each in found.image_map.spots} == {-1}
    doubted = sum(each.doubted for each in found.image_map.spots)
    assert doubted == len(found.doubts.shown) > 0  # shown, though the sample is small
    assert len(found.image_map.spots) <= 40 + doubted
    assert (found.image_map.sampled, found.image_map.of) == (40, IMAGES)
    monkeypatch.setattr(model, "features", lambda images: torch.full((len(images), 16), torch.nan))
    assert image_map.image_map(model, source, predictions) is None
