"""What is sent has the pixels of what was given, for models of every number of channels."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from conftest import photo
from vitlab.client.sendable import encoded
from vitlab.data.sources.pictures import stored
from vitlab.errors import ImageError

RGB = photo(1)
ALPHA = Image.merge("RGBA", [*RGB.split(), Image.linear_gradient("L").resize(RGB.size)])
DEEP = Image.fromarray(np.arange(600, dtype=np.uint16).reshape(20, 30) * 109)


def clear(image: Image.Image, color: Any) -> Image.Image:
    image.info["transparency"] = color
    return image


MODES: dict[str, Image.Image] = {
    **{mode: RGB.convert(mode) for mode in ("1", "L", "P", "RGB", "CMYK", "YCbCr", "HSV", "LAB")},
    **{mode: ALPHA.convert(mode) for mode in ("LA", "La", "RGBA", "RGBa")},
    "palette with alpha": ALPHA.quantize(16),
    "I;16": DEEP,
    "I": DEEP.convert("I"),
    "F": Image.fromarray(np.linspace(0, 1, 600, dtype=np.float32).reshape(20, 30)),
    "RGBX": RGB.convert("RGBX"),
    "one gray is clear": clear(RGB.convert("L"), RGB.convert("L").getpixel((3, 3))),
    "one color is clear": clear(RGB.copy(), RGB.getpixel((3, 3))),
    "one deep gray is clear": clear(DEEP.copy(), 109 * 7),
}


@pytest.mark.parametrize("mode", MODES)
def test_images_of_pillow_keep_their_pixels(mode: str) -> None:
    for channels in (1, 3, 4):
        want = stored(MODES[mode]).decode(channels)
        np.testing.assert_array_equal(stored(encoded(MODES[mode], "x")).decode(channels), want)


def test_arrays_and_tensors_keep_their_pixels() -> None:
    generator = np.random.default_rng(0)
    for shape in ((9, 7), (9, 7, 1), (9, 7, 3), (9, 7, 4)):
        array = generator.integers(0, 256, shape, np.uint8)
        want = array.reshape(9, 7, -1)
        got = stored(encoded(array, "x")).decode(want.shape[2])
        np.testing.assert_array_equal(got, want)
        tensor = torch.from_numpy(want).permute(2, 0, 1)
        assert encoded(tensor, "x") == encoded(array, "x")
    flipped = generator.integers(0, 256, (9, 7, 3), np.uint8)[::-1, ::-1]
    np.testing.assert_array_equal(stored(encoded(flipped, "x")).decode(3), flipped)


def test_files_and_bytes_are_sent_as_they_are(tmp_path: Path) -> None:
    file = tmp_path / "photo.jpg"
    RGB.save(file, quality=80)
    data = file.read_bytes()
    assert encoded(file, "x") == encoded(str(file), "x") == encoded(data, "x") == data
    with Image.open(file) as image:
        assert encoded(image, "x") == data
    assert encoded(b"anything", "x") == b"anything"  # the service knows what it can read


def test_orientation_is_applied_once_and_metadata_stays_here() -> None:
    turned = RGB.copy()
    turned.getexif()[0x0112] = 6
    turned.getexif()[0x8298] = "somebody"
    turned.info["icc_profile"] = b"profile" * 9
    data = encoded(turned, "x")
    np.testing.assert_array_equal(
        stored(data).decode(3), np.asarray(RGB.transpose(Image.Transpose.ROTATE_270))
    )
    assert b"somebody" not in data
    assert b"iCCP" not in data


def test_what_is_no_image_is_refused_by_its_name(tmp_path: Path) -> None:
    for wrong, text in (
        (tmp_path / "absent.jpg", "the photo: no such file"),
        (np.zeros((4, 4, 3), np.float32), "the photo has numbers of type float32"),
        (12, "the photo is of type int"),
        (b"", "the photo: the file is empty"),
        (Image.fromarray(np.full((4, 4), 300.0, np.float32)), "the photo: floats from 300"),
    ):
        with pytest.raises(ImageError, match=text):
            encoded(wrong, "the photo")
