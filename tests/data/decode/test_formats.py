"""Decoding and cropping, against arithmetic on known pixels."""

import pickle
import struct
import sys
import tracemalloc
import warnings
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from made_files import chunk, encoded, png_of, tiff_of
from vitlab.data.decode import colors, formats, headers, metadata
from vitlab.data.decode.stored import EncodedImage
from vitlab.errors import ImageError, UserError

ROWS, COLUMNS = 7, 11
RGB = np.random.default_rng(0).integers(0, 256, (ROWS, COLUMNS, 3), dtype=np.uint8)
ALPHA = np.random.default_rng(1).integers(0, 256, (ROWS, COLUMNS, 1), dtype=np.uint8)
ALPHA[0, :3, 0] = 0, 128, 255
GREY = np.arange(ROWS * COLUMNS, dtype=np.uint8).reshape(ROWS, COLUMNS, 1) * 3
LOSSLESS = [("PNG", {}), ("BMP", {}), ("TIFF", {}), ("TIFF", {"compression": "tiff_lzw"}),
            ("TIFF", {"compression": "tiff_adobe_deflate"})]  # fmt: skip


def decode(data, channels, name="image", **limits):
    return EncodedImage(data, name, **limits).decode(channels)


def shape(data, name="image"):
    return EncodedImage(data, name).shape()


def luma(rgb):
    weighted = rgb.astype(np.int64) @ np.array([19595, 38470, 7471])  # ITU-R 601 in 1/65536
    return ((weighted + 32768) >> 16).astype(np.uint8)[..., None]


def over_white(colors, alpha):
    weight = alpha.astype(np.float64) / 255
    return np.rint(colors * weight + 255 * (1 - weight)).astype(np.uint8)


def check(data, colors, alpha=None, tolerance=0):
    """`data` decodes to these colors (RGB or gray) with this alpha, in 1, 3 and 4 channels."""
    rgb = np.repeat(colors, 3, axis=2) if colors.shape[2] == 1 else colors
    opaque = rgb if alpha is None else over_white(rgb, alpha)
    gray = opaque[..., :1] if colors.shape[2] == 1 else luma(opaque)
    for channels, expected in ((1, gray), (3, opaque)):
        result = decode(data, channels)
        assert result.shape == expected.shape
        assert result.dtype == np.uint8
        assert result.flags.c_contiguous
        assert result.flags.writeable
        assert np.abs(result.astype(int) - expected).max() <= tolerance
    result = decode(data, 4)
    assert result.flags.c_contiguous
    expected = np.full_like(rgb[..., :1], 255) if alpha is None else alpha
    assert np.array_equal(result[..., 3:], expected)
    visible = expected[..., 0] > 0  # the color under full transparency does not matter
    assert np.abs(result[visible][:, :3].astype(int) - rgb[visible]).max() <= tolerance
    assert shape(data)[:2] == colors.shape[:2]


# ---- colors


PALETTE = np.random.default_rng(2).integers(0, 256, (256, 3), dtype=np.uint8)
INDEXED = Image.frombytes("P", (COLUMNS, ROWS), GREY.tobytes())
INDEXED.putpalette(PALETTE.tobytes())
BITS = GREY % 2 * np.uint8(255)


@pytest.mark.parametrize(
    ("kind", "options"),
    [*LOSSLESS, ("WEBP", {"lossless": True}), ("GIF", {}), ("TIFF", {"compression": "group4"})],
)
def test_lossless_files_have_the_pixels_that_they_were_made_of(kind, options):
    """Colors, grays, black and white, palettes; a GIF has a palette, and so colors."""
    group4 = options.get("compression") == "group4"
    for image, pixels, channels in (
        (Image.fromarray(RGB), RGB, 3), (Image.fromarray(GREY[..., 0]), GREY, 1),
        (Image.fromarray(BITS[..., 0]).convert("1"), BITS, 1), (INDEXED, PALETTE[GREY[..., 0]], 3),
    ):  # fmt: skip
        if (group4 and pixels is not BITS) or (
            (kind == "WEBP") != (pixels is RGB) and kind in ("WEBP", "GIF")
        ):
            continue
        data = encoded(image, kind, **options)
        check(data, pixels)
        if kind != "GIF" or pixels is not BITS:
            assert shape(data) == (ROWS, COLUMNS, 3 if kind == "GIF" else channels)


def test_inks_are_those_of_paper():
    """White paper comes out white, also of JPEGs, which store inverted inks."""
    for inks, rgb in (
        ((0, 0, 0, 0), (255, 255, 255)), ((0, 255, 255, 0), (255, 0, 0)),
        ((0, 0, 0, 255), (0, 0, 0)),
    ):  # fmt: skip
        data = encoded(Image.new("CMYK", (COLUMNS, ROWS), inks), "JPEG", quality=100)
        check(data, np.broadcast_to(np.array(rgb, np.uint8), RGB.shape), tolerance=3)
    inks = np.concatenate([RGB, ALPHA], axis=2)
    expected = np.rint((255.0 - RGB) * (255.0 - ALPHA) / 255).astype(np.uint8)
    image = Image.frombytes("CMYK", (COLUMNS, ROWS), inks.tobytes())
    check(encoded(image, "TIFF"), expected, None, 1)


# ---- more than 8 bits

WIDE = np.array([[0, 1, 255, 256, 257, 511, 0x1234, 32767, 32768, 65279, 65280, 65535]], np.uint16)
HIGH = (WIDE // 256).astype(np.uint8)[..., None]


def test_16_bit_pngs():
    data = png_of(1, WIDE.size, 16, 0, WIDE.astype(">u2"))
    check(data, HIGH)
    assert shape(data) == (1, WIDE.size, 1)
    for factor in (256, 257):  # both usual ways of widening are undone exactly
        wide = GREY[..., 0].astype(">u2") * factor
        check(png_of(ROWS, COLUMNS, 16, 0, wide.astype(">u2")), GREY)
    wide = np.random.default_rng(3).integers(0, 65536, (ROWS, COLUMNS, 4)).astype(">u2")
    high = (wide // 256).astype(np.uint8)
    check(png_of(ROWS, COLUMNS, 16, 2, np.ascontiguousarray(wide[..., :3])), high[..., :3])
    check(png_of(ROWS, COLUMNS, 16, 6, wide), high[..., :3], high[..., 3:])
    data = png_of(ROWS, COLUMNS, 16, 4, np.ascontiguousarray(wide[..., :2]))
    check(data, high[..., :1], high[..., 1:2])
    assert shape(data)[2] == 1


def test_16_bit_tiffs():
    for order in "<>":
        tags = {256: WIDE.size, 257: 1, 258: (16,)}
        data = tiff_of(WIDE.astype(order + "u2").tobytes(), tags, order)
        check(data, HIGH)
        assert shape(data) == (1, WIDE.size, 1)
    check(tiff_of(WIDE.tobytes(), {**tags, 262: 0}), 255 - HIGH)  # white is zero
    tags = {256: COLUMNS, 257: ROWS, 258: (8,), 262: 0}
    check(tiff_of(GREY.tobytes(), tags), 255 - GREY)


def test_12_bit_tiff():
    values = np.array([0, 15, 16, 0xABC, 4080, 4095])
    pairs = values.reshape(-1, 2)
    packed = [[a >> 4, (a & 15) << 4 | b >> 8, b & 255] for a, b in pairs]
    data = tiff_of(np.array(packed, np.uint8).tobytes(), {256: 6, 257: 1, 258: (12,)})
    check(data, (values >> 4).astype(np.uint8).reshape(1, 6, 1))


def test_32_bit_integers():
    data = encoded(Image.fromarray(WIDE.astype(np.int32)), "TIFF")
    check(data, HIGH)
    assert shape(data)[2] == 1
    for values in ([0, 65536], [-1, 7]):
        with pytest.raises(ImageError, match=f"integers from {values[0]} to {values[1]}; only 0"):
            decode(encoded(Image.fromarray(np.array([values], np.int32)), "TIFF"), 1)


def test_floats():
    values = np.array([[0, 0.25, 0.5, 1, 1.5, -0.5, 0.1]], np.float32)
    data = encoded(Image.fromarray(values), "TIFF")
    check(data, np.array([[0, 64, 128, 255, 255, 0, 26]], np.uint8)[..., None])
    assert shape(data)[2] == 1
    for odd in (3.0, -2.0, np.nan, np.inf):
        with pytest.raises(ImageError, match="convert to 8 bits"):
            decode(encoded(Image.fromarray(np.array([[0.5, odd]], np.float32)), "TIFF"), 1)


# ---- transparency


@pytest.mark.parametrize(
    ("kind", "options"),
    [*LOSSLESS[:1], *LOSSLESS[2:], ("WEBP", {"lossless": True, "exact": True})],
)
def test_alpha(kind, options):
    both = np.concatenate([RGB, ALPHA], axis=2)
    check(encoded(Image.fromarray(both), kind, **options), RGB, ALPHA)
    if kind != "WEBP":
        pair = Image.frombytes("LA", (COLUMNS, ROWS), np.concatenate([GREY, ALPHA], 2).tobytes())
        check(data := encoded(pair, kind, **options), GREY, ALPHA)
        assert shape(data) == (ROWS, COLUMNS, 1)


def test_premultiplied_grey_tiff():
    gray, alpha = np.array([[[200], [100], [0]]], np.uint8), np.array([[[255], [128], [0]]])
    stored = np.rint(gray * (alpha / 255)).astype(np.uint8)
    pixels = np.concatenate([stored, alpha.astype(np.uint8)], axis=2).tobytes()
    tags = {256: 3, 257: 1, 258: (8, 8), 277: 2, 338: (1,)}
    check(tiff_of(pixels, tags), gray, alpha.astype(np.uint8), tolerance=1)


@pytest.mark.parametrize("transparency", [bytes([0, 90, 200]), bytes([255, 0]), bytes([255, 255])])
def test_palette_with_alpha_png(transparency):
    colors = np.array([[250, 10, 20], [30, 200, 40], [50, 60, 150], [0, 0, 0]], np.uint8)
    index = np.array([[0, 1, 2, 3], [3, 2, 1, 0]], np.uint8)
    alphas = np.frombuffer(transparency.ljust(4, b"\xff"), np.uint8)
    extra = chunk(b"PLTE", colors.tobytes()), chunk(b"tRNS", transparency)
    check(png_of(2, 4, 8, 3, index, *extra), colors[index], alphas[index][..., None])


@pytest.mark.parametrize("depth", [1, 2, 4, 8, 16])
def test_transparent_grey_png(depth):
    """The key is a sample as stored, whatever its depth."""
    values = np.array([0, 1, 2**depth - 1, 2 ** (depth - 1)])
    bits = "".join(f"{value:0{depth}b}" for value in values)
    line = int(bits.ljust(-(-len(bits) // 8) * 8, "0"), 2).to_bytes(-(-len(bits) // 8))
    gray = values * 255 // (2**depth - 1) if depth < 16 else values >> 8
    for key in values.tolist():
        data = png_of(1, 4, depth, 0, [line], chunk(b"tRNS", struct.pack(">H", key)))
        alpha = np.where(values == key, 0, 255).astype(np.uint8).reshape(1, 4, 1)
        check(data, gray.astype(np.uint8).reshape(1, 4, 1), alpha)


def test_transparent_rgb_png():
    for depth in (8, 16):
        samples = (RGB.astype(">u2") * 256 + 7 if depth == 16 else RGB).astype(f">u{depth // 8}")
        key, alpha = samples[2, 3].astype(">u2").tobytes(), np.full((ROWS, COLUMNS, 1), 255)
        alpha[2, 3] = 0
        check(png_of(ROWS, COLUMNS, depth, 2, samples, chunk(b"tRNS", key)), RGB, alpha)


def bmp(pixels):
    """32 bits with an alpha mask, bottom row first."""
    rows, columns, _ = pixels.shape
    header = struct.pack("<IiiHHIIiiII", 108, columns, rows, 1, 32, 3, 0, 0, 0, 0, 0)
    header += struct.pack("<4I", 0xFF, 0xFF00, 0xFF0000, 0xFF000000)
    body = header.ljust(108, b"\0") + pixels[::-1].tobytes()
    return struct.pack("<2sIII", b"BM", 14 + len(body), 0, 14 + 108) + body


def test_alpha_bmp():
    """An alpha of 0 throughout was never written, and the image is opaque."""
    check(bmp(np.concatenate([RGB, ALPHA], axis=2)), RGB, ALPHA)
    unwritten = np.concatenate([RGB, 0 * ALPHA], axis=2)
    check(bmp(unwritten), RGB)
    assert (decode(encoded(Image.fromarray(unwritten)), 3) == 255).all()  # a PNG means it


# ---- orientation

SIDES = {1: "TL", 2: "TR", 3: "BR", 4: "BL", 5: "LT", 6: "RT", 7: "RB", 8: "LB"}


def stored(upright, orientation):
    """As EXIF defines it: the sides of the picture where its first row and column belong."""
    row, column = SIDES[orientation]
    if "B" in (row, column):
        upright = upright[::-1]
    if "R" in (row, column):
        upright = upright[:, ::-1]
    return np.ascontiguousarray(upright.swapaxes(0, 1) if orientation >= 5 else upright)


def exif(orientation, order="<", kind=3):
    value = struct.pack(order + ("H" if kind == 3 else "I"), orientation).ljust(4, b"\0")
    entries = struct.pack(order + "HHI4s", 272, 2, 4, b"abc\0")  # another tag comes first
    entries += struct.pack(order + "HHI4s", 274, kind, 1, value)
    start = struct.pack(order + "2sHIH", b"II" if order == "<" else b"MM", 42, 8, 2)
    return b"Exif\0\0" + start + entries + bytes(4)


@pytest.mark.parametrize("orientation", SIDES)
@pytest.mark.parametrize("kind", ["PNG", "WEBP", "JPEG", "TIFF"])
def test_orientation(kind, orientation):
    image = Image.fromarray(stored(RGB, orientation))
    if kind == "TIFF":
        data = encoded(image, kind, tiffinfo={274: orientation})
    else:
        options = {"lossless": True} if kind == "WEBP" else {"subsampling": 0, "quality": 100}
        data = encoded(image, kind, exif=exif(orientation), **options)
    assert shape(data)[:2] == (ROWS, COLUMNS)
    result = decode(data, 3)
    assert result.flags.c_contiguous
    assert result.shape == RGB.shape
    # noise in JPEG: any other orientation differs by 40 on average
    assert np.abs(result.astype(int) - RGB).mean() <= (3 if kind == "JPEG" else 0)


def test_orientation_encodings():
    for order, kind in (("<", 3), (">", 3), ("<", 4), (">", 4)):
        data = encoded(Image.fromarray(stored(RGB, 6)), exif=exif(6, order, kind))
        assert np.array_equal(decode(data, 3), RGB)
    data = encoded(Image.fromarray(stored(RGB, 8)))
    late = data[:-12] + chunk(b"eXIf", exif(8)[6:]) + data[-12:]  # after the pixels
    assert shape(late)[:2] == (ROWS, COLUMNS)
    assert np.array_equal(decode(late, 3), RGB)


# the last is a resolution Pillow stumbles over: one byte where two numbers are due
ODD_EXIF = b"II*\0\x08\0\0\0\x02\0" + struct.pack("<HHI4s", 0x11A, 7, 1, b"a")
BROKEN_EXIF = [exif(0), exif(9), exif(6)[:30]] + [
    b"Exif\0\0" + each
    for each in (b"", b"MM", b"II*\0\xff\xff\xff\xff", b"not EXIF at all",
                 b"II*\0\x08\0\0\0\xff\xff\x12\x01\x03",
                 ODD_EXIF + struct.pack("<HHI4s", 0x128, 3, 1, b"\x02") + bytes(4))
]  # fmt: skip


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "JPEG"])
def test_broken_exif_is_ignored(kind):
    for block in BROKEN_EXIF:
        data = encoded(Image.fromarray(GREY[..., 0]), kind, exif=block)
        if kind == "JPEG":  # without JFIF, where Pillow would look for a resolution in EXIF
            at = data.index(b"\xff\xe0")
            data = data[:at] + data[at + 18 :]
            assert b"JFIF" not in data
        assert decode(data, 1).shape == (ROWS, COLUMNS, 1)
        assert shape(data)[:2] == (ROWS, COLUMNS)


def test_xmp_does_not_turn():
    xmp = b'<x tiff:Orientation="6"/>'
    for kind in ("TIFF", "WEBP", "JPEG"):
        options = {"tiffinfo": {700: xmp}} if kind == "TIFF" else {"xmp": xmp}
        data = encoded(Image.fromarray(RGB), kind, **options)
        assert decode(data, 3).shape == RGB.shape
        assert shape(data)[:2] == (ROWS, COLUMNS)


def test_bands(monkeypatch):
    for band in (1, 3 * COLUMNS + 1, 10**6):
        monkeypatch.setattr(colors, "_BAND", band)
        check(encoded(Image.fromarray(np.concatenate([RGB, ALPHA], axis=2))), RGB, ALPHA)
        check(encoded(Image.fromarray(GREY[..., 0])), GREY)


# ---- several frames


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG", "TIFF", "MPO"])
def test_first_frame(kind):
    levels = (200, 100, 30)
    frames = [Image.new("RGB", (COLUMNS, ROWS), (level, 0, level)) for level in levels]
    options = {"lossless": True} if kind == "WEBP" else {}
    data = encoded(frames[0], kind, save_all=True, append_images=frames[1:], **options)
    expected = np.broadcast_to(np.array([200, 0, 200], np.uint8), RGB.shape)
    check(data, expected, tolerance=1 if kind == "MPO" else 0)
    if kind == "PNG":
        data = encoded(frames[0], save_all=True, append_images=frames[1:], default_image=True)
        check(data, expected)


# ---- refusals


def refused(data, *words, call=decode, **options):
    """Decoding, or reading the header, fails in one line that has the name and the words."""
    arguments = (data, 3) if call is decode else (data,)
    with pytest.raises(ImageError) as caught:
        call(*arguments, name="cats/one\ntwo.jpg", **options)
    message = str(caught.value)
    assert message.startswith("cats/one two.jpg: ")
    assert "\n" not in message
    assert len(message) < 400
    for word in words:
        assert word in message
    assert isinstance(caught.value, UserError)
    assert str(pickle.loads(pickle.dumps(caught.value))) == message


OTHERS = [
    b"<svg xmlns='http://www.w3.org/2000/svg' width='9' height='9'/>", b"a text\n" * 100,
    b"8BPS\0\1" + bytes(6) + b"\0\3" + struct.pack(">II", 5, 5) + b"\0\x08\0\3",
    b"\0\0\1\0\1\0" + bytes(50),  # an icon
    b"%PDF-1.7\n", b"P6 1 1 255 abc", b"\0\0\0\x0cjP  \r\n\x87\n", b"RIFF\0\0\0\0WAVEfmt ", b"\0",
]  # fmt: skip


@pytest.mark.parametrize("call", [decode, shape])
def test_other_formats(call):
    for data in OTHERS:
        refused(data, "not a JPEG, PNG, WebP, GIF, BMP, TIFF", call=call)
    refused(b"", "empty", call=call)


@pytest.mark.parametrize("kind", formats.FORMATS)
def test_only_the_formats_asked_for(kind):
    data = encoded(Image.fromarray(GREY[..., 0]), kind)
    others = [other for other in formats.FORMATS if other != kind]
    *names, last = (each.replace("WEBP", "WebP") for each in others)
    refused(data, f"not a {', '.join(names)} or {last} image", formats=others)
    assert decode(data, 3, formats=[kind]).shape == RGB.shape
    refused(data[:13], "damaged")  # the signature alone


@pytest.mark.parametrize(
    ("kind", "options"),
    [(kind, {}) for kind in formats.FORMATS if kind != "TIFF"] + [("JPEG", {"progressive": True})],
)
def test_truncated(kind, options):
    """Cut in the middle of the pixels: refused, never gray below."""
    noise = np.random.default_rng(4).integers(0, 256, (90, 110, 3), dtype=np.uint8)
    data = encoded(Image.fromarray(noise), kind, **options)
    for share in (0.3, 0.6, 0.9):
        refused(data[: int(len(data) * share)], "damaged")


def bomb(kind):
    """A header that claims 100,000 x 100,000 pixels, or what the format can claim."""
    if kind == "PNG":
        return png_of(100_000, 100_000, 8, 2, [b""])
    if kind == "TIFF":
        return tiff_of(b"1", {256: 100_000, 257: 100_000, 258: (8,)})
    options = {"lossless": True} if kind == "WEBP" else {}
    start = encoded(Image.fromarray(RGB if options else GREY[..., 0]), kind, **options)
    at, size = {
        "JPEG": (start.find(b"\xff\xc0") + 5, b"\xff" * 4), "GIF": (6, b"\xff" * 4),
        "BMP": (18, struct.pack("<II", 100_000, 100_000)),
        # libavif itself refuses more than 16,384 x 16,384
        "AVIF": (start.find(b"ispe") + 8, struct.pack(">II", 16_000, 16_000)),
        "WEBP": (21, struct.pack("<I", 16383 << 14 | 16383)),
    }[kind]  # fmt: skip
    return start[:at] + size + start[at + len(size) :]


@pytest.mark.parametrize("kind", [each for each in formats.FORMATS if each != "HEIF"])
@pytest.mark.parametrize("call", [decode, shape])
def test_bomb(kind, call):
    data = bomb(kind)
    tracemalloc.start()
    limit = {"WEBP": 32, "AVIF": 40}.get(kind, 50)
    refused(data, f"exceed the limit of {limit},000,000", call=call)
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()


def test_bomb_ignores_pillows_own_limit(monkeypatch):
    """Neither a low limit of the process refuses an image, nor a missing one lets it in."""
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 60)  # of 77: a warning for Pillow
    for kind in formats.FORMATS:
        data = encoded(Image.fromarray(GREY[..., 0]), kind)
        assert decode(data, 1).shape == GREY.shape
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    refused(bomb("WEBP"), "exceed the limit of 32,000,000")


def test_webp_canvas_is_checked_before_it_is_allocated(monkeypatch):
    opened = []
    monkeypatch.setitem(formats._READERS, "WEBP", lambda file: opened.append(file))
    lossy = encoded(Image.fromarray(RGB), "WEBP")
    animated = encoded(
        Image.fromarray(RGB), "WEBP", save_all=True, append_images=[Image.fromarray(255 - RGB)]
    )
    for data in (lossy, animated, encoded(Image.fromarray(RGB), "WEBP", lossless=True)):
        assert metadata.webp_size(data) == (COLUMNS, ROWS)
        refused(data, "11 x 7 pixels", max_pixels=76)
    assert not opened


def test_limits(monkeypatch):
    data = encoded(Image.fromarray(RGB))
    refused(data, "11 x 7 pixels exceed the limit of 76", max_pixels=76)
    assert decode(data, 3, max_pixels=77).shape == RGB.shape
    monkeypatch.setattr(headers, "MAX_BYTES", len(data))
    decode(data, 3)
    monkeypatch.setattr(headers, "MAX_BYTES", len(data) - 1)
    refused(data, f"{len(data)} bytes exceed the limit of {len(data) - 1}")


def test_large_tiff_tile():
    tags = {256: 5, 257: 5, 258: (8,), 322: 60_000, 323: 60_000, 324: 8, 325: 25}
    refused(tiff_of(bytes(25), tags), "60000 x 60000 pixels")


def test_channels_that_pictures_do_not_have():
    with pytest.raises(ImageError, match="2 channels; pictures have 1, 3 or 4"):
        decode(encoded(Image.fromarray(RGB)), 2)


# ---- odd metadata: no warning (the test run makes errors of them), no failure, no trace


def odd_files():
    gray = Image.fromarray(GREY[..., 0])
    plain, jpeg = encoded(gray), encoded(gray, "JPEG")
    animation = chunk(b"acTL", bytes(8))
    multi = b"\xff\xe2" + struct.pack(">H", 60) + b"MPF\0II*\0" + bytes(50)
    photoshop = b"\xff\xed\0\x16Photoshop 3.0\x008BIM\0\0"  # Pillow refuses the file
    tags = {256: COLUMNS, 257: ROWS, 258: (8,)}
    directory = tiff_of(GREY.tobytes(), {**tags, 305: tuple(range(40)), 34665: 2**31, 34853: 9})
    far = directory.replace(struct.pack("<HHI", 305, 3, 40), struct.pack("<HHI", 305, 3, 2**30))
    cut = tiff_of(GREY.tobytes(), {**tags, 305: tuple(range(400))})[:-300]
    return {
        "animation before the pixels": plain[:33] + animation + plain[33:],
        "animation behind the pixels": plain[:-12] + animation + plain[-12:],
        "text with a bad checksum": plain[:33] + chunk(b"tEXt", b"a\0b")[:-1] + b"!" + plain[33:],
        "a profile that unpacks to 20 MB": plain[:33]
        + chunk(b"iCCP", b"a\0\0" + zlib.compress(bytes(20_000_000)))
        + plain[33:],
        "a broken list of pictures": jpeg[:2] + multi + jpeg[2:],
        "a broken Photoshop block": jpeg[:2] + photoshop + jpeg[2:],
        "padding before it": jpeg[:20] + b"\xff\xff" + photoshop + jpeg[20:],
        "a byte of padding before a table": jpeg.replace(b"\xff\xdb", b"\xff\xff\xdb", 1),
        "a marker without a length": jpeg[:20] + b"\xff\x01" + photoshop + jpeg[20:],
        "bytes between segments": jpeg[:20] + b"junk\xff\0" + photoshop + jpeg[20:],
        "a tag beyond the end": far,
        "a tag cut off": cut,
    }


def test_odd_metadata():
    before = list(warnings.filters)
    for which, data in odd_files().items():
        result = decode(data, 1)
        most = 6 if data[:2] == b"\xff\xd8" else 0
        assert np.abs(result.astype(int) - GREY).max() <= most, which
        assert shape(data) == GREY.shape
        assert warnings.filters == before


def test_threads_leave_the_filters_alone():
    """`catch_warnings` in many threads at once would leave a filter behind."""
    data = odd_files()["a tag cut off"]
    before, interval = list(warnings.filters), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # so that threads do meet
    try:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda _: decode(data, 1), range(200)))
    finally:
        sys.setswitchinterval(interval)
    assert warnings.filters == before


# ---- damage


def samples():
    """One small file of every kind of path through the decoder."""
    rgb, gray = Image.fromarray(RGB), Image.fromarray(GREY[..., 0])
    both = Image.fromarray(np.concatenate([RGB, ALPHA], axis=2))
    frames = {"save_all": True, "append_images": [Image.fromarray(255 - RGB)]}
    wide = Image.fromarray(WIDE)
    return [
        encoded(rgb, "JPEG", exif=exif(6)), encoded(gray, "JPEG", progressive=True),
        encoded(rgb.convert("CMYK"), "JPEG"), encoded(rgb, exif=exif(5)), encoded(both),
        encoded(wide), encoded(rgb, **frames), encoded(rgb.quantize(9), transparency=3),
        encoded(rgb, "WEBP", exif=exif(3)), encoded(both, "WEBP", lossless=True),
        encoded(rgb, "WEBP", **frames), encoded(rgb, "GIF", **frames),
        encoded(gray, "GIF", transparency=7), encoded(rgb, "BMP"),
        encoded(rgb.quantize(9), "BMP"), bmp(np.concatenate([RGB, ALPHA], axis=2)),
        encoded(rgb, "TIFF", tiffinfo={274: 7}), encoded(both, "TIFF", compression="tiff_lzw"),
        encoded(gray.convert("1"), "TIFF", compression="group4"),
        encoded(rgb, "TIFF", compression="jpeg"),
        encoded(wide, "TIFF", compression="tiff_adobe_deflate"),
        encoded(Image.fromarray(GREY[..., 0] / np.float32(255)), "TIFF"),
    ]  # fmt: skip


SAMPLES = samples()


def survives(data, channels):
    """Damage gives an array as promised (True) or ImageError (False), and nothing else."""
    try:
        rows, columns, _ = shape(data)
    except ImageError:
        rows = columns = None
    try:
        result = decode(data, channels, max_pixels=1_000_000)
    except ImageError:
        return False
    assert result.shape == (rows, columns, channels)
    assert result.dtype == np.uint8
    return True


def test_samples_are_sound():
    assert all(survives(data, channels) for data in SAMPLES for channels in (1, 3, 4))


@settings(max_examples=150, deadline=None, database=None)
@given(
    st.sampled_from(range(len(SAMPLES))),
    st.sampled_from([1, 3, 4]),
    st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), max_size=8),
    st.one_of(st.none(), st.floats(0, 1)),
)
def test_damage(sample, channels, flips, keep):
    data = bytearray(SAMPLES[sample])
    for place, bits in flips:
        data[int(place * len(data))] ^= bits
    survives(bytes(data[: None if keep is None else int(keep * len(data))]), channels)
