"""Images that would take much memory, or whose library writes on the user's terminal."""

import ctypes
import io
import os
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from conftest import environment, photo
from vitlab.data.decode.headers import complaints_are_errors
from vitlab.data.decode.stored import EncodedImage
from vitlab.errors import ImageError


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


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


@pytest.mark.parametrize("compression", ["group4", "tiff_lzw", "tiff_adobe_deflate"])
def test_damaged_tiffs_are_refused_without_a_word(
    compression: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ImageError, match=r"^scan\.tif: damaged"):
        EncodedImage(damaged(compression), "scan.tif").decode(3)
    assert capfd.readouterr().err == ""


def test_messages_of_others_are_kept(capfd: pytest.CaptureFixture[str]) -> None:
    refused = pytest.raises(ImageError, match=r"damaged TIFF \(Fax4Decode: Bad code word\.\)")
    with refused, complaints_are_errors():
        print("before", file=sys.stderr, flush=True)
        os.write(2, b"Fax4Decode: Bad code word.\nvitlab: one of ours.\nLZWDecode: More.\n")
    with pytest.raises(KeyError), complaints_are_errors():
        os.write(2, b"and this\n")
        raise KeyError
    with complaints_are_errors():
        pass
    assert capfd.readouterr().err == "before\nvitlab: one of ours.\nand this\n"


def png_header(columns: int, rows: int) -> bytes:
    start = struct.pack(">IIBBBBB", columns, rows, 8, 0, 0, 0, 0)
    chunks = [(b"IHDR", start), (b"IDAT", b""), (b"IEND", b"")]
    parts = [
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


@pytest.mark.parametrize("size", [(1, 50_000_000), (50_000_000, 1), (1, 65_536)])
def test_a_side_has_a_limit(size: tuple[int, int]) -> None:
    with pytest.raises(ImageError, match="exceed the limit of 65,535 per side"):
        EncodedImage(png_header(*size)).shape()
    assert EncodedImage(png_header(1, 65_535)).shape() == (65_535, 1, 1)


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


IMAGES: dict[str, Callable[[], bytes]] = {
    "floats": lambda: encoded(Image.new("F", (4000, 4000)), "TIFF", compression="tiff_lzw"),
    "CMYK": lambda: encoded(Image.new("CMYK", (4000, 4000)), "JPEG"),
}


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("kind", IMAGES)
def test_memory_of_an_image(kind: str) -> None:
    """Four bytes per pixel in Pillow, three in the result; at 50 megapixels below 512 MB."""
    data = IMAGES[kind]()
    EncodedImage(encoded(photo(1), "PNG")).decode(3)  # so that everything is imported
    blocks = [bytearray(2**20 * size) for size in range(1, 30)]
    del blocks[1::2]  # a heap with holes
    assert 7 * 16e6 * 0.5 < peak(lambda: EncodedImage(data).decode(3)) < 16e6 * 512 / 50


def test_commands_are_silent_about_odd_files(tmp_path: Path, digits_run: Path) -> None:
    """One line of ours per damaged image, and nothing else on stderr."""
    for number, kind in enumerate(("group4", "tiff_lzw")):
        (tmp_path / f"{number}.tif").write_bytes(damaged(kind))
    photo(1).save(
        tmp_path / "sound.tif", compression="tiff_lzw", tiffinfo={37724: b"odd", 700: b"x"}
    )
    photo(2).save(tmp_path / "sound.png")
    (tmp_path / "cut.gif").write_bytes(encoded(photo(3), "GIF")[:200])
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "huge.bmp").touch()
    os.truncate(tmp_path / "huge.bmp", 2**36)
    done = subprocess.run(
        [sys.executable, "-m", "vitlab", "predict", str(digits_run), str(tmp_path), "--workers",
         "1"],
        capture_output=True, text=True, env=environment(), timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = sorted(done.stderr.splitlines())
    lines = [line for line in lines if not line.startswith("4 of 6 images cannot be read")]
    assert [line.partition(": ")[0] for line in lines] == ["skipped"] * 4
    names = ["0.tif", "1.tif", "cut.gif", "huge.bmp"]
    assert [Path(line.split(": ")[1]).name for line in lines] == names
    assert sum("sound" in line for line in done.stdout.splitlines()) == 2
