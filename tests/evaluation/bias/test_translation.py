"""Shifts by a few pixels: by NumPy's padding, and of models whose answers are known."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from evaluation.bias.linear_model import Linear, figures, noise, normalized, probed
from vitlab.evaluation.inductive_bias import DIRECTIONS, shift


def by_padding(image: NDArray[np.float64], down: int, right: int) -> NDArray[np.float64]:
    """One image (channels, H, W): padded by its reflection, then cut out elsewhere."""
    _, rows, columns = image.shape
    margin = max(abs(down), abs(right))
    wide = np.pad(image, ((0, 0), (margin, margin), (margin, margin)), mode="reflect")
    return wide[:, margin - down :, margin - right :][:, :rows, :columns]


def test_a_row_by_hand() -> None:
    row = torch.tensor([1, 2, 3, 4])[None, None, None].expand(-1, -1, 4, -1)
    assert shift(row, torch.tensor([[0, 1]]))[0, 0, 0].tolist() == [2, 1, 2, 3]
    assert shift(row, torch.tensor([[0, -2]]))[0, 0, 3].tolist() == [3, 4, 3, 2]
    assert torch.equal(shift(row, torch.tensor([[3, 0]])), row), "all rows are alike"


def test_every_image_has_its_own_shift() -> None:
    images = np.random.default_rng(0).normal(size=(50, 2, 7, 5))
    shifts = np.random.default_rng(1).integers(-4, 5, (50, 2))
    got = shift(torch.from_numpy(images), torch.from_numpy(shifts)).numpy()
    for image, (down, right), ours in zip(images, shifts.tolist(), got, strict=True):
        assert (ours == by_padding(image, down, right)).all()


def test_eight_directions() -> None:
    assert len({tuple(each) for each in DIRECTIONS.tolist()}) == 8
    assert DIRECTIONS.abs().amax(1).tolist() == [1] * 8


@pytest.mark.parametrize("batch", [3, 60])
def test_figures_of_a_linear_model_by_numpy(batch: int) -> None:
    templates = torch.randn(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    pixels, labels = noise(60, (8, 8)), np.arange(60) % 3
    asked = probed(Linear(templates), pixels, labels.tolist(), batch)
    clean = asked.predicted()
    seen = figures(asked, 7, "shift_", "consistency")
    directions = DIRECTIONS.numpy()[np.random.default_rng(7).integers(8, size=60)]
    for distance in (1, 2, 3, 4):
        moved = [
            by_padding(image, down, right)
            for image, (down, right) in zip(normalized(pixels), distance * directions, strict=True)
        ]
        classes = np.einsum("bchw,kchw->bk", moved, templates.numpy()).argmax(1)
        assert seen[f"shift_{distance}"] == pytest.approx((classes == labels).mean())
        assert seen[f"consistency_{distance}"] == pytest.approx((classes == clean.numpy()).mean())
    assert len(seen) == 8
    assert seen["consistency_1"] < 1


def test_a_model_that_is_always_wrong_can_be_consistent() -> None:
    templates = torch.zeros(2, 1, 4, 4)
    asked = probed(Linear(templates), noise(6, (4, 4)), [1] * 6)
    seen = figures(asked, 0, "shift_", "consistency")
    assert [*seen] == [f"{n}_{d}" for d in (1, 2, 3) for n in ("shift", "consistency")]
    assert {seen["shift_2"], seen["consistency_2"]} == {0, 1}
    assert seen["consistency_2"] == 1
