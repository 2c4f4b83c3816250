"""Images that would take much memory, or whose library writes on the user's terminal."""

import ctypes
import io
import logging
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitlab
from conftest import call, photo
from made_files import encoded, png_of, tiff_of
from vitlab.data.decode.headers import complaints_are_errors
from vitlab.data.decode.stored import EncodedImage
from vitlab.data.sources.pictures import stored
from vitlab.errors import ImageError


def damaged(compression: str) -> bytes:
    """A TIFF whose strip was overwritten in the middle."""
    noise = np.random.default_rng(0).integers(0, 256, (64, 64), np.uint8)
    image = Image.fromarray(noise)
    data = encoded(image.convert("1") if "group" in compression else image, "TIFF",
                   compression=compression)  # fmt: skip
    with Image.open(io.BytesIO(data)) as stored:
        start, length = stored.tag_v2[273][0], stored.tag_v2[279][0]  # type: ignore[attr-defined]
    middle = start + length // 2
    return data[:middle] + bytes([0x00, 0xFF, 0x5A, 0x01] * 4) + data[middle + 16 :]


def test_damaged_tiffs_are_refused_without_a_word(capfd) -> None:
    for compression in ("group4", "tiff_lzw", "tiff_adobe_deflate"):
        with pytest.raises(ImageError, match=r"^scan\.tif: damaged"):
            EncodedImage(damaged(compression), "scan.tif").decode(3)
    assert capfd.readouterr().err == ""


def test_messages_of_others_are_kept(capfd: pytest.CaptureFixture[str]) -> None:
    image = Image.new("L", (1, 1))
    image.format = "TIFF"
    refused = pytest.raises(ImageError, match=r"damaged TIFF \(Fax4Decode: Bad code word\.\)")
    with refused, complaints_are_errors(image):
        print("before", file=sys.stderr, flush=True)
        os.write(2, b"Fax4Decode: Bad code word.\nvitlab: one of ours.\nLZWDecode: More.\n")
    with pytest.raises(KeyError), complaints_are_errors(image):
        os.write(2, b"and this\n")
        raise KeyError
    with complaints_are_errors(image):
        pass
    assert capfd.readouterr().err == "before\nvitlab: one of ours.\nand this\n"


def test_a_side_has_a_limit() -> None:
    for columns, rows in ((1, 50_000_000), (50_000_000, 1), (1, 65_536)):
        with pytest.raises(ImageError, match="exceed the limit of 65,535 per side"):
            EncodedImage(png_of(rows, columns, 8, 0, [])).shape()
    assert EncodedImage(png_of(65_535, 1, 8, 0, [])).shape() == (65_535, 1, 1)


def peak(work: Callable[[], object]) -> int:
    """Bytes of memory that some work takes at most, in a process of its own."""
    trim = ctypes.CDLL(None).malloc_trim
    read, write = os.pipe()
    if not (child := os.fork()):
        try:
            trim(0)
            Path("/proc/self/clear_refs").write_text("5")  # the mark is set to what there is

            def mark() -> int:
                lines = Path("/proc/self/status").read_text().splitlines()
                return next(1024 * int(each.split()[1]) for each in lines if "VmHWM" in each)

            before = mark()
            work()
            os.write(write, str(mark() - before).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as stream:
        found = stream.read()
    os.waitpid(child, 0)
    return int(found)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_of_an_image() -> None:
    """Four bytes per pixel in Pillow, three in the result; at 50 megapixels below 512 MB."""
    data = encoded(Image.new("F", (4000, 4000)), "TIFF", compression="tiff_lzw")
    EncodedImage(encoded(photo(1), "PNG")).decode(3)  # so that everything is imported
    blocks = [bytearray(2**20 * size) for size in range(1, 30)]
    del blocks[1::2]  # a heap with holes
    assert 7 * 16e6 * 0.5 < peak(lambda: EncodedImage(data).decode(3)) < 16e6 * 512 / 50


def test_commands_are_silent_about_odd_files(tmp_path, capfd) -> None:
    """One line of ours per damaged image, and nothing else on stderr."""
    model, name = tmp_path / "model", "ViT(width=16,depth=1,heads=2,mlp=32)/4"
    vitlab.save(vitlab.create(name, classes=2, image_size=8, labels=("a", "b")), model)
    (tmp_path := tmp_path / "photos").mkdir()
    for number, kind in enumerate(("group4", "tiff_lzw")):
        (tmp_path / f"{number}.tif").write_bytes(damaged(kind))
    odd = {37724: b"odd", 700: b"x"}
    photo(1).save(tmp_path / "sound.tif", compression="tiff_lzw", tiffinfo=odd)
    photo(2).save(tmp_path / "sound.png")
    (tmp_path / "cut.gif").write_bytes(encoded(photo(3), "GIF")[:200])
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "huge.bmp").touch()
    os.truncate(tmp_path / "huge.bmp", 2**36)
    words = ["predict", str(model), str(tmp_path), "--workers", "0", "--engine", "plain"]
    status, out, err = call(capfd, *words)
    assert status == 0, err
    lines = sorted(err.splitlines())
    lines = [line for line in lines if not line.startswith("4 of 6 images cannot be read")]
    assert [line.partition(": ")[0] for line in lines] == ["skipped"] * 4
    names = ["0.tif", "1.tif", "cut.gif", "huge.bmp"]
    assert [Path(line.split(": ")[1]).name for line in lines] == names
    assert sum("sound" in line for line in out.splitlines()) == 2


def test_pillows_logger_is_not_heard_beside_the_error(tmp_path, capfd, monkeypatch) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # as in a command
    tags = {256: 4, 257: 4, 258: 8, 277: 9, 278: 4}  # 9 samples a pixel
    (tmp_path / "a.tif").write_bytes(many := tiff_of(bytes(16), tags))
    for picture in (tmp_path / "a.tif", many):
        with pytest.raises(ImageError, match="samples per pixel") as refused:
            stored(picture, "a.tif").decode(3)
        assert str(refused.value).startswith("a.tif: damaged or unsupported image")
    assert capfd.readouterr() == ("", "")


def test_an_image_of_pillow_that_is_decoded_here_warns_of_nothing(capfd) -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 40, 3), np.uint8))
    data = bytearray(encoded(noise, "TIFF", compression="tiff_lzw"))
    data[2000:2020] = b"\xff" * 20
    with pytest.raises(ImageError, match=r"a\.tif: damaged"):
        EncodedImage(bytes(data), "a.tif").decode(3)
    exif = b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x09\0\0\0\x01"  # cut short
    with warnings.catch_warnings(action="ignore"):
        opened = Image.open(io.BytesIO(encoded(noise, "JPEG", exif=exif)))
    with warnings.catch_warnings(action="error"):
        with pytest.raises(ImageError, match=r"a\.tif: damaged"):
            stored(Image.open(io.BytesIO(data)), "a.tif")
        assert stored(opened, "a.jpg").shape() == (40, 40, 3)
    assert capfd.readouterr() == ("", "")
