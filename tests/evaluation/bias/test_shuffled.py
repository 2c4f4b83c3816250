"""Tiles that change places: by hand, by loops, and for models with and without positions."""

from collections import Counter
from itertools import product

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import vitlab
from evaluation.bias.linear_model import Linear, figures, noise, normalized, probed
from vitlab.errors import OptionError
from vitlab.evaluation.inductive_bias import shuffle_tiles, tile_orders


def by_loops(
    image: NDArray[np.float64], order: NDArray[np.int64], grid: int
) -> NDArray[np.float64]:
    """One image (channels, H, W), tile by tile."""
    high, wide = image.shape[1] // grid, image.shape[2] // grid
    result = np.empty_like(image)
    for place, (row, column) in enumerate(product(range(grid), repeat=2)):
        r, c = divmod(int(order[place]), grid)
        tile = image[:, r * high : (r + 1) * high, c * wide : (c + 1) * wide]
        result[:, row * high : (row + 1) * high, column * wide : (column + 1) * wide] = tile
    return result


def test_four_tiles_by_hand() -> None:
    image = torch.tensor([[0, 0, 1, 1], [0, 0, 1, 1], [2, 2, 3, 3], [2, 2, 3, 3]])[None, None]
    turned = shuffle_tiles(image, torch.tensor([[3, 0, 1, 2]]))
    wanted = [[3, 3, 0, 0], [3, 3, 0, 0], [1, 1, 2, 2], [1, 1, 2, 2]]
    assert turned[0, 0].tolist() == wanted
    assert torch.equal(shuffle_tiles(image, torch.arange(4)[None]), image)


@pytest.mark.parametrize("grid", [1, 2, 3, 6])
def test_each_image_has_its_own_order(grid: int) -> None:
    images = np.random.default_rng(1).normal(size=(5, 3, 12, 6))
    orders = tile_orders(5, grid**2, np.random.default_rng(2))
    got = shuffle_tiles(torch.from_numpy(images), orders)
    for image, order, ours in zip(images, orders.numpy(), got.numpy(), strict=True):
        assert (ours == by_loops(image, order, grid)).all()


def test_a_grid_must_divide_the_image() -> None:
    with pytest.raises(OptionError, match="8x9 pixels cannot be cut into 2x2 equal tiles"):
        shuffle_tiles(torch.zeros(1, 1, 8, 9), torch.zeros(1, 4, dtype=torch.int64))


def test_all_orders_are_equally_likely() -> None:
    orders = tile_orders(12_000, 4, np.random.default_rng(0))
    found = Counter(map(tuple, orders.tolist()))
    assert len(found) == 24
    assert sum((count - 500) ** 2 / 500 for count in found.values()) < 44.2  # 99.5% of chi-squared


@pytest.mark.parametrize("positions", ["none", "1d"])
def test_only_positions_tell_a_shuffled_image(positions: str) -> None:
    model = vitlab.create(
        "ViT(width=16,depth=2,heads=2,mlp=32)/4",
        classes=5,
        image_size=16,
        positions=positions,
        pool="mean",
        generator=torch.Generator().manual_seed(0),
    )
    images = torch.randn(8, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    shuffled = shuffle_tiles(images, tile_orders(8, 16, np.random.default_rng(0)))
    with torch.inference_mode():
        model.eval()
        away = (model.features(images) - model.features(shuffled)).abs().max()
    assert (away < 1e-5) == (positions == "none")


def test_the_accuracy_of_a_model_that_reads_one_corner() -> None:
    """It is right where the tile of its corner has stayed there, and those are counted."""
    corners = torch.zeros(4, 1, 12, 12)
    for number, (row, column) in enumerate(product((0, 6), repeat=2)):
        corners[number, :, row : row + 6, column : column + 6] = 1
    labels = [number % 4 for number in range(40)]
    pixels = (255 * corners.permute(0, 2, 3, 1)).numpy().astype(np.uint8)[labels]
    seen = figures(probed(Linear(corners), pixels, labels), 3, "shuffled")
    orders = tile_orders(40, 4, np.random.default_rng(3)).numpy()
    stayed = np.mean([order[label] == label for order, label in zip(orders, labels, strict=True)])
    assert [*seen] == ["shuffled_2", "shuffled_4"], "8 does not divide 12"
    assert seen["shuffled_2"] == pytest.approx(stayed)
    assert 0.05 < stayed < 0.6


def test_a_batch_is_no_boundary() -> None:
    templates = torch.randn(3, 2, 8, 8, generator=torch.Generator().manual_seed(0))
    pixels, labels = noise(30, (8, 8), 2), [number % 3 for number in range(30)]
    found = [
        figures(probed(Linear(templates), pixels, labels, batch), 0, "shuffled")
        for batch in (1, 7, 30)
    ]
    assert found[0] == found[1] == found[2]
    orders = tile_orders(30, 4, np.random.default_rng(0)).numpy()
    moved = [
        by_loops(image, order, 2) for image, order in zip(normalized(pixels), orders, strict=True)
    ]
    classes = np.einsum("bchw,kchw->bk", moved, templates.numpy()).argmax(1)
    assert found[0]["shuffled_2"] == pytest.approx((classes == labels).mean())
