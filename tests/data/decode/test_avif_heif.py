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
from made_files import encoded
from vitlab.data.decode.formats import FORMATS, format_of
from vitlab.data.decode.stored import EncodedImage
from vitlab.errors import ImageError

HEIC = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(100)


@pytest.mark.parametrize(
    ("mode", "orientation"), [("RGB", 1), ("RGB", 5), ("RGB", 6), ("L", 3), ("RGBA", 6)]
)
def test_avif_has_pillows_pixels(mode: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(photo(0).convert(mode), "AVIF", exif=exif)
    with Image.open(BytesIO(data)) as file:
        want = np.asarray(ImageOps.exif_transpose(file).convert("RGB"))
    file = EncodedImage(data, "a.avif")
    assert file.shape()[:2] == want.shape[:2]
    assert np.array_equal(file.decode(3), want)
    pixels, box = file.decode_box(3, lambda rows, columns: (0, 0, columns, rows), (4, 4))
    assert np.array_equal(pixels, want)
    assert box == (0, 0, want.shape[1], want.shape[0])


@pytest.mark.parametrize("block", [b"", b"\xff", b"x", b"II*\0\xff\xff\xff\xff", b"MM\0*\0\0"])
def test_exif_of_avif_does_not_count(block: bytes) -> None:
    """The file's own transformations turn it; what its EXIF is like is no damage, and warns not."""
    exif = Image.Exif()
    exif[0x0112], exif[0x010F] = 6, "a camera"
    data, raw = encoded(photo(0), "AVIF", exif=exif), exif.tobytes()[6:]
    assert data.count(raw[:8]) == 1
    at = data.index(raw[:8])
    odd = data[:at] + block.ljust(len(raw), b"\xff") + data[at + len(raw) :]
    assert np.array_equal(EncodedImage(odd, "a").decode(3), EncodedImage(data, "a").decode(3))


def test_damaged_avif_files_are_refused() -> None:
    whole, generator = encoded(photo(0), "AVIF"), np.random.default_rng(0)
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


def test_brands_say_which_format_it_is() -> None:
    for brands, kind in (
        (b"heic\0\0\0\0mif1heic", "HEIF"), (b"mif1\0\0\0\0mif1heix", "HEIF"),
        (b"mif1\0\0\0\0mif1avif", "AVIF"), (b"mp42\0\0\0\0isommp42", ""),
    ):  # fmt: skip
        assert format_of(b"\0\0\0\x18ftyp" + brands) == kind
    assert format_of(b"\xff\xff\xff\xffftypisom\0\0\0\0" + b"heix" * 3) == "HEIF"


@pytest.mark.skipif("HEIF" in FORMATS, reason="pillow-heif is installed")
def test_a_heic_photograph_names_the_package_that_reads_it(tmp_path, caplog) -> None:
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
from pathlib import Path
from vitlab.data.decode.formats import SUFFIXES
from vitlab.data.decode.headers import opened

file = Path(sys.argv[1])
with opened(file.read_bytes(), file.name) as header:
    print(file.suffix.lower() in SUFFIXES, sum(header.image.tobytes()))
"""


def read_heic(folder: Path, stub: str, script: str) -> list[str]:
    """What a script prints where a stand-in for the package, which reads PNG, is installed."""
    (folder / "pillow_heif.py").write_text(stub)
    (folder / "a.HEIC").write_bytes(HEIC[:24] + encoded(photo(0)))
    around = environment()
    around["PYTHONPATH"] = os.pathsep.join([str(folder), around["PYTHONPATH"]])
    command = [sys.executable, "-c", script, str(folder / "a.HEIC")]
    done = subprocess.run(command, env=around, capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_heic_is_read_where_the_package_is(tmp_path) -> None:
    """The reader of the package gets the file; a stand-in for it here reads PNG after the brand."""
    want = ["True", str(np.asarray(photo(0)).sum())]
    assert read_heic(tmp_path, STUB, SCRIPT) == want


ODD_STUB = (
    STUB
    + r"""
        self.info |= self.odd

from PIL.Image import Exif
ODD = [
    {}, {"exif": None}, {"exif": b""}, {"exif": ""}, {"exif": "text"}, {"exif": b"Exif"},
    {"exif": Exif()}, {"exif": 7}, {"exif": b"Exif\0\0II*\0"}, {"exif": bytearray(b"Exif")},
    {"icc_profile": None, "dpi": None, "photoshop": None, "xmp": None, "metadata": None},
    {"icc_profile": 1, "dpi": ("a", "b"), "xmp": "text", "orientation": 99},
    {"transparency": None}, {"transparency": ""}, {"transparency": (1, 2)}, {"transparency": b"a"},
]
"""
)
ODD_SCRIPT = """
import sys
from pathlib import Path
import pillow_heif
from vitlab.data.decode.formats import is_image_file
from vitlab.data.decode.stored import EncodedImage

data = Path(sys.argv[1]).read_bytes()
for pillow_heif.HeifImageFile.odd in pillow_heif.ODD:
    image = EncodedImage(data, "a.heic")
    print(*image.shape(), image.decode(3).sum(), sep="x")
print(is_image_file(sys.argv[1]))
"""


def test_metadata_of_heic_that_is_none_or_odd_is_no_damage(tmp_path: Path) -> None:
    *shapes, known = read_heic(tmp_path, ODD_STUB, ODD_SCRIPT)
    rows, columns = photo(0).height, photo(0).width
    assert {*shapes} == {f"{rows}x{columns}x3x{np.asarray(photo(0)).sum()}"}
    assert len(shapes) == 16
    assert known == "True"
