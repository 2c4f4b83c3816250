"""Which patches are covered together."""

import pytest
import torch

from vitlab.errors import OptionError
from vitlab.explore.seeing.covering import MOST, covered, squares


@pytest.mark.parametrize(
    ("grid", "expected"),
    [
        ((1, 1), (1, 1)),
        ((4, 7), (4, 7)),
        ((14, 14), (7, 7)),
        ((16, 24), (8, 8)),
        ((13, 37), (8, 8)),
        ((10, 9), (5, 8)),
    ],
)
def test_every_patch_is_in_one_square(grid: tuple[int, int], expected: tuple[int, int]) -> None:
    found, parts = squares(grid)
    assert found == expected
    assert len(parts) == found[0] * found[1] <= MOST**2
    assert sorted(patch for part in parts for patch in part) == list(range(grid[0] * grid[1]))
    sizes = {len(part) for part in parts}
    assert max(sizes) <= 4 * min(sizes)  # two patches beside one, both ways, at worst


def test_squares_are_in_raster_order() -> None:
    """On a grid of 14 x 14, the first one is the four patches in the upper left corner."""
    _, parts = squares((14, 14))
    assert parts[0] == [0, 1, 14, 15]
    assert parts[1] == [2, 3, 16, 17]
    assert parts[7] == [28, 29, 42, 43]


def test_covered_pixels_have_the_mean_color() -> None:
    image = torch.ones(1, 3, 6, 9)
    changed = covered(image, (2, 3), [0, 5])
    expected = torch.ones(6, 9)
    expected[:3, :3] = expected[3:, 6:] = 0
    assert torch.equal(changed, expected.expand(1, 3, 6, 9))
    assert bool(image.all())
    with pytest.raises(OptionError, match="patch 6 of 6"):
        covered(image, (2, 3), [6])
