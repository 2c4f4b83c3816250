"""A plot for each array: the numbers that are drawn, where they are drawn, and their units."""

import io
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

import vitlab
from vitlab.errors import OptionError
from vitlab.inspect import plots
from vitlab.pages.palette import DARK, LIGHT

GENERATOR = np.random.default_rng(0)
PHOTO = GENERATOR.integers(0, 256, (48, 64, 3), np.uint8)
SHAPES = {
    "attention_distance": (3, 4), "attention_entropy": (3, 4), "token_norms": (2, 4, 7),
    "token_similarity": (2, 4), "cka": (4, 3), "embedding_filters": (9, 4, 4, 3),
    "position_similarity": (3, 4, 3, 4), "rollout": (3, 4), "relevance": (3, 4), "gradcam": (3, 4),
    "late_attention": (3, 4), "occlusion": (3, 4), "similar_patches": (3, 4), "norm_map": (3, 4),
    "class_attention": (2, 3, 4), "feature_colors": (3, 4, 3),
}  # fmt: skip
UNITS = {
    "attention_distance": "pixels", "attention_entropy": "bits", "token_norms": "length",
    "token_similarity": "cosine", "cka": "CKA", "position_similarity": "cosine",
    "rollout": "share", "relevance": "share", "gradcam": "share", "occlusion": "nats",
    "late_attention": "share",
    "similar_patches": "cosine", "norm_map": "length", "class_attention": "%",
}  # fmt: skip


LOSSES = {"hessian_spectrum", "loss_line", "loss_surface"}  # plots of several models each
FIGURES = {
    "MeanLoss", "curvature", "gradient_norm", "hessian_eigenvalues", "hessian_product",
    "hessian_trace", "noise_increase", "receptive_field", "sharpness",
}  # fmt: skip


def made(name: str, *more: Any, **choices: Any) -> tuple[np.ndarray, Figure]:
    values = GENERATOR.random(SHAPES[name], np.float32)
    return values, getattr(plots, name)(torch.from_numpy(values), *more, **choices)


def labels(figure: Figure) -> str:
    words = [text.get_text() for axes in figure.axes for text in axes.texts]
    return " ".join([each.get_xlabel() + each.get_ylabel() for each in figure.axes] + words)


def test_every_array_has_its_plot() -> None:
    assert {*vitlab.inspect.__all__} - FIGURES == {*SHAPES} | LOSSES
    assert {*plots.__all__} == {*SHAPES, "through_depth"} | LOSSES


@pytest.mark.parametrize("name", SHAPES)
def test_it_has_its_title_and_unit_in_light_and_dark(name: str) -> None:
    _, figure = made(name, title="a model", dark=True)
    assert figure.get_suptitle() == "a model"
    assert UNITS.get(name, "") in labels(figure)
    text = io.StringIO()
    figure.savefig(text, format="svg")
    assert DARK["card"] in text.getvalue()
    assert LIGHT["card"] not in text.getvalue()


@pytest.mark.parametrize("name", SHAPES)
def test_other_shapes_are_refused(name: str) -> None:
    with pytest.raises(OptionError, match=r"values must be .*not of shape \(2,\)"):
        getattr(plots, name)(np.ones(2))
    with pytest.raises(OptionError):
        getattr(plots, name)(np.ones((0, *SHAPES[name][1:])))


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


def test_the_first_model_goes_up_and_the_other_one_right() -> None:
    values, figure = made("cka", names=("one", "two"))
    axes = figure.axes[0]
    assert np.array_equal(axes.images[0].get_array(), values)
    assert axes.images[0].origin == "lower"
    assert (axes.get_ylabel(), axes.get_xlabel()) == ("layer of one", "layer of two")


def test_a_tile_for_each_position() -> None:
    values, figure = made("position_similarity")
    tiles = np.ma.filled(figure.axes[0].images[0].get_array(), np.nan)
    assert tiles.shape == (3 * 4 - 1, 4 * 5 - 1)  # a row and a column between tiles
    assert np.array_equal(tiles[4:7, 10:14], values[1, 2])
    assert np.isnan(tiles[3]).all()


def test_a_map_lies_where_its_patches_are() -> None:
    values = np.zeros((3, 4), np.float32)
    values[2, 1] = 5
    figure = plots.rollout(values, PHOTO)
    photo, _, over, _ = figure.axes[0].images  # in color, in gray, the map, its scale
    drawn = over.get_array()
    assert drawn.shape == (48, 64)
    row, column = np.unravel_index(int(drawn.argmax()), drawn.shape)
    assert (row // 16, column // 16) == (2, 1)
    assert drawn.max() == pytest.approx(1, abs=0.01)  # its share of the sum
    assert np.array_equal(photo.get_array(), PHOTO)
    assert over.get_extent() == figure.axes[0].images[1].get_extent()


def test_both_signs_of_occlusion_have_the_same_range() -> None:
    figure = plots.occlusion(np.array([[0.5, -2.0]]))
    assert figure.axes[0].images[0].get_clim() == (-2, 2)
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert texts == ["-2", "0", "2", "loss of log-probability (nats)"]


def test_the_patch_that_others_are_like_is_framed() -> None:
    _, figure = made("similar_patches", PHOTO, patch=(1, 3))
    left, right, bottom, top = figure.axes[0].images[2].get_extent()
    wide, high = (right - left) / 4, (top - bottom) / 3
    frames = [each for each in figure.axes[0].patches if isinstance(each, Rectangle)]
    assert len(frames) == 2
    for each in frames:
        own = (each.get_x(), each.get_y(), each.get_width(), each.get_height())
        assert own == pytest.approx((left + 3 * wide, bottom + high, wide, high))


def test_heads_stand_side_by_side_each_with_its_largest_value() -> None:
    values = np.zeros((2, 3, 4), np.float32)
    values[0, 0, 0], values[1, 2, 3] = 0.456, 0.012
    figure = plots.class_attention(values)
    axes = figure.axes[0]
    assert [text.get_text() for text in axes.texts] == ["head 1: to 46%", "head 2: to 1.2%"]
    bright = [np.asarray(image.get_array()).sum(-1) for image in axes.images]
    assert [int(each.argmax()) for each in bright] == [0, 11]


@pytest.mark.parametrize("photo", [PHOTO, PHOTO[..., 0]])
def test_colors_stand_beside_their_image(photo: np.ndarray) -> None:
    values, figure = made("feature_colors", photo)
    image, colors = (np.asarray(each.get_array()) for each in figure.axes[0].images)
    want = photo if photo.ndim == 3 else photo[..., None].repeat(3, 2)
    assert np.allclose(image, want / 255)
    assert np.allclose(colors[8::16, 8::16], values)


def test_large_images_are_drawn_small() -> None:
    figure = plots.norm_map(np.eye(4), np.zeros((2000, 3000), np.uint8))
    assert max(figure.axes[0].images[0].get_array().shape) == 320
