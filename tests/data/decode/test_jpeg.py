"""The fast way through a JPEG: Pillow's pixels, or a refusal."""

import math
from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from made_jpegs import COLUMNS, KINDS, ROWS, save
from vitlab.data.decode import jpeg
from vitlab.data.decode.headers import BACK, turn, turn_box
from vitlab.data.decode.jpeg import exceeded, frame_of, jpeg_boxes
from vitlab.data.decode.stored import EncodedImage
from vitlab.errors import ImageError, UserError

WHOLE = (0, 0, COLUMNS, ROWS)
MANY = 10**6
NOISE = Image.fromarray(np.random.default_rng(3).integers(0, 256, (70, 35, 3), np.uint8))


def fast(data, box, at_least, channels=3, cut=True, **limits):
    image = EncodedImage(data, "name", **limits)
    return image.decode_box(channels, lambda rows, columns: box, at_least, cut=cut)


def whole(data, **limits):
    image = EncodedImage(data, "name", **limits)
    return image.decode_box(3, lambda rows, columns: (0, 0, columns, rows), (MANY, MANY))[0]


@pytest.mark.parametrize(("channels", "cut"), [(3, False), (3, True), (1, True)])
@pytest.mark.parametrize("kind", KINDS)
def test_a_box_at_full_size_has_pillows_pixels(kind, channels, cut):
    data = KINDS[kind]
    whole = EncodedImage(data).decode(channels)
    rows, columns = whole.shape[:2]
    for box in [(0, 0, columns, rows), (3, 5, 60, 40), (70, 80, 101, 99), (1, 2, 3, 4)]:
        left, top, right, bottom = box
        pixels, place = fast(data, box, (rows, columns), channels, cut)
        a, b, c, e = (round(edge) for edge in place)
        assert place == (a, b, c, e)
        assert np.array_equal(pixels[b:e, a:c], whole[top:bottom, left:right])


@pytest.mark.parametrize("scale", [2, 4, 8])
@pytest.mark.parametrize("kind", ["4:4:4", "4:2:2", "4:2:0", "progressive", "gray", "restarts"])
def test_smaller_scales_are_those_of_pillow(kind, scale):
    data = KINDS[kind]
    image = Image.open(BytesIO(data))
    small = (-(-COLUMNS // scale), -(-ROWS // scale))
    image.draft(None, small)
    if image.size != small:  # Pillow rounds the request another way
        image = Image.open(BytesIO(data))
        image.draft(None, (COLUMNS // scale, ROWS // scale))
    theirs = np.asarray(image.convert("RGB"))
    box = (8.0, 16.0, 8.0 + 64, 16.0 + 72)
    least = (72 / scale, 64 / scale)
    pixels, place = fast(data, box, least)
    assert place == tuple(edge / scale for edge in box)
    rows = slice(round(place[1]), round(place[3]))
    assert np.array_equal(pixels[rows], theirs[rows])
    if kind in ("4:4:4", "4:2:0", "gray") and scale < 8:
        assert len(pixels) < len(theirs)  # stopped early
    assert np.array_equal(fast(data, box, least, cut=False)[0], theirs)


def test_the_scale_leaves_what_is_needed():
    sides = ((1792, 1792), (1791.9, 5000), (447, 448), (448, 448))
    assert [jpeg.scale_for(*each, 224, 224) for each in sides] == [8, 4, 1, 2]


@pytest.mark.parametrize("orientation", range(1, 9))
def test_turning_boxes_and_pixels(orientation):
    stored = np.arange(5 * 7, dtype=np.uint8).reshape(5, 7, 1)
    upright = turn(stored, orientation)
    names = "FLIP_LEFT_RIGHT ROTATE_180 FLIP_TOP_BOTTOM TRANSPOSE ROTATE_270 TRANSVERSE ROTATE_90"
    image = Image.fromarray(stored[..., 0])
    if orientation > 1:
        image = image.transpose(Image.Transpose[names.split()[orientation - 2]])
    assert np.array_equal(upright[..., 0], np.asarray(image))
    left, top, right, bottom = turn_box((1, 2, 4, 3), orientation, 5, 7)
    inside = upright[top:bottom, left:right]
    assert sorted(inside.ravel()) == sorted(stored[2:3, 1:4].ravel())
    inverse = BACK.get(orientation, orientation)
    assert turn_box((left, top, right, bottom), inverse, *upright.shape[:2]) == (1, 2, 4, 3)


@pytest.mark.parametrize("kind", ["4:2:0", "4:4:4", "progressive", "gray"])
@pytest.mark.parametrize(("share", "box"), [(0.3, WHOLE), (0.6, WHOLE), (0.6, (0, 0, 30, 20))])
@pytest.mark.parametrize("ending", [b"", b"\xff\xd9"])
def test_truncated_files_are_refused(kind, share, box, ending):
    """Without an end always; patched up with one, wherever rows are missing that are looked at."""
    data = KINDS[kind]
    start = data.index(b"\xff\xda")
    short = data[: start + int(share * (len(data) - start))] + ending
    if not ending or box == WHOLE:
        with pytest.raises(ImageError, match=r"^name: damaged"):
            fast(short, box, (20, 30))
    elif kind != "progressive" and share > 0.5:  # these rows are there
        assert np.array_equal(
            fast(short, box, (20, 30))[0][:20, :30], EncodedImage(data).decode(3)[:20, :30]
        )


def test_garbled_data_is_refused_and_not_filled_up():
    data = bytearray(KINDS["4:4:4"])
    start = data.index(b"\xff\xda") + 300
    data[start : start + 1000] = b"\xff\x00\xfe" * 333 + b"\0"
    with pytest.raises(ImageError, match=r"^name: damaged JPEG \(Corrupt JPEG data"):
        fast(bytes(data), WHOLE, (ROWS, COLUMNS))
    assert EncodedImage(bytes(data)).decode(3).shape == (ROWS, COLUMNS, 3)  # Pillow sees nothing


def test_what_libjpeg_merely_grumbles_about_is_pillows_to_decide():
    data = KINDS["4:2:0"]
    start = data.index(b"\xff\xdb")
    odd = data[:start] + b"\x01\x02\x03" + data[start:]  # bytes between two segments
    assert frame_of(odd) is None
    with pytest.raises(ValueError) as caught:
        jpeg.decode(odd, frame_of(data), 1, ROWS)
    assert not isinstance(caught.value, UserError)
    assert np.array_equal(fast(odd, WHOLE, (ROWS, COLUMNS))[0], EncodedImage(data).decode(3))


# ---- several boxes: what each would be alone, or nothing

BOXES = [(0, 0, 40, 30), (10, 20, 190, 140), (5.5, 70.25, 203, 150), (60, 3, 90, 20)]


@pytest.mark.parametrize(
    ("kind", "least"),
    [("4:4:4", (10, 10)), ("4:2:0", (50, 60)), ("progressive", (MANY, MANY)), ("gray", (50, 60)),
     ("restarts", (10, 10)), ("4:2:0", (10, 10))],
)  # fmt: skip
def test_several_boxes_are_what_each_is_alone(kind, least):
    data = KINDS[kind]
    choices = [lambda rows, columns, box=box: box for box in BOXES]
    together = jpeg_boxes(data, MANY, choices, least)
    for choose, (pixels, box) in zip(choices, together, strict=True):
        [(own, place)] = jpeg_boxes(data, MANY, [choose], least)
        assert box == place
        rows = math.ceil(box[3])
        assert rows <= min(len(pixels), len(own))
        assert np.array_equal(pixels[:rows], own[:rows])


def test_what_cannot_be_shared_is_left_out():
    data = KINDS["4:2:0"]
    whole = [lambda rows, columns: (0, 0, columns, rows)] * 2
    odd = data.replace(b"\xff\xdb\0C\0", b"\xff\xdb\0C\x09")  # a table of no known number
    assert odd != data
    assert jpeg_boxes(odd, MANY, whole[:1], (9, 9)) == []
    assert jpeg_boxes(data, ROWS * COLUMNS, whole, (9, 9))
    assert jpeg_boxes(data, ROWS * COLUMNS - 1, whole, (9, 9)) == []
    for other in (odd, KINDS["turned 6"], KINDS["cmyk"], b"no image"):
        assert jpeg_boxes(other, MANY, whole, (9, 9)) == []
    with pytest.raises(ImageError):
        jpeg_boxes(data[:-300], MANY, whole, (9, 9))


# ---- the header in one pass: what Pillow reads there, or nothing


@pytest.mark.parametrize("kind", KINDS)
def test_it_states_what_pillow_reads(kind):
    data = KINDS[kind]
    frame = frame_of(data)
    with Image.open(BytesIO(data)) as image:
        if image.mode == "CMYK" or image.info.get("adobe_transform") == 0:
            assert frame is None
            return
        assert (frame.columns, frame.rows) == image.size
        assert frame.gray == (image.mode == "L")
        assert frame.orientation == image.getexif().get(274, 1)
        assert frame.progressive == ("progressive" in image.info)
    assert frame.single == (kind not in ("progressive", "restarts"))
    assert data[frame.place : frame.place + 2] == ROWS.to_bytes(2)
    assert data[frame.scan : frame.scan + 2] == b"\xff\xda"


def test_a_header_that_ends_early_is_none():
    for kind, data in KINDS.items():
        if (frame := frame_of(data)) is not None:
            for end in range(frame.scan + 4):
                assert frame_of(data[:end]) is None, (kind, end)


UNUSUAL = [
    (b"\xff\xdb", b"\xff\xff\xdb"),  # padding
    (b"\xff\xdb", b"\0\xff\xdb"),  # a stray byte
    (b"\xff\xdb", b"\xff\xfe\0\1\xff\xdb"),  # a segment shorter than its length
    (b"\xff\xdb", b"\xff\xcc\0\4\0\0\xff\xdb"),  # arithmetic codes
    (b"\xff\xdb", b"\xff\xee\0\x0eAdobe\0\x64\0\0\0\0\0\xff\xdb"),  # colors stored as RGB
    (b"\xff\xc0\0\x11\x08", b"\xff\xc0\0\x11\x0c"),  # 12 bits
    (b"\xff\xc0\0\x11\x08", b"\xff\xc3\0\x11\x08"),  # lossless
    (b"\xff\xc0\0\x11\x08" + ROWS.to_bytes(2), b"\xff\xc0\0\x11\x08\0\0"),  # rows follow later
]


def test_what_is_unusual_is_left_to_pillow():
    data = KINDS["4:2:0"]
    assert frame_of(data) is not None
    for found, put in UNUSUAL:
        assert found in data
        assert frame_of(data.replace(found, put, 1)) is None


def test_a_limit_holds_on_the_fast_way():
    data = KINDS["4:2:0"]
    pixels = ROWS * COLUMNS
    assert whole(data, max_pixels=pixels).shape == (ROWS, COLUMNS, 3)
    with pytest.raises(ImageError, match=r"^name: 203 x 150 pixels exceed the limit of 30,449"):
        whole(data, max_pixels=pixels - 1)
    with pytest.raises(ImageError, match=r"^name: not a PNG or WebP image"):
        whole(data, formats=("PNG", "WEBP"))


def test_many_scans_are_refused_on_the_fast_way():
    data = KINDS["progressive"]
    scan = data.rindex(b"\xff\xda")
    end = data.rindex(b"\xff\xd9")
    many = data[:end] + 60 * data[scan:end] + data[end:]
    frame = frame_of(many)
    assert exceeded(frame, many, ROWS * COLUMNS)  # before anything is decoded
    assert not exceeded(frame, data, ROWS * COLUMNS)
    whole(data, max_pixels=ROWS * COLUMNS)
    with pytest.raises(
        ImageError, match=r"^name: a progressive JPEG with \d+ scans takes too long"
    ):
        whole(many, max_pixels=ROWS * COLUMNS)


@pytest.mark.parametrize("scale", [1, 2, 8])
@pytest.mark.parametrize("sampling", ["4:4:4", "4:2:2", "4:2:0", "4:1:1", "4:4:0", "gray"])
def test_rows_left_out_below_change_none_above(sampling, scale):
    """On noise, where colors blended with those of the next row would show."""
    if sampling == "4:4:0":
        import simplejpeg

        data = simplejpeg.encode_jpeg(np.asarray(NOISE), 95, colorsubsampling="440")
    elif sampling == "gray":
        data = save(NOISE.convert("L"))
    else:
        data = save(NOISE, subsampling=sampling)
    frame = frame_of(data)
    assert frame.single
    complete = jpeg.decode(data, frame, scale, frame.rows)
    for until in range(1, frame.rows):
        part = jpeg.decode(data, frame, scale, until)
        rows = -(-until // scale)
        assert rows <= len(part) <= len(complete)
        assert np.array_equal(part[:rows], complete[:rows]), until
        if until + 2 * scale < frame.rows:
            assert len(part) == -(-until // scale) + 2


def test_damaged_headers_never_decode_to_other_pixels():
    generator = np.random.default_rng(5)
    decoded = 0
    for data in KINDS.values():
        head = data.index(b"\xff\xda") + 14
        for _ in range(40):
            broken = bytearray(data)
            broken[int(generator.integers(2, head))] = int(generator.integers(256))
            image = EncodedImage(bytes(broken), max_pixels=4_000_000)
            try:
                pixels = whole(bytes(broken), max_pixels=4_000_000)
            except ImageError:
                continue
            decoded += 1
            assert np.array_equal(pixels, image.decode(3))
    assert decoded > 100
