"""The part of an image that the model sees: a random one to train, the center to evaluate."""

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from PIL import Image
from torch.nn import functional as F

from vitlab.data.decode.pixels import Box, Pixels

DRAWS = 22
"""Uniform random numbers that `random_box` needs: two for each of ten attempts, two to place it."""


def crop_resize(
    image: Pixels,
    box: Box,
    rows: int,
    columns: int,
    interpolation: Literal["bilinear", "bicubic"] = "bilinear",
) -> Pixels:
    """Resize one box of an image, antialiased, by Pillow.

    Args:
        image: Shape (height, width, channels) with 1, 3 or 4 channels; colors of RGBA are weighted
            by alpha.
        box: Within the image.
        rows: Height of the result.
        columns: Width of the result.
        interpolation: The filter.

    Returns:
        A new array of shape (rows, columns, channels); a copy if nothing has to change.
    """
    if image.shape[:2] == (rows, columns) and tuple(box) == (0, 0, columns, rows):
        return np.array(image, order="C")
    method = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
    source = Image.fromarray(image[:, :, 0] if image.shape[2] == 1 else image)
    result = source.resize((columns, rows), method[interpolation], box=box)
    return np.array(result).reshape(rows, columns, image.shape[2])


def cut_resize(
    image: Pixels,
    box: Box,
    rows: int,
    columns: int,
    interpolation: Literal["bilinear", "bicubic"] = "bilinear",
) -> Pixels:
    """Resize one box four times as fast as `crop_resize`: for training, where boxes are random.

    The box is rounded to whole pixels, and pixels outside it are not read. PyTorch's antialiased
    kernel for bytes has Pillow's filters; its result is within one level of Pillow's, except for a
    few pixels beside hard edges with bicubic.

    Args:
        image: Shape (height, width, channels) with 1, 3 or 4 channels.
        box: Within the image.
        rows: Height of the result.
        columns: Width of the result.
        interpolation: The filter.

    Returns:
        An array of shape (rows, columns, channels).
    """
    left, top, right, bottom = (round(edge) for edge in box)
    left, top = min(left, image.shape[1] - 1), min(top, image.shape[0] - 1)
    inside = image[top : max(bottom, top + 1), left : max(right, left + 1)]
    if image.shape[2] == 4:  # colors weighted by alpha
        return crop_resize(inside, (0, 0, *inside.shape[1::-1]), rows, columns, interpolation)
    # the batch first: else PyTorch does not see that channels are last, and copies to planes
    pixels = torch.from_numpy(np.ascontiguousarray(inside))[None].permute(0, 3, 1, 2)
    resized = F.interpolate(pixels, (rows, columns), mode=interpolation, antialias=True)
    return resized.permute(0, 2, 3, 1)[0].numpy()


def center_box(rows: int, columns: int, out_rows: int, out_columns: int, crop: float) -> Box:
    """Return the largest centered box of the output's aspect ratio, scaled by `crop` in (0, 1].

    For a square output, a crop of 0.875 is the usual "resize to 256, take the central 224".
    """
    if not 0 < crop <= 1:
        raise ValueError(f"crop must be above 0 and at most 1, not {crop}")
    return _centered(rows, columns, out_rows, out_columns, crop)


def five_boxes(
    rows: int, columns: int, out_rows: int, out_columns: int, crop: float, *, squash: bool = False
) -> tuple[Box, ...]:
    """Return the four corners and the center, each as large as the center crop of that share.

    At a share of 0.875 of a square output it is "resize to 256, take five crops of 224"
    (Krizhevsky et al., 2012). The corners are those of the whole image, whatever its shape.

    Args:
        rows: Height of the image.
        columns: Width of the image.
        out_rows: Height of the output.
        out_columns: Width of the output.
        crop: Share of each side, in (0, 1].
        squash: Whether boxes have the image's aspect ratio, not the output's.

    Returns:
        Upper left, upper right, lower left, lower right, center.
    """
    if squash:
        out_rows, out_columns = rows, columns
    center = center_box(rows, columns, out_rows, out_columns, crop)
    left, top, right, bottom = center
    wide, high = right - left, bottom - top
    corners = [(x, y) for y in (0.0, rows - high) for x in (0.0, columns - wide)]
    return *((x, y, x + wide, y + high) for x, y in corners), center


def whole_box(rows: int, columns: int, crop: float) -> Box:
    """Return the whole image, or the centered share `crop` in (0, 1] of each side."""
    return _centered(rows, columns, rows, columns, crop)


def random_box(
    rows: int,
    columns: int,
    out_rows: int,
    out_columns: int,
    area: tuple[float, float],
    aspect: tuple[float, float],
    draws: Sequence[float],
) -> Box:
    """Return the random crop of Inception training (Szegedy et al., 2015).

    All randomness is in `draws`. Each of up to ten attempts takes two draws: one for the box's
    share of the image's area, uniform in `area`, one for its aspect ratio (width over height,
    relative to the output's), log-uniform in `aspect`. The first box that fits is placed by
    the last two draws. If none fits, the result is the largest centered box whose aspect ratio is
    in the range.

    Args:
        rows: Height of the image.
        columns: Width of the image.
        out_rows: Height of the output.
        out_columns: Width of the output.
        area: Least and greatest share of the area.
        aspect: Least and greatest aspect ratio; 1 is the output's own.
        draws: `DRAWS` numbers in [0, 1).

    Returns:
        A box within the image.
    """
    if len(draws) != DRAWS:
        raise ValueError(f"{DRAWS} draws are needed, not {len(draws)}")
    own = out_columns / out_rows
    low, high = math.log(aspect[0]), math.log(aspect[1])
    for attempt in range(0, DRAWS - 2, 2):
        share = area[0] + (area[1] - area[0]) * draws[attempt]
        ratio = own * math.exp(low + (high - low) * draws[attempt + 1])
        width = math.sqrt(rows * columns * share * ratio)
        height = width / ratio
        if width <= columns and height <= rows:
            left, top = (columns - width) * draws[-2], (rows - height) * draws[-1]
            return left, top, left + width, top + height
    ratio = min(max(columns / rows, own * aspect[0]), own * aspect[1])
    return _centered(rows, columns, 1.0, ratio, 1.0)


def random_part(
    rows: int, columns: int, area: tuple[float, float], aspect: float, draws: Sequence[float]
) -> Box:
    """Return the random crop of an image that keeps its own aspect ratio, up to a factor.

    Args:
        rows: Height of the image.
        columns: Width of the image.
        area: Least and greatest share of the area.
        aspect: Largest factor either way.
        draws: As for `random_box`.
    """
    return random_box(rows, columns, rows, columns, area, (1 / aspect, aspect), draws)


def _centered(rows: int, columns: int, high: float, wide: float, crop: float) -> Box:
    """Return the largest centered box of the aspect ratio `high` by `wide`, scaled by `crop`."""
    left = (columns - min(columns, rows * wide / high) * crop) / 2
    top = (rows - min(rows, columns * high / wide) * crop) / 2
    return left, top, columns - left, rows - top
