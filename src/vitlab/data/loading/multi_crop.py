"""Several crops of one image, which is decoded once for all of them."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from vitlab.data.augment.policy import draws_needed
from vitlab.data.decode import crop
from vitlab.data.decode.colors import convert
from vitlab.data.decode.jpeg import jpeg_boxes
from vitlab.data.decode.pixels import Box, ChooseBox, Pixels
from vitlab.data.decode.stored import EncodedImage, StoredImage
from vitlab.data.settings import Augment
from vitlab.data.sources.source import Source
from vitlab.errors import ImageError
from vitlab.images import ImageSpec


@dataclass(frozen=True)
class View:
    """One of the random crops of an image that a batch has (multi-crop; Caron et al., 2020).

    Attributes:
        size: rows and columns of the result, in pixels
        area: least and greatest share of the image
        augment: what is done to the crop; its aspect ratio is the crop's
    """

    size: tuple[int, int]
    area: tuple[float, float]
    augment: Augment

    @property
    def draws(self) -> int:
        """How many random numbers an image's crop takes, with its augmentation."""
        return crop.DRAWS + draws_needed(self.augment)

    def box(self, randoms: NDArray[np.float32]) -> ChooseBox:
        """Return where to crop an image, given `crop.DRAWS` random numbers."""
        rows, columns = self.size
        return partial(
            crop.random_box,
            out_rows=rows,
            out_columns=columns,
            area=self.area,
            aspect=(1 / self.augment.aspect, self.augment.aspect),
            draws=randoms.tolist(),
        )


def parted(randoms: NDArray[np.float32], views: Sequence[View]) -> list[NDArray[np.float32]]:
    """Part random numbers, (B, n), into those of each view: (B, `View.draws`) each."""
    ends = np.cumsum([view.draws for view in views])
    return np.split(randoms, ends[:-1], axis=1)


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
    boxes = [choose(*shape) for choose in choices]
    left, top = (min(box[side] for box in boxes) for side in (0, 1))
    right, bottom = (max(box[side] for box in boxes) for side in (2, 3))
    around: Box = (left, top, right, bottom)
    sizes = [view.size for view in views]
    # the box around all of them must keep what the most demanding view needs of its own
    rows = max(n * (bottom - top) / (b[3] - b[1]) for (n, _), b in zip(sizes, boxes, strict=True))
    columns = max(
        n * (right - left) / (b[2] - b[0]) for (_, n), b in zip(sizes, boxes, strict=True)
    )
    pixels, inside = image.decode_box(
        spec.channels, lambda high, wide: around, (rows, columns), cut=True
    )
    places = [moved(box, around, inside, pixels) for box in boxes]
    return [
        crop.cut_resize(pixels, box, *size, spec.interpolation)
        for box, size in zip(places, sizes, strict=True)
    ]


def copies_of(
    source: Source, indices: Sequence[int], spec: ImageSpec, choices: Sequence[ChooseBox]
) -> dict[int, Pixels]:
    """Return the random crops of images that occur several times, each decoded only once.

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
    where: dict[int, list[int]] = {}
    for place, index in enumerate(indices):
        where.setdefault(index, []).append(place)
    found: dict[int, Pixels] = {}
    for index, places in where.items():
        if len(places) > 1 and spec.fit != "native":  # there, each crop has its own size
            with suppress(ImageError):  # which every copy then reports
                crops = _copies(source.image(index), spec, [choices[each] for each in places])
                found.update(zip(places, crops, strict=False))
    return found


def _copies(image: StoredImage, spec: ImageSpec, choices: Sequence[ChooseBox]) -> list[Pixels]:
    """Return crops of one image; none where each has to be decoded by itself."""
    if not isinstance(image, EncodedImage) or "JPEG" not in image.formats:
        return []
    parts = jpeg_boxes(image.data, image.max_pixels, choices, spec.size) or []
    return [
        crop.cut_resize(convert(pixels, spec.channels), box, *spec.size, spec.interpolation)
        for pixels, box in parts
    ]


def moved(box: Box, known: Box, inside: Box, pixels: Pixels) -> Box:
    """Return where a box lies in decoded pixels, in which the place of another box is known."""
    scale = (inside[2] - inside[0]) / (known[2] - known[0])  # below 1 for a reduced JPEG
    limits = (pixels.shape[1], pixels.shape[0]) * 2
    left, top, right, bottom = (
        min(max(start + (edge - from_) * scale, 0.0), limit)
        for start, edge, from_, limit in zip(inside, box, known, limits, strict=True)
    )
    return left, top, right, bottom
