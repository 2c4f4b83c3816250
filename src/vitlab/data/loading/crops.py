"""Crops of one image: the center, or random ones; it is decoded once for them all."""

import math
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

import numpy as np

from vitlab.data.decode.crop import crop_resize, cut_resize
from vitlab.data.decode.crop_box import whole_box
from vitlab.data.decode.pixels import Box, ChooseBox, Pixels
from vitlab.data.decode.resized_box import resized_box
from vitlab.data.decode.stored import EncodedImage, StoredImage
from vitlab.data.images import Images
from vitlab.data.loading.views import View
from vitlab.errors import ImageError
from vitlab.images import ImageSpec


def center(spec: ImageSpec) -> ChooseBox:
    """Return the box that evaluation uses."""
    if spec.fit == "native":
        return partial(whole_box, crop=spec.crop)
    return partial(resized_box, spec=spec)


def fitted_image(
    image: StoredImage, spec: ImageSpec, choose: ChooseBox | None = None, *, quick: bool = False
) -> Pixels:
    """Decode, crop and resize one image: uint8 (H, W, channels).

    Args:
        image: to be decoded
        spec: size, channels and interpolation
        choose: where to crop it, given its rows and columns; None for the center
        quick: for random boxes: crop at whole pixels, from a JPEG decoded at as little as the size
            of the result (else whole, as other libraries do) and no further down than the box

    Raises:
        ImageError: it cannot be decoded.
    """
    if (part := image.fitted(spec.size, spec.channels, choose if quick else None)) is not None:
        return part
    choose = choose or center(spec)
    size = spec.size
    if spec.fit == "native":
        left, top, right, bottom = choose(*image.shape()[:2])
        size = spec.size_for(bottom - top, right - left)
    least = size if quick else (math.inf, math.inf)
    pixels, box = image.decode_box(spec.channels, choose, least, cut=quick)
    if quick:
        return cut_resize(pixels, box, *size, spec.interpolation)
    whole = spec.fit == "crop" and spec.channels < 4
    return crop_resize(pixels, box, *size, spec.interpolation, whole)


def resized_sides(size: tuple[int, int], window: tuple[int, int], scale: float) -> tuple[int, int]:
    """Return the rows and columns that windows slide over: at least those of one window.

    The shorter side is that of the window, or `scale` times it.
    """
    factor = scale * max(own / side for own, side in zip(window, size, strict=True))
    rows, columns = (max(own, round(side * factor)) for own, side in zip(window, size, strict=True))
    return rows, columns


def whole_image(
    image: StoredImage, spec: ImageSpec, scale: float, most: int
) -> tuple[Pixels, tuple[int, int]]:
    """Decode an image and resize all of it, to at most so many pixels, as `resized_sides` has it.

    Returns:
        uint8 (rows, columns, channels), and the image's own rows and columns.

    Raises:
        ImageError: it cannot be decoded, or would have too many pixels.
    """
    size = image.shape()[:2]
    rows, columns = resized_sides(size, spec.size, scale)
    if rows * columns > most:
        raise ImageError(
            f"{image.name}: {size[0]} x {size[1]} pixels become {rows} x {columns} for the model, "
            "too many: crop the image, or lower the scale"
        )
    pixels = image.decode(spec.channels)
    return crop_resize(pixels, whole_box(*size), rows, columns, spec.interpolation), size


def load_views(
    image: StoredImage, spec: ImageSpec, views: Sequence[View], choices: Sequence[ChooseBox]
) -> list[Pixels]:
    """Decode an image once, and return its views: uint8 (rows, columns, channels) each.

    A JPEG is decoded at as little as the sizes of the results allow, and no further down than the
    lowest of the boxes.

    Args:
        image: to be decoded
        spec: channels and interpolation
        views: their sizes
        choices: the box of each view, given the image's rows and columns

    Raises:
        ImageError: it cannot be decoded.
    """
    shape = image.shape()[:2]
    boxes = np.array([choose(*shape) for choose in choices])
    around: Box = (*boxes[:, :2].min(0).tolist(), *boxes[:, 2:].max(0).tolist())
    left, top, right, bottom = around
    # this box must keep what the most demanding view needs of its own
    sides = (boxes[:, 2:] - boxes[:, :2])[:, ::-1]  # rows and columns
    shares = np.array([view.size for view in views]) * (bottom - top, right - left) / sides
    rows, columns = shares.max(0).tolist()
    pixels, inside = image.decode_box(spec.channels, lambda *_: around, (rows, columns), cut=True)
    scale = (inside[2] - inside[0]) / (right - left)  # below 1 for a reduced JPEG
    places = np.array(inside) + (boxes - around) * scale
    places = places.clip(0, (pixels.shape[1], pixels.shape[0]) * 2)
    return [
        cut_resize(pixels, box, *view.size, spec.interpolation)
        for box, view in zip(places.tolist(), views, strict=True)
    ]


def copies_of(
    source: Images, indices: Sequence[int], spec: ImageSpec, choices: Sequence[ChooseBox]
) -> dict[int, Pixels]:
    """Return the random crops of JPEGs that occur several times, each decoded only once.

    To the bit they are what they would be if the image were decoded for each crop: which copies are
    in one batch depends on the number of processes.

    Args:
        source: the images
        indices: which of them a batch has
        spec: size, channels and interpolation
        choices: where to crop each, given its rows and columns

    Returns:
        uint8 (H, W, channels) by place in the batch. Images that cannot be shared are left out.
    """
    where = defaultdict[int, list[int]](list)
    found = dict[int, Pixels]()
    for place, index in enumerate(indices):
        where[index].append(place)
    for index, places in where.items():
        if len(places) > 1 and spec.fit != "native":  # there, each crop has its own size
            with suppress(ImageError):  # which every copy then reports
                image = source.image(index)
                boxes = [choices[place] for place in places]
                if isinstance(image, EncodedImage):
                    parts = image.decode_boxes(spec.channels, boxes, spec.size, cut=True)
                    for place, (pixels, box) in zip(places, parts, strict=False):
                        found[place] = cut_resize(pixels, box, *spec.size, spec.interpolation)
    return found
