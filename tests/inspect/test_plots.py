"""A plot for each array: the numbers that are drawn, where they are drawn, and their units."""

import io
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image

import vitlab
from vitlab.errors import OptionError
from vitlab.inspect import plots
from vitlab.inspect.plots.canvas import in_gray
from vitlab.pages.palette import DARK, LIGHT

GENERATOR = np.random.default_rng(0)
PHOTO = GENERATOR.integers(0, 256, (48, 64, 3), np.uint8)
SHAPES = {
    "attention_distance": (3, 4), "attention_entropy": (3, 4), "token_norms": (2, 4, 7),
    "token_similarity": (2, 4), "embedding_filters": (9, 4, 4, 3),
    "position_similarity": (3, 4, 3, 4), "rollout": (3, 4), "relevance": (3, 4), "gradcam": (3, 4),
    "late_attention": (3, 4), "similar_patches": (3, 4), "norm_map": (3, 4),
    "class_attention": (2, 3, 4), "feature_colors": (3, 4, 3),
}  # fmt: skip
UNITS = {
    "attention_distance": "pixels", "attention_entropy": "bits", "token_norms": "length",
    "token_similarity": "cosine", "position_similarity": "cosine",
    "rollout": "share", "relevance": "share", "gradcam": "share",
    "late_attention": "share",
    "similar_patches": "cosine", "norm_map": "length", "class_attention": "%",
}  # fmt: skip


FIGURES = {"Look", "attention_elsewhere", "look", "receptive_field"}


def made(name: str, *more: Any, **choices: Any) -> tuple[np.ndarray, Figure]:
    values = GENERATOR.random(SHAPES[name], np.float32)
    return values, getattr(plots, name)(torch.from_numpy(values), *more, **choices)


def labels(figure: Figure) -> str:
    """The words at the axes of a figure, and at the scales beside them."""
    every = [each for axes in figure.axes for each in (axes, *axes.child_axes)]
    return " ".join(each.get_xlabel() + each.get_ylabel() + each.get_title() for each in every)


def test_every_array_has_its_plot() -> None:
    assert {*vitlab.inspect.__all__} - FIGURES == {*SHAPES}
    assert {*plots.__all__} == {*SHAPES, "through_depth"}


@pytest.mark.parametrize("name", SHAPES)
def test_it_has_its_title_and_unit_in_dark_and_refuses_other_shapes(name: str) -> None:
    _, figure = made(name, title="a model", dark=True)
    assert figure.get_suptitle() == "a model"
    assert UNITS.get(name, "") in labels(figure)
    text = io.StringIO()
    figure.savefig(text, format="svg")
    assert DARK["card"] in text.getvalue()
    assert LIGHT["card"] not in text.getvalue()
    for shape in ((2,), (0, *SHAPES[name][1:])):
        with pytest.raises(OptionError, match=r"values must be .*not of shape \("):
            getattr(plots, name)(np.ones(shape))


def test_colors_have_three_channels() -> None:
    with pytest.raises(OptionError, match=r"values must be .*, 3\), not of shape \(3, 4, 2\)"):
        plots.feature_colors(np.ones((3, 4, 2)))


def test_a_point_for_each_head_at_its_layer() -> None:
    values, figure = made("attention_distance")
    axes = figure.axes[0]
    points = np.asarray(axes.collections[0].get_offsets())
    assert points.tolist() == [[n + 1, v] for n, row in enumerate(values.tolist()) for v in row]
    assert np.allclose(axes.lines[0].get_ydata(), values.mean(1))
    assert axes.get_ylim()[0] == 0 < values.max() < axes.get_ylim()[1]


def test_norms_are_of_patches_only() -> None:
    values, figure = made("token_norms", prefix=3)
    mean, longest = (line.get_ydata() for line in figure.axes[0].lines)
    assert np.allclose(mean, values[:, :, 3:].mean((0, 2)))
    assert np.allclose(longest, values[:, :, 3:].max((0, 2)))


def test_a_tile_for_each_position() -> None:
    values, figure = made("position_similarity")
    tiles = np.ma.filled(figure.axes[0].images[0].get_array(), np.nan)
    assert tiles.shape == (3 * 4 - 1, 4 * 5 - 1)  # a row and a column between tiles
    assert np.array_equal(tiles[4:7, 10:14], values[1, 2])
    assert np.isnan(tiles[3]).all()
    assert figure.axes[0].get_xticks().tolist() == [1.5, 6.5, 11.5, 16.5]  # the middles of tiles
    assert figure.axes[0].get_yticks().tolist() == [1, 5, 9]


def test_a_map_lies_where_its_patches_are() -> None:
    values = np.zeros((3, 4), np.float32)
    values[2, 1] = 5
    figure = plots.rollout(values, PHOTO)
    left, right = figure.axes
    (photo,), (gray, over) = left.images, right.images
    assert np.array_equal(photo.get_array(), PHOTO)
    assert np.array_equal(over.get_array(), values / 5)  # its share of the sum
    assert over.get_extent() == gray.get_extent() == [0, 64, 48, 0]
    assert over.get_interpolation() == "bicubic"
    assert figure.get_size_inches() == pytest.approx((6.4, 2.7 * 0.75 + 0.4))


def test_the_patch_that_others_are_like_is_framed() -> None:
    _, figure = made("similar_patches", PHOTO, patch=(1, 3))
    frames = [each for each in figure.axes[1].patches if isinstance(each, Rectangle)]
    assert len(frames) == 2
    for each in frames:
        own = (each.get_x(), each.get_y(), each.get_width(), each.get_height())
        assert own == (48, 16, 16, 16)  # of a photo of 64 x 48 pixels, in patches of 16


def test_heads_stand_side_by_side_each_with_its_largest_value() -> None:
    values = np.zeros((2, 3, 4), np.float32)
    values[0, 0, 0], values[1, 2, 3] = 0.456, 0.012
    figure = plots.class_attention(values)
    assert [axes.get_title() for axes in figure.axes] == ["head 1: to 46%", "head 2: to 1.2%"]
    for axes, own in zip(figure.axes, values, strict=True):
        assert np.array_equal(axes.images[0].get_array(), own)
        assert axes.images[0].get_clim() == (0, own.max())


def test_both_readings_of_distances_are_drawn_and_the_share_of_the_class_token() -> None:
    values, shares = GENERATOR.random((2, 3, 4), np.float32)
    figure = plots.attention_distance(values, among=values + 1, elsewhere=shares)
    above, below = figure.axes
    assert [line.get_ydata().tolist() for line in above.lines] == [
        values.mean(1).tolist(), (values + 1).mean(1).tolist(),
    ]  # fmt: skip
    heights = [bar.get_height() for bar in below.patches]
    assert heights == pytest.approx(100 * shares.mean(1))


@pytest.mark.parametrize("photo", [PHOTO, PHOTO[..., 0]])
def test_colors_stand_beside_their_image(photo: np.ndarray) -> None:
    values, figure = made("feature_colors", photo)
    image, colors = (axes.images[0] for axes in figure.axes)
    assert np.array_equal(image.get_array(), photo)
    assert np.array_equal(colors.get_array(), values)
    assert image.get_extent() == colors.get_extent()
    large = plots.norm_map(np.eye(4), np.zeros((2000, 3000), np.uint8))
    assert max(large.axes[0].images[0].get_array().shape) == 320  # drawn small


def test_gray_is_pillows() -> None:
    colors = np.random.default_rng(0).integers(0, 256, (9, 7, 3), np.uint8)
    assert np.abs(in_gray(colors) - np.array(Image.fromarray(colors).convert("L"))).max() <= 1
