"""Metadata that is missing, empty, of another type or malformed: never damage, never a warning."""

import struct
import zlib
from typing import Any

import numpy as np
import pytest
from PIL import Image

import vitlab
from made_files import chunk, encoded
from vitlab.data.decode.pixels import Pixels
from vitlab.data.decode.stored import EncodedImage
from vitlab.data.sources.pictures import stored

RGB = Image.fromarray(np.random.default_rng(0).integers(0, 256, (16, 24, 3), np.uint8))
BLOCKS = [
    b"", b"\0", b"a", b"a\0", b"a\0\0", b"a\0\1x", b"\xff" * 9, bytes(9), zlib.compress(b"x"),
    b"a\0\0" + zlib.compress(bytes(1000)), b"II*\0\x08\0\0\0\xff\xff", b"Exif", b"Exif\0\0",
    b"Exif\0\0II*\0", b"MM\0*", b"1" * 40, b"Exif\0\0MM\0*\0\0\0\x08\xff\xff",
    b"Raw profile type exif\0\0" + zlib.compress(b"\nexif\n 8\nzz\n"),
    b"II*\0\x08\0\0\0\1\0\x12\1\2\0\1\0\0\0A" + bytes(7),  # an orientation that is text
    b"II*\0\x08\0\0\0\1\0\x12\1\3\0\1\0\0\0\x63" + bytes(7),  # and 99
    b"II*\0\x08\0\0\0\1\0\x12\1\3\0\0\0\0\0\6" + bytes(7),  # and none, of length 0
]  # fmt: skip


def same(data: bytes, pixels: Pixels, which: object) -> None:
    file = EncodedImage(data, "a")
    assert file.shape()[:2] == pixels.shape[:2], which
    assert np.array_equal(file.decode(3), pixels), which


def test_chunks_of_png() -> None:
    data, pixels = encoded(RGB), np.asarray(RGB)
    for kind in (b"eXIf iCCP zTXt tEXt iTXt pHYs gAMA cHRM sRGB sBIT bKGD hIST tIME tRNS acTL fcTL "
                 b"fdAT zzZz oFFs pCAL cICP").split():  # fmt: skip
        for block in BLOCKS:
            same(data[:33] + chunk(kind, block) + data[33:], pixels, (kind, block))
            same(data[:-12] + chunk(kind, block) + data[-12:], pixels, (kind, block))


@pytest.mark.parametrize("mode", ["P", "L", "LA", "RGBA", "1", "RGB"])
def test_transparent_colors_of_wrong_lengths(mode: str) -> None:
    """As libpng: left out, where the length is none of this kind of pixels."""
    image = RGB.quantize(9) if mode == "P" else RGB.convert(mode)
    data, right = encoded(image), {"P": range(1, 257), "L": [2], "1": [2], "RGB": [6]}
    pixels, at = EncodedImage(data, "a").decode(3), data.index(b"IDAT") - 4
    for length in (0, 1, 2, 3, 4, 5, 6, 7, 256, 257, 300, 10_000):
        odd = data[:at] + chunk(b"tRNS", b"\xff" * length) + data[at:]
        if length in right.get(mode, ()):
            EncodedImage(odd, "a").decode(3)
        else:
            same(odd, pixels, (mode, length))


@pytest.mark.parametrize("options", [{}, {"progressive": True}])
def test_segments_of_jpeg(options: dict[str, bool]) -> None:
    blocks = [
        *BLOCKS, b"JFIF", b"JFIF\0", b"JFIF\0\1", b"JFIF\0\1\1\2\0\0\0\0", b"JFXX\0", b"Adobe",
        b"Adobe\0", b"Adobe\0\x64", b"ICC_PROFILE\0", b"ICC_PROFILE\0\1\2", b"MPF\0", b"FPXR\0",
        b"Photoshop 3.0\x008BIM\3\xed\0\0\0\0\0\1a", b"http://ns.adobe.com/xap/1.0/\0\xff",
    ]  # fmt: skip
    whole = encoded(RGB, "JPEG", **options)
    pixels = EncodedImage(whole, "a").decode(3)
    for data in (whole, whole[:2] + whole[20:]):  # also without JFIF's own
        for marker in (*range(0xE0, 0xF0), 0xFE):
            for block in blocks:
                start = b"\xff" + bytes([marker]) + struct.pack(">H", len(block) + 2)
                same(data[:2] + start + block + data[2:], pixels, (marker, block))


@pytest.mark.parametrize("lossless", [True, False])
def test_chunks_of_webp(lossless: bool) -> None:
    data = encoded(RGB, "WEBP", exif=b"Exif\0\0II*\0", lossless=lossless)
    pixels, data = EncodedImage(data, "a").decode(3), data[: data.index(b"EXIF")]
    for kind in (b"EXIF", b"XMP ", b"ICCP", b"ABCD"):
        for block in BLOCKS:
            odd = data + kind + struct.pack("<I", len(block)) + block + b"\0" * (len(block) % 2)
            odd = odd[:4] + struct.pack("<I", len(odd) - 8) + odd[8:]
            for flags in (0, 4, 8, 0x20, 0x2C):  # which of them the file says that it has
                same(odd[:20] + bytes([flags]) + odd[21:], pixels, (kind, block, flags))


def test_extensions_of_gif() -> None:
    data = encoded(RGB.quantize(9), "GIF")
    pixels, at = EncodedImage(data, "a").decode(3), 13 + 3 * 2 ** ((data[10] & 7) + 1)
    for extension in (
        b"\xfe\0", b"\xfe\1a\0", b"\xf9\0", b"\xf9\1a\0", b"\xf9\2ab\0", b"\xf9\3\1\0\0\0",
        b"\xf9\4\1\0\0\xff\0", b"\xff\0", b"\xff\x0bNETSCAPE2.0\0", b"\xff\x0bNETSCAPE2.0\1\1\0",
        b"\xff\x0bNETSCAPE2.0\2\1\0\0", b"\xff\3abc\0", b"\1\0", b"\0\0", b"\xff\x0bICCRGBG1012\0",
        b"\xfe" + (b"\xff" + b"x" * 255) * 9 + b"\0",
    ):  # fmt: skip
        same(data[:at] + b"\x21" + extension + data[at:], pixels, extension)
    clear = encoded(RGB.quantize(9), "GIF", transparency=3, comment="a", loop=2)
    assert 0 < (EncodedImage(clear, "a").decode(4)[..., 3] == 0).mean() < 1


def test_headers_of_bmp() -> None:
    data = encoded(RGB, "BMP")
    for place in (2, 6, 34, 38, 42, 50):  # sizes, reserved, pixels a meter, important colors
        for value in (bytes(4), b"\xff" * 4, b"\0\0\0\x80", b"\1\0\0\0"):
            same(data[:place] + value + data[place + 4 :], np.asarray(RGB), (place, value))


SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8}
GRAY = np.arange(77, dtype=np.uint8).reshape(7, 11, 1) * 3


def tiff(*others: tuple[int, int, int, bytes]) -> bytes:
    """A gray TIFF with more tags: number, type, count and what fills the values, repeated."""
    own = {256: 11, 257: 7, 258: 8, 259: 1, 262: 1, 273: 8, 277: 1, 278: 7, 279: GRAY.size}
    entries = {tag: struct.pack("<HHII", tag, 4, 1, value) for tag, value in own.items()}
    tail, after = b"", 8 + GRAY.size + 2 + 12 * len({*own, *(each[0] for each in others)}) + 4
    for tag, kind, count, value in others:
        size = SIZES[kind] * count
        packed = (value * (size // len(value) + 1))[:size]
        if size > 4:
            packed, tail = struct.pack("<I", after + len(tail)), tail + packed
        entries[tag] = struct.pack("<HHI", tag, kind, count) + packed.ljust(4, b"\0")
    directory = struct.pack("<H", len(entries)) + b"".join(entries[tag] for tag in sorted(entries))
    return (
        struct.pack("<2sHI", b"II", 42, 8 + GRAY.size)
        + GRAY.tobytes()
        + directory
        + bytes(4)
        + tail
    )


VALUES = (b"\0", b"\xff", b"\6\0\0\0\0\0\0\0", b"Abc", struct.pack("<I", 2**31))


@pytest.mark.parametrize(
    "tag", [254, 270, 274, 282, 285, 296, 301, 305, 306, 330, 333, 700, 33432, 33723, 34377, 34665,
            34675, 34853, 37724, 40965, 42112, 65000]
)  # fmt: skip
def test_tags_of_tiff(tag: int) -> None:
    """Of every type and count; the orientation alone may turn the pixels."""
    for kind in SIZES:
        for count in (0, 1, 2, 40):
            for value in VALUES:
                file = EncodedImage(tiff((tag, kind, count, value)), "a")
                pixels = file.decode(1)
                assert file.shape() == pixels.shape
                assert tag == 274 or np.array_equal(pixels, GRAY), (kind, count, value)


def test_tags_of_tiff_that_depend_on_each_other() -> None:
    centimeters, text, rational = (296, 3, 1, b"\3\0"), (282, 2, 4, b"72"), (283, 5, 1, b"\1\0\0\0")
    for tags in ((centimeters, text, rational), (centimeters, (282, 5, 2, b"\1\0"), rational),
                 ((282, 12, 1, b"\xff"), (283, 12, 1, b"\xff"), centimeters)):  # fmt: skip
        assert np.array_equal(EncodedImage(tiff(*tags), "a").decode(1), GRAY)
    xmp = (700, 2, 30, b'<x tiff:Orientation="6"/>')
    turned = EncodedImage(tiff((274, 3, 1, b"\6\0"), xmp, (34665, 4, 1, b"\xff")), "a").decode(1)
    assert np.array_equal(turned, np.rot90(GRAY, -1))


KEYS = ("exif", "transparency", "xmp", "icc_profile", "dpi", "photoshop", "XML:com.adobe.xmp",
        "Raw profile type exif", "orientation", "background", "gamma")  # fmt: skip
ODD: list[Any] = [
    None, b"", b"\xff", b"Exif\0\0", b"Exif\0\0II*\0\1", b"II*\0\x08\0\0\0\xff\xff", "", "text", 0,
    -1, 300, 1.5, (1,), (1, 2, 3), (1.5, 2, 3), [], {}, object(), Image.Exif(),
]  # fmt: skip


@pytest.mark.parametrize("mode", ["RGB", "L", "P", "RGBA", "I;16", "1", "CMYK", "F"])
def test_images_of_pillow_in_memory(mode: str) -> None:
    gray = np.asarray(RGB.convert("L"))
    made = {"I;16": gray * np.uint16(200), "F": gray / np.float32(255)}
    image = Image.fromarray(made[mode]) if mode in made else RGB.convert(mode)
    pixels = stored(image.copy()).decode(3)
    for key in KEYS:
        for value in ODD:
            image.info = {key: value}
            found = stored(image).decode(3)
            assert key == "transparency" or np.array_equal(found, pixels), (key, value)
            assert image.info == {key: value}  # which is its owner's


def test_an_orientation_beside_odd_metadata_still_counts() -> None:
    exif = Image.Exif()
    exif[274] = 6
    for key in ("xmp", "XML:com.adobe.xmp", "Raw profile type exif", "icc_profile"):
        for value in (None, 7, "text", b"\xff"):
            image = RGB.copy()
            image.info = {"exif": exif.tobytes(), key: value}
            assert np.array_equal(stored(image).decode(3), np.rot90(np.asarray(RGB), -1))
    model = vitlab.create("ViT(width=16,depth=1,heads=2,mlp=32)/4", 2, 8)
    image.info["exif"] = None
    assert not vitlab.classify(model, [image])[0].error
