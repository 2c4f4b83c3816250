"""Boxes and their resizing, against Pillow and by hand."""

import numpy as np
import pytest
from PIL import Image

from vitlab.data.decode.crop import crop_resize, cut_resize
from vitlab.data.decode.crop_box import DRAWS, center_box, random_box

ROWS, COLUMNS = 7, 11
RGB = np.random.default_rng(0).integers(0, 256, (ROWS, COLUMNS, 3), dtype=np.uint8)
ALPHA = np.random.default_rng(1).integers(0, 256, (ROWS, COLUMNS, 1), dtype=np.uint8)


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize(
    ("channels", "box"),
    [(3, (0, 0, 11, 7)), (3, (1.25, 0.5, 9.75, 6.5)), (1, (3, 2, 4, 3)), (4, (0, 0, 11, 6.9))],
)
def test_crop_resize_is_pillows(channels, interpolation, box):
    image = np.concatenate([RGB, ALPHA], axis=2)[..., :channels]
    source = Image.fromarray(image[..., 0] if channels == 1 else image)
    method = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
    for rows, columns in [(4, 5), (20, 31), (7, 11), (1, 1)]:
        result = crop_resize(image, box, rows, columns, interpolation)
        expected = np.asarray(source.resize((columns, rows), method[interpolation], box=box))
        assert np.array_equal(result, expected.reshape(rows, columns, channels))
        assert result.dtype == np.uint8
        assert result.flags.c_contiguous
        assert result.flags.writeable


@pytest.mark.parametrize(
    ("channels", "interpolation", "most"),
    [(3, "bilinear", 1), (3, "bicubic", 40), (1, "bicubic", 40), (4, "bilinear", 1)],
)
def test_cut_resize_is_pillows_on_whole_pixels(channels, interpolation, most):
    generator = np.random.default_rng(2)
    noise = generator.integers(0, 256, (90, 120, 4), np.uint8)[..., :channels]
    image = np.asarray(Image.fromarray(noise.squeeze()).resize((240, 180), 2))
    image = image.reshape(180, 240, channels)
    for rows, columns in [(64, 64), (50, 90), (200, 260)]:
        for _ in range(5):
            left, top = generator.uniform(0, 100, 2)
            right, bottom = left + generator.uniform(40, 100), top + generator.uniform(30, 79)
            result = cut_resize(image, (left, top, right, bottom), rows, columns, interpolation)
            whole = image[round(top) : round(bottom), round(left) : round(right)]
            box = (0, 0, *whole.shape[1::-1])
            expected = crop_resize(whole, box, rows, columns, interpolation)
            apart = np.abs(result.astype(int) - expected)
            assert apart.max() <= most
            assert (apart > 1).mean() < 0.02
            assert result.dtype == np.uint8
            assert result.flags.c_contiguous  # by the kernel that needs no copy to planes


def test_cut_resize_of_less_than_a_pixel():
    found = cut_resize(RGB, (10.6, 6.7, 10.9, 6.9), 3, 2)
    assert found.tolist() == [[RGB[6, 10].tolist()] * 2] * 3


def test_crop_resize_copies():
    image = RGB.copy()
    same = crop_resize(image, (0, 0, COLUMNS, ROWS), ROWS, COLUMNS)
    assert np.array_equal(same, image)
    same[:] = 0
    assert np.array_equal(image, RGB)
    view = np.asfortranarray(RGB)
    assert crop_resize(view, (0, 0, COLUMNS, ROWS), ROWS, COLUMNS).flags.c_contiguous


@pytest.mark.parametrize(
    ("arguments", "box"),
    [
        ((375, 500, 224, 224, 1.0), (62.5, 0, 437.5, 375)),
        ((500, 375, 224, 224, 1.0), (0, 62.5, 375, 437.5)),
        ((256, 256, 224, 224, 0.875), (16, 16, 240, 240)),
        ((400, 1000, 100, 200, 1.0), (100, 0, 900, 400)),
        ((400, 1000, 100, 200, 0.5), (300, 100, 700, 300)),
        ((49, 147, 1, 3, 1.0), (0, 0, 147, 49)),
        ((7, 49, 7, 49, 1.0), (0, 0, 49, 7)),
        ((49, 1, 49, 1, 1.0), (0, 0, 1, 49)),  # exactly, though 49 * (1 / 49) is not 1
        ((1, 1, 224, 224, 1.0), (0, 0, 1, 1)),
    ],
)
def test_center_box(arguments, box):
    assert center_box(*arguments) == box


def test_random_box_stays_inside():
    generator = np.random.default_rng(7)
    for _ in range(300):
        rows, columns = np.exp(generator.uniform(0, 8, 2)).astype(int).tolist()
        out = generator.integers(1, 513, 2).tolist()
        area = tuple(np.sort(generator.uniform(0.05, 1, 2)))
        aspect = tuple(np.sort(generator.uniform(0.2, 5, 2)))
        arguments = (rows, columns, *out, area, aspect, generator.random(DRAWS).tolist())
        left, top, right, bottom = box = random_box(*arguments)
        assert 0 <= left < right <= columns
        assert 0 <= top < bottom <= rows
        ratio = (right - left) / (bottom - top) / (out[1] / out[0])
        assert aspect[0] * (1 - 1e-6) <= ratio <= aspect[1] * (1 + 1e-6)
        assert random_box(*arguments) == box


def test_random_box_by_hand():
    rest = [0.99] * 18
    # a quarter of 100 x 400, as wide as high: 100 x 100, at 0.25 of the 300 spare columns
    draws = [0.5, 0.5, *rest, 0.25, 0.75]
    box = random_box(100, 400, 8, 8, (0.0, 0.5), (0.5, 2.0), draws)
    assert box == pytest.approx((75, 0, 175, 100))
    # the first try (all of the area) does not fit, the second does: log-uniform, 4**0.25 / 2
    draws = [0.999, 0.5, 0.125, 0.25, *rest[2:], 0.0, 0.5]
    left, top, right, bottom = random_box(100, 400, 8, 8, (0.0, 1.0), (0.5, 2.0), draws)
    assert (right - left) * (bottom - top) == pytest.approx(0.125 * 40_000)
    assert (right - left) / (bottom - top) == pytest.approx(0.5 * 4**0.25)
    assert (left, top + bottom) == (0, pytest.approx(100))


@pytest.mark.parametrize(
    ("rows", "columns", "box"),
    [
        (100, 1000, (500 - 200 / 3, 0, 500 + 200 / 3, 100)),  # too wide: 4 to 3
        (1000, 100, (0, 500 - 200 / 3, 100, 500 + 200 / 3)),
        (90, 100, (0, 0, 100, 90)),  # within the range: all of it
    ],
)
def test_random_box_falls_back(rows, columns, box):
    draws = [0.999999] * DRAWS
    area, aspect = (0.999, 1.0), (3 / 4, 4 / 3)
    if rows == 90:
        draws = [0.999999, 0.5] * 10 + [0.0, 0.0]
    assert random_box(rows, columns, 224, 224, area, aspect, draws) == pytest.approx(box)


def test_random_box_is_uniform():
    """Where every box fits: area uniform, log of the aspect uniform, position uniform."""
    generator = np.random.default_rng(6)
    options = (400, 400, 64, 128, (0.1, 0.4), (0.5, 1.0))
    drawn = generator.random((20_000, DRAWS)).tolist()
    boxes = np.array([random_box(*options, own) for own in drawn])
    left, top, right, bottom = boxes.T
    width, height = right - left, bottom - top
    share = width * height / 400**2
    ratio = np.log(width / height / 2) / np.log(2) + 1
    for values, low, high in [
        (share, 0.1, 0.4), (ratio, 0, 1), (left / (400 - width), 0, 1), (top / (400 - height), 0, 1)
    ]:  # fmt: skip
        counts, _ = np.histogram(values, bins=10, range=(low, high))
        assert counts.sum() == 20_000
        assert np.abs(counts - 2000).max() < 250  # over five standard deviations
