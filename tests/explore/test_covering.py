"""Which patches are covered together."""

from typing import Any

import pytest
import torch

import vitlab
from vitlab.errors import OptionError
from vitlab.explore.first_pass import first_pass
from vitlab.explore.views import pixels_of
from vitlab.inspect.evidence import without


def test_covered_pixels_have_the_mean_color() -> None:
    """Of a model whose cells are not squares of pixels, they are those that a cell is drawn as."""
    seen = first_pass(tiny(), torch.ones(1, 3, 24, 36))
    assert seen.grid == (4, 6)
    assert pixels_of(seen, [0, 23]) == [(0, 0, 6, 6), (18, 30, 24, 36)]
    with pytest.raises(OptionError, match="patch 24 of 24"):
        pixels_of(seen, [24])


def test_the_prediction_without_squares_is_that_of_the_covered_image() -> None:
    model, image = tiny(), torch.randn(1, 3, 24, 36)
    copy = image.clone()
    copy[:, :, :6, :6] = copy[:, :, 18:, 30:] = 0
    found = without(model, image, [[(0, 0, 6, 6), (18, 30, 24, 36)], []])
    with torch.inference_mode():
        expected = model(torch.cat([copy, image])).log_softmax(-1)
    torch.testing.assert_close(found, expected)


def tiny() -> Any:
    torch.manual_seed(0)
    name = "ViT(width=16,depth=1,heads=2,mlp=16)/6"
    return vitlab.create(name, 3, (24, 36), zero_head=False).eval()
