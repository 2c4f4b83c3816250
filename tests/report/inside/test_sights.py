"""What a page shows of a model: each pixel of a map is a patch, each scale says what it means."""

import base64
import io

import numpy as np
import pytest
from matplotlib import colormaps
from PIL import Image

from vitlab.report.drawings.lenses import COVER
from vitlab.report.inside.looked import Looked, SeenImage
from vitlab.report.inside.sights import HEADS, Lens, view

GENERATOR = np.random.default_rng(0)
PIXELS = GENERATOR.integers(0, 256, (30, 40, 3), np.uint8)


def decoded(uri: str) -> np.ndarray:
    image = Image.open(io.BytesIO(base64.b64decode(uri.split(",")[1])))
    return np.asarray(image)


def lens(kind: str, values: np.ndarray, **more: object) -> Lens:
    image = SeenImage("a.png", PIXELS, maps={kind: values.astype(np.float32)}, **more)  # type: ignore[arg-type]
    return view(Looked("m", [image])).sights[0].maps[0]


def test_a_map_has_a_pixel_for_each_patch_in_the_colors_of_its_scale() -> None:
    values = GENERATOR.random((3, 4))
    found = lens("rollout", values)
    pixels = decoded(found.image)
    want = colormaps["inferno"](values.astype(np.float32) / values.max(), bytes=True)
    assert np.abs(pixels[..., :3].astype(int) - want[..., :3]).max() <= 1
    assert (pixels[..., 3] == round(255 * COVER)).all()
    assert found.scale is not None
    assert found.scale.high == f"{values.max() / values.sum():.2%} of the sum"
    row, column = divmod(int(values.argmax()), 4)
    assert found.words == f"highest in row {row + 1} of 3, column {column + 1} of 4"


def test_what_a_class_loses_is_around_the_middle_of_its_scale() -> None:
    found = lens("occlusion", np.array([[0.0, 0.25], [-0.5, 0.1]]), watched="cat")
    assert found.title == "Occlusion for cat: 4 squares covered in turn"
    assert found.scale is not None
    assert (found.scale.low, found.scale.high) == ("−0.5", "+0.5 nats lost")
    middle = colormaps["PuOr_r"](0.5, bytes=True)[:3]
    assert np.abs(decoded(found.image)[0, 0, :3].astype(int) - middle).max() <= 2


def test_the_patch_that_others_are_like_is_framed() -> None:
    found = lens("similar_patches", GENERATOR.random((3, 4)), patch=(2, 1))
    assert found.ring == pytest.approx((25, 200 / 3, 25, 100 / 3))


def test_a_flat_map_is_drawn_evenly() -> None:
    for kind in ("rollout", "norm_map", "occlusion", "similar_patches"):
        for value in (0.0, 1.0):
            pixels = decoded(lens(kind, np.full((2, 2), value)).image)
            assert (pixels == pixels[0, 0]).all()


def test_weights_are_small_images() -> None:
    filters = GENERATOR.random((9, 5, 5, 3), np.float32)
    positions = GENERATOR.random((2, 3, 2, 3), np.float32)
    table = GENERATOR.random((3, 4), np.float32)
    found = Looked("m", filters=filters, positions=positions, cka=table, compared=8, beside="n")
    shown = {each.title: each for each in view(found).drawn}
    assert {*shown} == {"Filters", "Positions", "Layers"}
    sheet = decoded(shown["Filters"].image)
    assert sheet.shape == (2 * 6 - 1, 7 * 6 - 1, 4)
    own = filters[7] - filters[7].min()
    assert np.abs(sheet[6:11, :5, :3] - 255 * own / own.max()).max() <= 0.51
    assert not sheet[5, :, 3].any()  # between filters nothing is drawn
    tiles = decoded(shown["Positions"].image)
    assert tiles.shape == (2 * 3 - 1, 3 * 4 - 1, 4)
    assert not tiles[2, :, 3].any()
    layers = decoded(shown["Layers"].image)
    assert layers.shape == (3, 4, 4)
    want = colormaps["cividis"](table[0], bytes=True)  # layer 0 at the bottom
    assert np.abs(layers[-1].astype(int) - want).max() <= 1
    assert "layers of m up, from 0, of n to the right" in shown["Layers"].words


def test_gray_filters_and_very_many_heads() -> None:
    image = SeenImage("a.png", PIXELS[..., 0], heads=np.ones((HEADS + 5, 2, 2), np.float32))
    found = view(Looked("m", [image], layer=3, filters=np.ones((2, 3, 3, 1), np.float32)))
    assert decoded(found.drawn[0].image).shape == (3, 7, 4)
    sight = found.sights[0]
    assert (len(sight.heads), sight.others, sight.ratio) == (HEADS, 5, 4 / 3)
    assert found.which == "layer 3"
    assert sight.heads[0].title == "1 · 100%"
