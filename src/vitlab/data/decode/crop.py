"""The part of an image that the model sees: a random one to train, the center to evaluate."""

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from PIL import Image
from torch.nn import functional as F

from vitlab.data.decode.filters import Side
from vitlab.data.decode.pixels import Box, Pixels, as_image
from vitlab.images import ImageSpec

DRAWS = 22
"""Uniform random numbers that `random_box` needs: two for each of ten attempts, two to place it."""


def crop_resize(
    image: Pixels,
    box: Box,
    rows: int,
    columns: int,
    interpolation: Literal["bilinear", "bicubic"] = "bilinear",
    center: bool = False,
) -> Pixels:
    """Resize one box of an image, antialiased, by Pillow.

    Args:
        image: Shape (height, width, channels) with 1, 3 or 4 channels, or more, of several frames;
            colors of RGBA are weighted by alpha.
        box: Within the image.
        rows: Height of the result.
        columns: Width of the result.
        interpolation: The filter.
        center: Whether the result is the center of the whole image resized, where Pillow starts
            with the rows unless there are over twice as many as columns.

    Returns:
        A new array of shape (rows, columns, channels); a copy if nothing has to change.
    """
    if image.shape[:2] == (rows, columns) and tuple(box) == (0, 0, columns, rows):
        return np.array(image, order="C")
    method = Image.Resampling[interpolation.upper()]
    if image.shape[2] > 4:  # of frames
        parts = np.split(image, image.shape[2], axis=2)
        whole = [crop_resize(each, box, rows, columns, interpolation, center) for each in parts]
        return np.concatenate(whole, axis=2)
    left, top, right, bottom = box
    across = center and (image.shape[0] <= 2 * image.shape[1] or bottom - top <= rows)
    if across:
        reach = 3 * max(1.0, (bottom - top) / rows)
        first = max(0, math.floor(top - reach))
        image = image[first : math.ceil(bottom + reach)]
        top, bottom = (float(np.float32(edge)) - first for edge in (top, bottom))  # as Pillow does
    result = as_image(image)
    if across:  # else Pillow may start with columns, which saves work
        result = result.resize((columns, len(image)), method, box=(left, 0, right, len(image)))
        left = 0
        right = columns
    result = result.resize((columns, rows), method, box=(left, top, right, bottom))
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
    left = min(left, image.shape[1] - 1)
    top = min(top, image.shape[0] - 1)
    inside = image[top : max(bottom, top + 1), left : max(right, left + 1)]
    if image.shape[2] == 4:  # colors weighted by alpha
        return crop_resize(inside, whole_box(*inside.shape[:2]), rows, columns, interpolation)
    # the batch first: else PyTorch does not see that channels are last, and copies to planes
    pixels = torch.from_numpy(np.ascontiguousarray(inside))[None].permute(0, 3, 1, 2)
    resized = F.interpolate(pixels, (rows, columns), mode=interpolation, antialias=True)
    return resized.permute(0, 2, 3, 1)[0].numpy()


def resized_box(rows: Side, columns: Side, spec: ImageSpec) -> tuple[Side, Side, Side, Side]:
    """Return the part of an image that is its center once the whole is resized to whole pixels.

    So timm, torchvision and transformers prepare images: the size and the share that is kept decide
    one side, rounded down, and so the other, rounded down too (that of a rectangle half to even, as
    by timm). One resize of this box gives the pixels of both steps, but for 1 in 5,000 that differ
    by a level, because Pillow keeps its edges in single precision.

    Args:
        rows: of the image; in an exported graph a tensor of double precision
        columns: likewise
        spec: size, crop, fit, and how the offset is rounded

    Returns:
        Left, top, right, bottom.
    """
    high, wide = (math.floor(side / spec.crop + 1e-6) for side in spec.size)
    tall = high * rows // columns
    long = wide * columns // rows
    if high != wide:
        tall = _half(2 * rows / (columns / wide))
        long = _half(2 * columns / (rows / high))
    left, right = _middle(columns, long, wide, spec.size[1], spec)
    top, bottom = _middle(rows, tall, high, spec.size[0], spec)
    return left, top, right, bottom


def _middle(side: Side, most: Side, least: int, kept: int, spec: ImageSpec) -> tuple[Side, Side]:
    """Return where the central pixels of a resized side begin and end in the image."""
    whole = least + (most - least) * ((most > least) & (spec.fit == "crop"))
    start = (whole - kept) // 2 if spec.center == "floor" else _half(whole - kept)
    return start * side / whole, (start + kept) * side / whole


def _half(number: Side) -> Side:
    """Return half of a number, rounded half to even, as by Python and torchvision."""
    whole = number // 1
    return (whole + ((whole != number) | (whole % 4 == 3))) // 2


def whole_box(rows: int, columns: int, crop: float = 1.0) -> Box:
    """Return the whole image, or the centered share `crop` in (0, 1] of each side."""
    return center_box(rows, columns, rows, columns, crop)


def center_box(rows: int, columns: int, high: float, wide: float, crop: float) -> Box:
    """Return the largest centered box of the aspect ratio `high` by `wide`, scaled by `crop`."""
    left = (columns - min(columns, rows * wide / high) * crop) / 2
    top = (rows - min(rows, columns * high / wide) * crop) / 2
    return left, top, columns - left, rows - top


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
    own = out_columns / out_rows
    low = math.log(aspect[0])
    high = math.log(aspect[1])
    for attempt in range(0, DRAWS - 2, 2):
        share = area[0] + (area[1] - area[0]) * draws[attempt]
        ratio = own * math.exp(low + (high - low) * draws[attempt + 1])
        width = math.sqrt(rows * columns * share * ratio)
        height = width / ratio
        if width <= columns and height <= rows:
            left = (columns - width) * draws[-2]
            top = (rows - height) * draws[-1]
            return left, top, left + width, top + height
    ratio = min(max(columns / rows, own * aspect[0]), own * aspect[1])
    return center_box(rows, columns, 1.0, ratio, 1.0)
