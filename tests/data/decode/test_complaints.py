"""What Pillow and its libraries say of an image: never without the image's name."""

import io
import logging
import struct
import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitlab.data.decode.stored import EncodedImage
from vitlab.data.sources.pictures import stored
from vitlab.errors import ImageError


def many_samples() -> bytes:
    """A TIFF that says it has 9 samples per pixel, of which Pillow's logger complains."""
    tags = {256: 4, 257: 4, 258: 8, 259: 1, 262: 1, 273: 8, 277: 9, 278: 4, 279: 16}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    start = struct.pack("<2sHI", b"II", 42, 24)
    return start + bytes(16) + struct.pack("<H", len(tags)) + entries + bytes(4)


def test_pillows_logger_is_not_heard_beside_the_error_that_names_the_image(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # as in a command
    (tmp_path / "a.tif").write_bytes(many_samples())
    for picture in (tmp_path / "a.tif", many_samples()):
        with pytest.raises(ImageError, match="samples per pixel") as refused:
            stored(picture, "a.tif").decode(3)
        assert str(refused.value).startswith("a.tif: damaged or unsupported image")
    assert capfd.readouterr() == ("", "")


def test_an_image_of_pillow_that_is_decoded_here_warns_of_nothing(
    capfd: pytest.CaptureFixture[str],
) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (40, 40, 3), np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "TIFF", compression="tiff_lzw")
    data = bytearray(stream.getvalue())
    data[2000:2020] = b"\xff" * 20
    with pytest.raises(ImageError, match=r"a\.tif: damaged"):
        EncodedImage(bytes(data), "a.tif").decode(3)
    exif = b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x09\0\0\0\x01"  # cut short
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "JPEG", exif=exif)
    with warnings.catch_warnings(action="ignore"):
        opened = Image.open(stream)
    with warnings.catch_warnings(action="error"):
        with pytest.raises(ImageError, match=r"a\.tif: damaged"):
            stored(Image.open(io.BytesIO(data)), "a.tif")
        assert stored(opened, "a.jpg").shape() == (40, 40, 3)
    assert capfd.readouterr() == ("", "")
