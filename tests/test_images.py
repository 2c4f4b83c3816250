"""What an image must be: one mean for all channels, squares as one number, refusals."""

from typing import Any

import pytest

from vitlab.errors import OptionError
from vitlab.images import ImageSpec


def test_one_number_serves_all_channels_and_a_square() -> None:
    spec = ImageSpec(image_size=(32, 32), mean=0.4, std=(0.1, 0.2, 0.3))
    assert spec.image_size == 32
    assert spec.size == (32, 32)
    assert spec.mean == (0.4, 0.4, 0.4)
    assert spec.std == (0.1, 0.2, 0.3)
    assert ImageSpec(image_size=[32, 64]).size == (32, 64)
    assert ImageSpec(channels=1).mean == (0.5,)


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"mean": (0.1, 0.2)}, "mean needs 3 numbers, one per channel, not 2: give one number for "
                               "all channels, such as mean=0.5 and std=0.5 (--mean 0.5 --std 0.5)"),
        ({"std": 0}, "std must be above 0, not 0"),
        ({"std": (1, float("nan"), 1)}, "std must be a list of numbers above 0, not (1, nan, 1)"),
        ({"image_size": 0}, "image_size must be at least 1, not 0"),
        ({"image_size": (32, 32, 3)}, "image_size must be a whole number or two whole numbers, "
                                      "at least 1, not (32, 32, 3)"),
        ({"channels": 2.5}, "channels must be a whole number at least 1, not 2.5"),
        ({"crop": 1.5}, "crop must be above 0 and at most 1, not 1.5"),
        ({"fit": "pad"}, "fit must be one of crop, squash, native, not pad"),
    ],
)  # fmt: skip
def test_refusals(choices: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError) as caught:
        ImageSpec(**choices)
    assert str(caught.value) == message


def test_two_equal_numbers_are_not_one_for_all_channels() -> None:
    with pytest.raises(OptionError, match="mean needs 3 numbers, one per channel"):
        ImageSpec(mean=(0.5, 0.5))
    assert ImageSpec(channels=1, mean=(0.5, 0.5, 0.5)).mean == (0.5,)
    assert ImageSpec(channels=2, mean=(0.5, 0.5)).mean == (0.5, 0.5)
