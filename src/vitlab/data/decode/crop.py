"""The part of an image that the model sees: a random one to train, the center to evaluate."""

import math
from typing import Literal

import numpy as np
import torch
from PIL import Image
from torch.nn import functional as F

from vitlab.data.decode.crop_box import whole_box
from vitlab.data.decode.pixels import Box, Pixels, as_image


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
