"""The fast way through a JPEG: Pillow's pixels, or a refusal."""

from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from made_jpegs import COLUMNS, KINDS, PICTURE, ROWS
from vitlab.data.decode import jpeg
from vitlab.data.decode.headers import BACK, turn, turn_box
from vitlab.data.decode.jpeg import frame_of
from vitlab.data.decode.stored import EncodedImage
from vitlab.errors import ImageError, UserError


def fast(data, box, at_least, channels=3, cut=True):
    image = EncodedImage(data, "name")
    return image.decode_box(channels, lambda rows, columns: box, at_least, cut=cut)


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("channels", [1, 3])
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
    assert jpeg.scale_for(1792, 1792, 224, 224) == 8
    assert jpeg.scale_for(1791.9, 5000, 224, 224) == 4
    assert jpeg.scale_for(447, 448, 224, 224) == 1
    assert jpeg.scale_for(448, 448, 224, 224) == 2


@pytest.mark.parametrize("orientation", range(1, 9))
def test_turning_boxes_and_pixels(orientation):
    stored = np.arange(5 * 7, dtype=np.uint8).reshape(5, 7, 1)
    upright = turn(stored, orientation)
    transposes = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_270,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_90,
    }
    image = Image.fromarray(stored[..., 0])
    if orientation > 1:
        image = image.transpose(transposes[orientation])
    assert np.array_equal(upright[..., 0], np.asarray(image))
    left, top, right, bottom = turn_box((1, 2, 4, 3), orientation, 5, 7)
    inside = upright[top:bottom, left:right]
    assert sorted(inside.ravel()) == sorted(stored[2:3, 1:4].ravel())
    back = turn_box(
        (left, top, right, bottom), BACK.get(orientation, orientation), *upright.shape[:2]
    )
    assert back == (1, 2, 4, 3)


WHOLE = (0, 0, COLUMNS, ROWS)


@pytest.mark.parametrize("kind", ["4:2:0", "4:4:4", "progressive", "gray"])
@pytest.mark.parametrize("share", [0.3, 0.6, 0.95])
@pytest.mark.parametrize("box", [WHOLE, (0, 0, 30, 20)])
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
    assert EncodedImage(bytes(data)).decode(3).shape == (
        ROWS,
        COLUMNS,
        3,
    )  # Pillow alone sees nothing


def test_what_libjpeg_merely_grumbles_about_is_pillows_to_decide():
    data = KINDS["4:2:0"]
    start = data.index(b"\xff\xdb")
    odd = data[:start] + b"\x01\x02\x03" + data[start:]  # bytes between two segments
    assert frame_of(odd) is None
    with pytest.raises(ValueError) as caught:
        jpeg.decode(odd, frame_of(data), 1, ROWS)
    assert not isinstance(caught.value, UserError)
    assert np.array_equal(fast(odd, WHOLE, (ROWS, COLUMNS))[0], EncodedImage(data).decode(3))


def test_other_formats_and_alpha_take_pillows_way():
    stream = BytesIO()
    PICTURE.save(stream, "PNG")
    pixels, place = fast(stream.getvalue(), (1.5, 2, 30, 40), (20, 20))
    assert np.array_equal(pixels, np.asarray(PICTURE))
    assert place == (1.5, 2, 30, 40)
    assert fast(KINDS["4:4:4"], WHOLE, (ROWS, COLUMNS), channels=4)[0].shape == (ROWS, COLUMNS, 4)
