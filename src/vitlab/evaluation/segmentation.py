"""Segmentation: class maps of whole images by sliding windows, and masks of them.

An image is resized until its shorter side is that of the model's input (`scale` times it), windows
of the input's size go over it, each two thirds of a side after the one before, and scores are
averaged where they overlap (DINOv2's and mmsegmentation's `slide`). Scores are resized bilinearly
to the image's own pixels, and compared there.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from vitlab.data.augment.normalize import normalize
from vitlab.data.decode.pixels import Pixels
from vitlab.data.images import Images
from vitlab.data.loading.crops import whole_image
from vitlab.data.loading.loader import in_chunks
from vitlab.data.open import open_images
from vitlab.data.settings import Columns
from vitlab.errors import DataError, ImageError
from vitlab.evaluation.compute import Compute, borrowed
from vitlab.evaluation.records import answered
from vitlab.files import staged_folder
from vitlab.images import ImageSpec
from vitlab.models.heads.mask_classes import MaskClasses, Truth
from vitlab.models.heads.segment import Segmenter, check_spec
from vitlab.progress import Meter
from vitlab.weights.segmenter import load_segmenter

CHUNK, BATCH = 8, 16  # images that a process prepares at a time; windows that a model sees at once
# pixels of a resized image, and their scores, at most
AREA = 2**24
SCORES = 2**28
SLAB = 2**25  # scores of whole images in memory at once
STEP = 2 / 3  # of a side, between windows (DINOv2: 341 of 512)


@dataclass(frozen=True, eq=False)
class Scene:
    """An image to be segmented.

    Attributes:
        index: its number in the source
        pixels: resized, uint8 (rows, columns, channels)
        size: its own rows and columns
        truth: the class of each of its own pixels; None where there is no mask
    """

    index: int
    pixels: Pixels
    size: tuple[int, int]
    truth: Truth | None


class Mapped(NamedTuple):
    """Maps of a scene's windows, (windows, channels, rows, columns), and the windows' corners."""

    scene: Scene
    maps: Tensor
    corners: list[tuple[int, int]]


Bad = tuple[int, str]  # number and message of an image that cannot be used


def corners_of(sides: Sequence[int], window: Sequence[int]) -> list[tuple[int, int]]:
    """Return the upper left corners of the windows over a resized image."""
    starts = []
    for side, own in zip(sides, window, strict=True):
        step = max(1, round(STEP * own))
        count = 1 + math.ceil((side - own) / step)
        starts.append([min(number * step, side - own) for number in range(count)])
    return [(top, left) for top in starts[0] for left in starts[1]]


def _scenes(
    source: Images, indices: range, spec: ImageSpec, scale: float, most: int
) -> list[Scene | Bad | DataError]:
    """Return images decoded, resized and with their masks; or what is wrong with one."""
    found: list[Scene | Bad | DataError] = []
    for index in indices:
        try:
            pixels, size = whole_image(source.image(index), spec, scale, most)
            truth = source.target.truth(index, size)
            found.append(Scene(index, pixels, size, truth))
        except ImageError as error:
            found.append((index, str(error)))
        except DataError as error:  # of all the data: the caller raises it
            found.append(error)
    return found


@torch.inference_mode()
def mapped(
    compute_map: Callable[[Tensor], Tensor],
    source: Images,
    spec: ImageSpec,
    scale: float,
    compute: Compute,
    classes: int = 1,
) -> Iterator[Mapped | Bad]:
    """Yield the maps of all windows of each image, in order; damaged images are named.

    Args:
        compute_map: normalized (B, channels, H, W) -> (B, numbers, rows, columns); on the device
        source: images, with masks or without
        spec: of the model
        scale: the shorter side of a resized image, in sides of the input
        compute: where, and how many processes decode
        classes: numbers of a resized pixel that are in memory at once

    Raises:
        DataError: a mask has a number that is no class.
    """
    most = most_pixels(classes)
    make = partial(_scenes, spec=spec, scale=scale, most=most)
    workers = 0 if len(source) <= CHUNK else compute.workers
    for chunk in in_chunks(source, make, CHUNK, workers):
        scenes = [each for each in chunk if isinstance(each, Scene)]
        maps = iter(maps_of(compute_map, scenes, spec, compute.where))
        for each in chunk:
            if isinstance(each, DataError):
                raise each
            yield next(maps) if isinstance(each, Scene) else each


def most_pixels(classes: int) -> int:
    """Return how many pixels a resized image may have, so that scores of classes fit in memory."""
    return min(AREA, SCORES // classes)


def maps_of(
    compute_map: Callable[[Tensor], Tensor],
    scenes: Sequence[Scene],
    spec: ImageSpec,
    device: torch.device,
) -> list[Mapped]:
    """Return the maps of all windows of images, a batch of windows at a time."""
    corners = [corners_of(each.pixels.shape[:2], spec.size) for each in scenes]
    rows, columns = spec.size
    views = [
        each.pixels[top : top + rows, left : left + columns]
        for each, own in zip(scenes, corners, strict=True)
        for top, left in own
    ]
    parts = []
    for first in range(0, len(views), BATCH):
        batch = torch.from_numpy(np.stack(views[first : first + BATCH])).to(device)
        parts.append(compute_map(normalize(batch, spec)))
    maps = torch.cat(parts).split([len(own) for own in corners]) if parts else ()
    return [Mapped(*each) for each in zip(scenes, maps, corners, strict=True)]


def stitched(found: Mapped, window: tuple[int, int]) -> Tensor:
    """Return the scores of a resized image, (classes, rows, columns): means over its windows."""
    rows, columns = found.scene.pixels.shape[:2]
    total = found.maps.new_zeros(found.maps.shape[1], rows, columns)
    count = found.maps.new_zeros(rows, columns)
    for each, (top, left) in zip(found.maps, found.corners, strict=True):
        own = slice(top, top + window[0]), slice(left, left + window[1])
        scores = F.interpolate(each[None], window, mode="bilinear", align_corners=False)[0]
        total[:, *own] += scores
        count[own] += 1
    return total / count


def labels_at(scores: Tensor, size: tuple[int, int]) -> Truth:
    """Return the class of each pixel of an image of a size, by its scores bilinearly resized.

    Of many classes, as many are resized at a time as fit into memory.
    """
    most = max(1, SLAB // math.prod(size))
    best = scores.new_full(size, -math.inf)
    label = torch.zeros(size, dtype=torch.int16, device=scores.device)
    for first in range(0, len(scores), most):
        some = scores[None, first : first + most]
        high, own = F.interpolate(some, size, mode="bilinear", align_corners=False)[0].max(0)
        better = high > best
        best = torch.where(better, high, best)
        label = torch.where(better, (own + first).to(torch.int16), label)
    found: Truth = label.cpu().numpy()
    return found


class Segmented(NamedTuple):
    """An image with its predicted classes, (rows, columns) of its own."""

    scene: Scene
    predicted: Truth


def segment(segmenter: Segmenter, source: Images, compute: Compute) -> Iterator[Segmented | Bad]:
    """Yield the predicted classes of each image, in order; damaged images are named.

    Raises:
        DataError: a mask has a number that is no class of the segmenter.
    """
    spec = segmenter.model.config.images
    about = segmenter.about
    with borrowed(segmenter, compute.where):
        args = source, spec, about.scale, compute, len(about.classes)
        for found in mapped(segmenter.coarse, *args):
            yield segmented(found, spec) if isinstance(found, Mapped) else found


def segmented(found: Mapped, spec: ImageSpec) -> Segmented:
    """Return the class of each of an image's own pixels."""
    return Segmented(found.scene, labels_at(stitched(found, spec.size), found.scene.size))


# Figures


DEEP = 256  # numbers from which a mask has 16 bits, and no palette


def write_masks(
    run: str | Path, data: Any, out: Path | None, compute: Compute, columns: Columns | None = None
) -> dict[str, Any]:
    """Segment images; write a mask for each, a PNG of the numbers that the training masks have.

    Args:
        run: of `vitlab probe --task segment`
        data: images, as `vitlab.data.open.open_images`
        out: a new folder for the masks, named like the images; None to write none
        compute: where, and how many processes decode
        columns: the columns of a list

    Returns:
        model, images, damaged; masks: of each image its name, `mask` (the file) and the share of
        each class there is, or the `error`.

    Raises:
        DataError: no such images.
        DiskError: the folder cannot be written.
    """
    segmenter = load_segmenter(run)
    check_spec(segmenter.model.config.images)
    source = open_images(data, "none", columns=columns).every()
    names = [f"{Path(source.name(number)).stem}.png" for number in range(len(source))]
    if len(set(names)) < len(names):  # of images in several folders
        names = [f"{number:06d}-{name}" for number, name in enumerate(names)]
    rows: dict[int, dict[str, Any]] = {}
    draft = staged_folder(out) if out else nullcontext()
    with draft as folder, Meter(len(source), title="segmenting") as meter:
        for number, found in enumerate(segment(segmenter, source, compute)):
            row: dict[str, Any] = {}
            if not isinstance(found, Segmented):
                row["error"] = found[1]
            else:
                if folder is not None:
                    row["mask"] = f"{out}/{names[number]}"
                    mask_image(found.predicted, segmenter.about).save(folder / names[number])
                row["shares"] = shares(found.predicted, segmenter.about)
            rows[number] = row
            meter.images(number + 1, len(source))
    return answered(segmenter.model, "masks", source, rows)


def shares(predicted: Truth, known: MaskClasses) -> dict[str, float]:
    """Return the share of the pixels that each class has, the largest first."""
    classes = known.classes
    counts = np.bincount(predicted.ravel(), minlength=len(classes)) / predicted.size
    return {classes[n]: float(counts[n]) for n in np.argsort(-counts, kind="stable") if counts[n]}


def mask_image(labels: Truth, known: MaskClasses) -> Image.Image:
    """Return classes (rows, columns) as an image of the numbers that masks have.

    Of numbers below 256 it has VOC's palette, so that a viewer shows the classes apart.
    """
    numbers = np.array(known.values, np.uint16)[labels]
    if max(known.values) >= DEEP:
        return Image.fromarray(numbers)
    made = Image.fromarray(numbers.astype(np.uint8))
    made.putpalette(voc_palette().ravel().tolist())
    return made


def voc_palette() -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return VOC's colors of 256 numbers, (256, 3): each bit of a color is one of the number."""
    numbers = np.arange(DEEP)
    colors = np.zeros((DEEP, 3), np.uint8)
    for bit in range(8):
        for channel in range(3):
            colors[:, channel] |= ((numbers >> (3 * bit + channel) & 1) << (7 - bit)).astype(
                np.uint8
            )
    return colors
