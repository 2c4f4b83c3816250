"""Geometry of boxes: how much two overlap, and frames in a picture."""

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import torch
from PIL import Image, ImageDraw
from torch import Tensor

from vitlab.data.decode.pixels import Pixels

TINY = 1e-9  # an area below is none


SURE = 0.5  # probability from which an object is drawn


def framed(pixels: Pixels, boxes: Any, names: Sequence[str] = ()) -> Image.Image:
    """Return an image (rows, columns, 3) with frames, left, top, right, bottom, and their names."""
    picture = Image.fromarray(pixels)
    draw = ImageDraw.Draw(picture)
    for box, name in zip_longest(boxes, names, fillvalue=""):
        draw.rectangle([float(edge) for edge in box], outline=(255, 60, 60))
        draw.text((float(box[0]), float(box[1])), name, fill=(255, 200, 60))
    return picture


def overlap(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Return IoU and generalized IoU of boxes, (…, 4) corners, of which no side is negative.

    Source: Rezatofighi et al., Generalized intersection over union, 2019.
    """
    low, high = torch.maximum(first, second), torch.minimum(first, second)
    shared = (high[..., 2:] - low[..., :2]).clamp(min=0).prod(-1)
    areas = [(each[..., 2:] - each[..., :2]).prod(-1) for each in (first, second)]
    union = areas[0] + areas[1] - shared
    around = (low[..., 2:] - high[..., :2]).prod(-1)
    iou = shared / union.clamp(min=TINY)
    return iou, iou - (around - union) / around.clamp(min=TINY)
