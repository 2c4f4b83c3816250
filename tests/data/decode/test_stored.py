"""Stored images: encoded files and pixels answer the same questions."""

import io
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from conftest import photo
from made_files import encoded, png_of, tiff_of
from vitlab.data.decode.pixels import Box
from vitlab.data.decode.stored import EncodedImage, PixelImage
from vitlab.data.open import open_images
from vitlab.data.sources.pictures import stored
from vitlab.errors import ImageError
from vitlab.models.config import ViTConfig
from vitlab.serve.decoder import decoded


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


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "BMP", "WEBP", "JPEG"])
def test_black_of_8_bits_is_black(kind: str) -> None:
    for mode in ("L", "RGB"):
        file = EncodedImage(encoded(Image.new(mode, (9, 7)), kind))
        assert not file.decode(3).any()


def test_other_channels_stay_or_are_refused() -> None:
    five = PixelImage(np.zeros((4, 4, 5), np.uint8), "array 7")
    assert five.decode(5) is five.pixels
    for have, want in ((5, 3), (2, 1), (3, 5), (4, 3)):
        pixels = PixelImage(np.zeros((4, 4, have), np.uint8), "array 7")
        words = f"^array 7: images of {have} channels cannot be converted to {want}$"
        with pytest.raises(ImageError, match=words):
            pixels.decode(want)


def test_pixels_are_copied_without_loss() -> None:
    for channels in (1, 3, 4):
        pixels = np.random.default_rng(channels).integers(0, 256, (9, 7, channels), np.uint8)
        data, ending = PixelImage(pixels, "x").compact(3, 50)
        assert ending == "png"
        assert np.array_equal(EncodedImage(data, "x").decode(channels), pixels)


EIGHT = np.linspace(0, 255, 36).round().astype(np.int64).reshape(6, 6)
TWELVE = np.linspace(0, 4095, 36).round().astype(np.int64).reshape(6, 6)


def wide(values: NDArray[np.int64], kind: str, bits: int, tags: dict[int, Any]) -> bytes:
    """An image file by Pillow, of 16 or 32 bits."""
    image = Image.fromarray(values.astype(np.uint16 if bits == 16 else np.int32))
    return encoded(image, kind, tiffinfo=tags) if kind == "TIFF" else encoded(image)


SAID: list[tuple[str, int, NDArray[np.int64], dict[int, Any], NDArray[np.int64]]] = [
    ("TIFF", 32, EIGHT, {341: 255}, EIGHT),
    ("TIFF", 32, EIGHT, {281: 255}, EIGHT),
    ("TIFF", 32, TWELVE, {340: 0, 341: 4095}, TWELVE >> 4),
    ("TIFF", 16, TWELVE, {341: 4095}, TWELVE >> 4),
    ("TIFF", 16, TWELVE, {341: 3071}, TWELVE >> 4),  # a range of 12 bits, whatever is used of it
    ("TIFF", 32, TWELVE << 12, {341: 2**24 - 1}, TWELVE >> 4),
    ("TIFF", 16, TWELVE << 4, {341: 4095}, TWELVE >> 4),  # the file has more than it says
    ("PNG", 16, TWELVE << 4, {}, TWELVE >> 4),
]


@pytest.mark.parametrize(("kind", "bits", "values", "tags", "gray"), SAID)
def test_samples_are_scaled_as_the_file_says(kind, bits, values, tags, gray, tmp_path) -> None:
    data = wide(values, kind, bits, tags)
    path = tmp_path / f"a.{kind.lower()}"
    path.write_bytes(data)
    with Image.open(path) as held:
        held.load()
    config = ViTConfig(width=8, depth=1, heads=1, mlp=8, patch=2, image_size=6, channels=1,
                       fit="squash", crop=1.0)  # fmt: skip
    doors = {
        "bytes": EncodedImage(data).decode(1),
        "path": stored(path).decode(1),
        "data": open_images(str(path), "none").every().image(0).decode(1),
        "Pillow, decoded": stored(held).decode(1),
        "a loader's box": EncodedImage(data).decode_box(1, lambda r, c: (0, 0, c, r), (1, 1))[0],
        "service": decoded(EncodedImage(data, "a", (kind,), 10**6), config)[0],
    }
    with Image.open(path) as opened:
        doors["Pillow, opened"] = stored(opened).decode(1)
    for door, pixels in doors.items():
        assert pixels[..., 0].tolist() == gray.tolist(), door


@pytest.mark.parametrize(("kind", "bits"), [("TIFF", 32), ("TIFF", 16), ("PNG", 16)])
def test_what_would_be_black_is_refused_and_the_advice_works(kind: str, bits: int) -> None:
    data = wide(EIGHT, kind, bits, {})
    with pytest.raises(ImageError, match="16 or 32 bits that are at most 255, so black") as refused:
        EncodedImage(data, "dark").decode(1)
    message = str(refused.value)
    assert message.startswith("dark: ")
    assert "save it with 8 bits" in message
    assert "SMaxSampleValue" in message
    eight = encoded(Image.fromarray(np.asarray(Image.open(io.BytesIO(data))).astype(np.uint8)))
    assert EncodedImage(eight).decode(1)[..., 0].tolist() == EIGHT.tolist()
    said = wide(EIGHT, "TIFF", bits, {341: 255})
    assert EncodedImage(said).decode(1)[..., 0].tolist() == EIGHT.tolist()
    with pytest.raises(ImageError, match="so black"):
        stored(Image.open(io.BytesIO(data)).copy()).decode(1)


def test_black_is_black_and_one_bright_pixel_is_enough_in_an_image_of_many_bands() -> None:
    black = np.zeros((6, 6), np.int64)
    assert not EncodedImage(wide(black, "PNG", 16, {})).decode(1).any()
    tall = np.full((3000, 1000), 40, np.int64)  # in three bands
    tall[-1, -1] = 65535
    pixels = EncodedImage(wide(tall, "TIFF", 32, {})).decode(1)
    assert (pixels[0, 0, 0], pixels[-1, -1, 0]) == (0, 255)
    tall[-1, -1] = 40
    with pytest.raises(ImageError, match="at most 40, so black"):
        EncodedImage(wide(tall, "TIFF", 32, {})).decode(1)


def colored(values: NDArray[np.int64], kind: str, tags: dict[int, Any]) -> bytes:
    """A file of 16-bit colors, which Pillow cannot write."""
    three, (rows, columns) = np.repeat(values[..., None], 3, axis=2), values.shape
    if kind == "PNG":
        return png_of(rows, columns, 16, 2, three.astype(">u2"))
    own = {256: columns, 257: rows, 258: (16, 16, 16), 262: 2, 277: 3, 278: rows}
    return tiff_of(three.astype("<u2").tobytes(), own | tags)


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_colors_of_fewer_bits_are_refused_since_pillow_keeps_the_upper_byte(kind: str) -> None:
    fine = EncodedImage(colored(TWELVE << 4, kind, {})).decode(3)
    assert fine[..., 1].tolist() == (TWELVE >> 4).tolist()
    assert not EncodedImage(colored(EIGHT * 0, kind, {})).decode(3).any()
    with pytest.raises(ImageError, match="colors of 16 bits that are below 256, so black"):
        EncodedImage(colored(EIGHT, kind, {})).decode(3)
    if kind == "TIFF":
        with pytest.raises(ImageError, match="colors of 16 bits that are below 4,096, so black"):
            EncodedImage(colored(TWELVE, kind, {281: 4095})).decode(3)
