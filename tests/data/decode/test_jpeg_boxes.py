"""Several boxes of one JPEG: what each would be alone, or nothing."""

import math

import numpy as np
import pytest

from made_jpegs import COLUMNS, KINDS, ROWS
from vitlab.data.decode.jpeg import jpeg_boxes
from vitlab.errors import ImageError

MANY = 10**6
BOXES = [(0, 0, 40, 30), (10, 20, 190, 140), (5.5, 70.25, 203, 150), (60, 3, 90, 20)]


@pytest.mark.parametrize("least", [(10, 10), (50, 60), (MANY, MANY)])
@pytest.mark.parametrize("kind", ["4:4:4", "4:2:0", "progressive", "gray", "restarts"])
def test_several_boxes_are_what_each_is_alone(kind: str, least: tuple[int, int]) -> None:
    data = KINDS[kind]
    choices = [lambda rows, columns, box=box: box for box in BOXES]
    together = jpeg_boxes(data, MANY, choices, least)
    for choose, (pixels, box) in zip(choices, together, strict=True):
        alone = jpeg_boxes(data, MANY, [choose], least)
        [(own, place)] = alone
        assert box == place
        rows = math.ceil(box[3])
        assert rows <= min(len(pixels), len(own))
        assert np.array_equal(pixels[:rows], own[:rows])


def test_what_cannot_be_shared_is_left_out() -> None:
    data = KINDS["4:2:0"]
    whole = [lambda rows, columns: (0, 0, columns, rows)] * 2
    odd = data.replace(b"\xff\xdb\0C\0", b"\xff\xdb\0C\x09")  # a table of no known number
    assert odd != data
    assert jpeg_boxes(odd, MANY, whole[:1], (9, 9)) == []
    assert jpeg_boxes(data, ROWS * COLUMNS, whole, (9, 9))
    assert jpeg_boxes(data, ROWS * COLUMNS - 1, whole, (9, 9)) == []
    for other in (odd, KINDS["turned 6"], KINDS["cmyk"], b"no image"):
        assert jpeg_boxes(other, MANY, whole, (9, 9)) == []
    with pytest.raises(ImageError):
        jpeg_boxes(data[:-300], MANY, whole, (9, 9))
