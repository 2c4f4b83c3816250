"""Stored images: encoded files and pixels answer the same questions."""

import numpy as np
import pytest

from conftest import photo
from made_files import encoded
from vitlab.data.decode.formats import ENDINGS, FORMATS, SUFFIXES, format_of
from vitlab.data.decode.pixels import Box
from vitlab.data.decode.stored import EncodedImage, PixelImage
from vitlab.errors import ImageError


def upper_half(rows: int, columns: int) -> Box:
    return 0, 0, columns, rows / 2


def test_a_file_and_its_pixels_are_the_same_image() -> None:
    picture = photo(3, 20, 30)
    file, pixels = EncodedImage(encoded(picture)), PixelImage(np.asarray(picture), "here.img")
    assert file.shape() == pixels.shape() == (20, 30, 3)
    for channels in (1, 3, 4):
        assert np.array_equal(file.decode(channels), pixels.decode(channels))
        one, other = (each.decode_box(channels, upper_half, (5, 5)) for each in (file, pixels))
        assert one[1] == other[1] == (0, 0, 30, 10)
        assert np.array_equal(one[0], other[0])
    assert file.content() == file.data
    assert pixels.content() == np.asarray(picture).tobytes()


def test_gray_pixels_get_color_and_back() -> None:
    gray = np.random.default_rng(0).integers(0, 256, (5, 6, 1), np.uint8)
    image = PixelImage(gray, "x")
    assert image.shape() == (5, 6, 1)
    assert np.array_equal(image.decode(3), np.repeat(gray, 3, 2))
    assert np.array_equal(PixelImage(image.decode(3), "x").decode(1), gray)
    assert (image.decode(4)[..., 3] == 255).all()


def test_other_channels_stay_or_are_refused() -> None:
    five = PixelImage(np.zeros((4, 4, 5), np.uint8), "array 7")
    assert five.decode(5) is five.pixels
    for have, want in ((5, 3), (2, 1), (3, 5), (4, 3)):
        pixels = PixelImage(np.zeros((4, 4, have), np.uint8), "array 7")
        words = f"^array 7: images of {have} channels cannot be converted to {want}$"
        with pytest.raises(ImageError, match=words):
            pixels.decode(want)


def test_errors_name_the_image() -> None:
    bad = EncodedImage(b"GIF89a", "some/file.gif")
    for call in (bad.shape, lambda: bad.decode(3), lambda: bad.compact(9, 90)):
        with pytest.raises(ImageError, match=r"^some/file\.gif: "):
            call()


def test_pixels_are_copied_without_loss() -> None:
    for channels in (1, 3, 4):
        pixels = np.random.default_rng(channels).integers(0, 256, (9, 7, channels), np.uint8)
        data, ending = PixelImage(pixels, "x").compact(3, 50)
        assert ending == "png"
        assert np.array_equal(EncodedImage(data, "x").decode(channels), pixels)


def test_formats_are_known_by_their_first_bytes() -> None:
    for kind in FORMATS:
        assert format_of(encoded(photo(0), kind)) == kind
        assert {f".{ending}" for ending in ENDINGS[kind]} <= SUFFIXES
    for data in (b"", b"RIFF0000WAVE", b"%PDF", b"\x89PN"):
        assert format_of(data) == ""
