"""Endings and first bytes: which files are images, which are not read, and what a line says."""

import os
import socket
from collections import Counter
from pathlib import Path

import pytest
from PIL import Image

from conftest import photo
from made_files import encoded
from vitlab.data.decode import formats
from vitlab.data.decode.formats import (
    CLIPS,
    ENDINGS,
    FORMATS,
    KNOWN,
    LISTED,
    SUFFIXES,
    UNREAD,
    UNREAD_CLIPS,
    USUAL_SUFFIXES,
    advice,
    file_kind,
    image_kind,
    is_image_file,
    unread_lines,
)
from vitlab.data.decode.stored import EncodedImage
from vitlab.errors import ImageError

# What Windows, browsers, Python's mimetypes, Pillow and the web give to files of these formats.
EVERYBODYS = {
    "JPEG": ".jpg .jpeg .jpe .jif .jfif .jfi .pjpeg .pjp .mpo .jpg_large .jpg:large .jpg-large",
    "PNG": ".png .apng .png_large",
    "BMP": ".bmp .dib",
    "TIFF": ".tif .tiff .btf .tf8",
    "GIF": ".gif",
    "WEBP": ".webp",
    "AVIF": ".avif .avifs",
    "HEIF": ".heic .heif .hif",
    "Netpbm": ".ppm .pgm .pbm .pnm",
    "JPEG 2000": ".jp2 .j2k .jpx .jpf .j2c .jpc",
    "JPEG XL": ".jxl",
    "Targa": ".tga",
    "camera raw": ".dng .cr2 .nef .arw .raf",
}
MADE = [kind for kind in FORMATS if kind != "HEIF"]
FIRST_BYTES = {
    "Netpbm": encoded(photo(0), "PPM"),
    "JPEG 2000": b"\0\0\0\x0cjP  \r\n\x87\n" + bytes(40),
    "JPEG XL": b"\xff\x0a" + bytes(40),
    "JPEG XR": b"II\xbc\x01" + bytes(40),
    "camera raw": b"II*\0\x10\0\0\0CR\x02\0" + bytes(40),
    "DICOM": bytes(128) + b"DICM",
    "OpenEXR": b"v/1\x01" + bytes(40),
    "FITS": b"SIMPLE  =                    T",
    "DirectDraw": b"DDS " + bytes(40),
    "SVG": b"<svg xmlns='http://www.w3.org/2000/svg'/>",
    "Photoshop": b"8BPS\0\1" + bytes(40),
    "GIMP": b"gimp xcf v011",
    "icon": b"\0\0\1\0\1\0" + bytes(40),
    "QOI": b"qoif" + bytes(40),
}
NO_IMAGES = [
    b"", b"\0", b"BM", b"BMW and other cars, a list\n" * 9, b"BM\xff\xff\xff\xff", b"P", b"P6",
    b"P9 ", b"Parquet", b"II", b"GIF", b"\x89PNG", b"RIFF\0\0\0\0WAVEfmt ", b"\0\0\0\x18ftypisom",
    b"PK\3\4" + bytes(60), bytes(600), b"\xff\xfb\x90\0" * 20, b"%PDF-1.7\n",
]  # fmt: skip


def test_every_usual_ending_is_in_the_table() -> None:
    for kind, endings in EVERYBODYS.items():
        assert {LISTED.get(each) for each in endings.split()} == {kind}
    registered = Image.registered_extensions()
    ours = {"JPEG", "PNG", "GIF", "BMP", "DIB", "TIFF", "WEBP", "AVIF", "PPM", "TGA", "JPEG2000"}
    missing = {each for each, kind in registered.items() if kind in ours and each not in LISTED}
    assert missing <= {".vst"}  # Visio's, too
    tables = [*KNOWN.values(), *UNREAD.values(), *UNREAD_CLIPS.values()]
    every = [f".{each}" for endings in tables for each in endings]
    assert len(every) == len({*every}) == len(LISTED)
    assert not CLIPS.keys() & LISTED.keys()
    assert all(each == each.lower() and each.count(".") == 1 for each in every)
    assert set(USUAL_SUFFIXES) <= SUFFIXES
    assert len(USUAL_SUFFIXES) == len(FORMATS)


@pytest.mark.parametrize("kind", MADE)
def test_content_decides_whatever_the_ending(kind: str, tmp_path: Path) -> None:
    """Every ending in lower and upper case, and none, holds every format; wrong ones hold text."""
    data, files = encoded(photo(0), kind), []
    for ending in ("", *LISTED, ".jpg.part", ".unknown", ". ", ".É"):
        for each in {ending, ending.upper()}:
            (file := tmp_path / f"a{each}").write_bytes(data)
            files.append(file)
            assert file_kind(file) == kind
            assert is_image_file(str(file))
    assert EncodedImage(data, "a.foo").decode(3).size
    for file in files:
        file.write_bytes(b"BMW and others\n" * 9)
        assert not file_kind(file)
        assert not is_image_file(file)
        with pytest.raises(ImageError):
            EncodedImage(file.read_bytes(), file.name).decode(3)


def test_first_bytes_name_what_is_not_read() -> None:
    for kind, data in FIRST_BYTES.items():
        assert image_kind(data) == kind
        assert advice(kind)
        if kind == "camera raw":  # a TIFF with a small picture in it
            continue
        with pytest.raises(ImageError, match=f"not a .* image, but {kind}: {advice(kind)}"):
            EncodedImage(data, "a.jpg").decode(3)
    for data in NO_IMAGES:
        assert not image_kind(data)
    for kind in MADE:
        data = encoded(photo(0), kind)
        assert image_kind(data) == image_kind(data[:32]) == kind
        assert not advice(kind)


def test_what_is_no_regular_file_is_not_opened(tmp_path: Path) -> None:
    """A pipe would wait for a writer, or take one's bytes away."""
    photo(0).save(tmp_path / "a.png")
    (tmp_path / "link").symlink_to("a.png")
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "loop").symlink_to("loop")
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        here = Path.cwd()
        os.chdir(tmp_path)  # a socket's path is short
        try:
            server.bind("socket")
        finally:
            os.chdir(here)
        assert is_image_file(tmp_path / "link")
        for name in ("pipe", "socket", "dangling", "loop", "none", ".", "a\0b"):
            assert not is_image_file(str(tmp_path / name))
    assert not is_image_file("/dev/zero")
    assert not is_image_file(os.devnull)


def test_lines_say_what_to_do_with_each_ending() -> None:
    endings = Counter({".ppm": 1200, ".pgm": 2, ".jp2": 1, ".cr2": 3, ".xyz": 2, ".mp3": 4})
    netpbm, jpeg2000, raw, others = unread_lines("photos", endings)
    assert netpbm == (
        "skipped 1,202 Netpbm images in photos (1,200 with .ppm, 2 with .pgm), a format that is "
        "not read: convert to JPEG or PNG"
    )
    assert jpeg2000.startswith("skipped 1 JPEG 2000 image in photos (1 with .jp2), a format")
    assert raw.endswith("export as JPEG or TIFF")
    assert "skipped 6 files in photos, not images in a supported format (4 with .mp3, 2" in others
    alone = unread_lines("sounds", endings, alone=True)
    sounds = "skipped 4 sounds in sounds (4 with .mp3), a format that is not read: convert to FLAC"
    assert f"{sounds} or WAV" in alone
    for ending, kind in LISTED.items():
        lines = unread_lines("a", Counter({ending: 1}), alone=True)
        assert len(lines) == 1
        assert kind in lines[0] or kind in KNOWN


def test_names_of_new_files_end_as_everybodys() -> None:
    assert [each[0] for each in ENDINGS.values()][:6] == ["jpg", "png", "webp", "gif", "bmp", "tif"]
    assert formats.HEAD >= 132
