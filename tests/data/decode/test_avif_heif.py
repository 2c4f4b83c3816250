"""AVIF by Pillow, and HEIC by a package that may be missing."""

import os
import subprocess
import sys
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

import vitlab
from conftest import environment, photo
from vitlab.data.decode.formats import FORMATS, format_of
from vitlab.data.decode.stored import EncodedImage
from vitlab.errors import ImageError

HEIC = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(100)


def avif(image: Image.Image, **options: object) -> bytes:
    stream = BytesIO()
    image.save(stream, "AVIF", **options)
    return stream.getvalue()


@pytest.mark.parametrize("orientation", [1, 3, 5, 6])
@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA"])
def test_avif_has_pillows_pixels(mode: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = avif(photo(0).convert(mode), exif=exif)
    with Image.open(BytesIO(data)) as file:
        upright = ImageOps.exif_transpose(file)
    want = np.asarray(upright.convert("RGB"))
    file = EncodedImage(data, "a.avif")
    assert format_of(data) == "AVIF"
    assert file.shape()[:2] == want.shape[:2]
    assert np.array_equal(file.decode(3), want)
    pixels, box = file.decode_box(3, lambda rows, columns: (0, 0, columns, rows), (4, 4))
    assert np.array_equal(pixels, want)
    assert box == (0, 0, want.shape[1], want.shape[0])


def test_damaged_avif_files_are_refused() -> None:
    whole, generator = avif(photo(0)), np.random.default_rng(0)
    for _ in range(60):
        data = bytearray(whole)
        for place in generator.integers(0, len(data), 4):
            data[place] = generator.integers(256)
        try:
            EncodedImage(bytes(data), "a.avif").decode(3)
        except ImageError as error:
            assert "a.avif" in str(error)
    with pytest.raises(ImageError, match=r"a\.avif: damaged"):
        EncodedImage(whole[: len(whole) // 2], "a.avif").decode(3)


@pytest.mark.parametrize(
    ("start", "kind"),
    [
        (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", "HEIF"),
        (b"\0\0\0\x18ftypmif1\0\0\0\0mif1heix", "HEIF"),
        (b"\0\0\0\x18ftypmif1\0\0\0\0mif1avif", "AVIF"),
        (b"\0\0\0\x18ftypmp42\0\0\0\0isommp42", ""),
        (b"\xff\xff\xff\xffftypisom\0\0\0\0" + b"heix" * 3, "HEIF"),
    ],
)
def test_brands_say_which_format_it_is(start: bytes, kind: str) -> None:
    assert format_of(start) == kind


@pytest.mark.skipif("HEIF" in FORMATS, reason="pillow-heif is installed")
def test_a_heic_photograph_names_the_package_that_reads_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    message = r'pillow_heif: pip install "vitlab\[heif\]", or convert them to JPEG'
    with pytest.raises(ImageError, match=message):
        EncodedImage(HEIC, "a.heic").decode(3)
    with pytest.raises(ImageError, match="not a JPEG or PNG image"):
        EncodedImage(HEIC, "a.heic", formats=("JPEG", "PNG")).decode(3)
    (tmp_path / "a.heic").write_bytes(HEIC)
    photo(0).save(tmp_path / "b.png")
    model = vitlab.create("ViT-Ti1/8", 2, 16)
    answers = vitlab.classify(model, [str(tmp_path / "a.heic"), str(tmp_path / "b.png")])
    assert "vitlab[heif]" in answers[0].error
    with caplog.at_level("WARNING", logger="vitlab"):
        assert len(vitlab.classify(model, str(tmp_path))) == 1
    assert f"skipped 1 .heic file in {tmp_path}: " in caplog.text


STUB = """
from PIL.PngImagePlugin import PngImageFile

class HeifImageFile(PngImageFile):
    def _open(self):
        self.fp.seek(24)
        super()._open()
"""
SCRIPT = """
import sys
from vitlab.data.learning import open_to_learn

splits = open_to_learn(sys.argv[1])
print(len(splits.whole), splits.whole.image(0).decode(3).sum())
"""


def test_heic_is_read_where_the_package_is(tmp_path: Path) -> None:
    """The reader of the package gets the file; a stand-in for it here reads PNG after the brand."""
    (tmp_path / "pillow_heif.py").write_text(STUB)
    for name in ("a", "b"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(3):
            stream = BytesIO()
            photo(number).save(stream, "PNG")
            file = tmp_path / "photos" / name / f"{number}.HEIC"
            file.write_bytes(HEIC[:24] + stream.getvalue())
    around = environment()
    around["PYTHONPATH"] = os.pathsep.join([str(tmp_path), around["PYTHONPATH"]])
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "photos")]
    done = subprocess.run(command, env=around, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["6", str(np.asarray(photo(0)).sum())]
