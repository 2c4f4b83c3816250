"""The header of a JPEG in one pass: what Pillow reads there, or nothing."""

from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from made_jpegs import COLUMNS, KINDS, ROWS, save
from vitlab.data.decode import jpeg
from vitlab.data.decode.jpeg import exceeded, frame_of
from vitlab.data.decode.stored import EncodedImage
from vitlab.errors import ImageError

NOISE = Image.fromarray(np.random.default_rng(3).integers(0, 256, (70, 35, 3), np.uint8))


def box_of(data: bytes, **limits: object) -> np.ndarray:
    image = EncodedImage(data, "name", **limits)
    return image.decode_box(3, lambda rows, columns: (0, 0, columns, rows), (10**6, 10**6))[0]


@pytest.mark.parametrize("kind", KINDS)
def test_it_states_what_pillow_reads(kind: str) -> None:
    data = KINDS[kind]
    frame = frame_of(data)
    with Image.open(BytesIO(data)) as image:
        if image.mode == "CMYK" or image.info.get("adobe_transform") == 0:
            assert frame is None
            return
        assert frame is not None
        assert (frame.columns, frame.rows) == image.size
        assert frame.gray == (image.mode == "L")
        assert frame.orientation == image.getexif().get(274, 1)
        assert frame.progressive == ("progressive" in image.info)
    assert frame.single == (kind not in ("progressive", "restarts"))
    assert data[frame.place : frame.place + 2] == ROWS.to_bytes(2)
    assert data[frame.scan : frame.scan + 2] == b"\xff\xda"


def test_a_header_that_ends_early_is_none() -> None:
    for kind, data in KINDS.items():
        if (frame := frame_of(data)) is not None:
            for end in range(frame.scan + 4):
                assert frame_of(data[:end]) is None, (kind, end)


@pytest.mark.parametrize(
    ("found", "put"),
    [
        (b"\xff\xdb", b"\xff\xff\xdb"),  # padding
        (b"\xff\xdb", b"\0\xff\xdb"),  # a stray byte
        (b"\xff\xdb", b"\xff\xfe\0\1\xff\xdb"),  # a segment shorter than its length
        (b"\xff\xdb", b"\xff\xcc\0\4\0\0\xff\xdb"),  # arithmetic codes
        (b"\xff\xdb", b"\xff\xee\0\x0eAdobe\0\x64\0\0\0\0\0\xff\xdb"),  # colors stored as RGB
        (b"\xff\xc0\0\x11\x08", b"\xff\xc0\0\x11\x0c"),  # 12 bits
        (b"\xff\xc0\0\x11\x08", b"\xff\xc3\0\x11\x08"),  # lossless
        (b"\xff\xc0\0\x11\x08" + ROWS.to_bytes(2), b"\xff\xc0\0\x11\x08\0\0"),  # rows follow later
    ],
)
def test_what_is_unusual_is_left_to_pillow(found: bytes, put: bytes) -> None:
    data = KINDS["4:2:0"]
    assert found in data
    assert frame_of(data) is not None
    assert frame_of(data.replace(found, put, 1)) is None


def test_many_segments_are_not_walked_through() -> None:
    data = KINDS["4:2:0"]
    for count, usual in ((900, True), (2000, False)):
        long = data[:2] + b"\xff\xfe\0\2" * count + data[2:]
        assert (frame_of(long) is not None) == usual
        assert np.array_equal(box_of(long), box_of(data))


def test_a_limit_holds_on_the_fast_way() -> None:
    data = KINDS["4:2:0"]
    pixels = ROWS * COLUMNS
    assert box_of(data, max_pixels=pixels).shape == (ROWS, COLUMNS, 3)
    with pytest.raises(ImageError, match=r"^name: 203 x 150 pixels exceed the limit of 30,449"):
        box_of(data, max_pixels=pixels - 1)
    with pytest.raises(ImageError, match=r"^name: not a PNG or WebP image"):
        box_of(data, formats=("PNG", "WEBP"))


def test_many_scans_are_refused_on_the_fast_way() -> None:
    data = KINDS["progressive"]
    scan = data.rindex(b"\xff\xda")
    end = data.rindex(b"\xff\xd9")
    many = data[:end] + 60 * data[scan:end] + data[end:]
    frame = frame_of(many)
    assert frame is not None
    assert exceeded(frame, many, ROWS * COLUMNS)  # before anything is decoded
    assert not exceeded(frame, data, ROWS * COLUMNS)
    box_of(data, max_pixels=ROWS * COLUMNS)
    with pytest.raises(
        ImageError, match=r"^name: a progressive JPEG with \d+ scans takes too long"
    ):
        box_of(many, max_pixels=ROWS * COLUMNS)


@pytest.mark.parametrize("scale", [1, 2, 4, 8])
@pytest.mark.parametrize("sampling", ["4:4:4", "4:2:2", "4:2:0", "4:1:1", "4:4:0", "gray"])
def test_rows_left_out_below_change_none_above(sampling: str, scale: int) -> None:
    """On noise, where colors blended with those of the next row would show."""
    if sampling == "4:4:0":
        import simplejpeg

        data = simplejpeg.encode_jpeg(np.asarray(NOISE), 95, colorsubsampling="440")
    elif sampling == "gray":
        data = save(NOISE.convert("L"))
    else:
        data = save(NOISE, subsampling=sampling)
    frame = frame_of(data)
    assert frame is not None
    assert frame.single
    whole = jpeg.decode(data, frame, scale, frame.rows)
    for until in range(1, frame.rows):
        part = jpeg.decode(data, frame, scale, until)
        rows = -(-until // scale)
        assert rows <= len(part) <= len(whole)
        assert np.array_equal(part[:rows], whole[:rows]), until
        if until + 2 * scale < frame.rows:
            assert len(part) == -(-until // scale) + 2


def test_damaged_headers_never_decode_to_other_pixels() -> None:
    generator = np.random.default_rng(5)
    decoded = 0
    for data in KINDS.values():
        head = data.index(b"\xff\xda") + 14
        for _ in range(40):
            broken = bytearray(data)
            broken[int(generator.integers(2, head))] = int(generator.integers(256))
            image = EncodedImage(bytes(broken), max_pixels=4_000_000)
            try:
                pixels = box_of(bytes(broken), max_pixels=4_000_000)
            except ImageError:
                continue
            decoded += 1
            assert np.array_equal(pixels, image.decode(3))
    assert decoded > 100
