"""Batch k: which images it has, decoded and cropped to one size, with their labels."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from vitlab.data.augment.policy import draws_needed
from vitlab.data.decode import crop
from vitlab.data.decode.pixels import Box, ChooseBox, Pixels
from vitlab.data.decode.stored import StoredImage
from vitlab.data.loading.multi_crop import View, copies_of, load_views, moved, parted
from vitlab.data.loading.order import Groups, batch_samples, draws, slice_of
from vitlab.data.settings import Augment
from vitlab.data.sources.source import Source
from vitlab.data.sources.tar_shards import read_ahead
from vitlab.errors import ImageError
from vitlab.images import ImageSpec
from vitlab.models.packed import Packed

CORNERS = 0.875  # of each side: 224 of 256 pixels (Krizhevsky et al., 2012)
COMPUTED = ("images", "labels")  # on the training device
TENSORS = (*COMPUTED, "draws", "indices")


@dataclass(frozen=True)
class Batch:
    """Images that go through the model together, without those that cannot be decoded.

    Attributes:
        images: uint8 (B, H, W, C), or packed where each has its own size; five for each image if
            its corners are evaluated too
        labels: int64 (B,); float32 (B, classes), 0 or 1, where images have several
        draws: float32 (B, `draws_needed`), random numbers for `augment`; (B, 0) in evaluation
        indices: int64 (B,), which images of the source these are
        bad: index and message of each image that could not be decoded
        total: images of the whole batch, where this is the slice of one of several processes
        views: further crops of the same images, of one size each
    """

    images: Tensor | Packed
    labels: Tensor
    draws: Tensor
    indices: Tensor
    bad: list[tuple[int, str]] = field(default_factory=list)
    total: int = 0
    views: tuple["Batch", ...] = ()

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: torch.device) -> "Batch":
        """Return the same batch on another device; draws and indices, for the host, stay there."""
        later = device.type == "cuda"  # Apple's GPU may copy what is freed
        return self._mapped(lambda tensor: tensor.to(device, non_blocking=later), COMPUTED)

    def pin_memory(self) -> "Batch":
        """Return the batch in pinned memory, from which a copy to a GPU does not wait for it.

        PyTorch's `DataLoader` asks for it.
        """
        return self._mapped(lambda tensor: tensor.pin_memory(), COMPUTED)

    def pieces(self, size: int) -> Iterator["Batch"]:
        """Split the batch into pieces of at most `size` images, for gradient accumulation.

        An even number where possible, so that neighbors, which are mixed, stay together.
        """
        if size < len(self):
            size = max(1, size - size % 2)
        for first in range(0, len(self), size):
            yield self._mapped(itemgetter(slice(first, first + size)))

    def _mapped(self, change: Callable[[Any], Any], fields: tuple[str, ...] = TENSORS) -> "Batch":
        """Return this batch with some of its tensors changed, and everything else as it is."""
        changed: dict[str, Any] = {name: change(getattr(self, name)) for name in fields}
        views = tuple(view._mapped(change, fields) for view in self.views)
        return replace(self, **changed, views=views)


@dataclass(frozen=True)
class TrainingBatches(Dataset[Batch]):
    """Batch k as a pure function of (seed, k), or the slice of it that process `rank` learns from.

    Attributes:
        source: the images
        spec: size, channels and interpolation
        augment: random crop, repeats and what else the draws are for
        seed: of the order and of all draws
        batch: images per batch
        rank: of this process
        processes: that share each batch
        groups: the images of each class, to draw every class equally often; None: every image once
            per epoch
        views: the crops of each image in place of the one that `augment` asks for: the first of
            them are the batch's images
    """

    source: Source
    spec: ImageSpec
    augment: Augment
    seed: int
    batch: int
    rank: int = 0
    processes: int = 1
    groups: Groups | None = None
    views: tuple[View, ...] = ()

    def __getitem__(self, k: int) -> Batch:
        """Return batch k of the endless stream."""
        samples = batch_samples(
            self.seed, k, len(self.source), self.batch, self.augment.repeats, self.groups
        )
        own = slice_of(len(samples), self.rank, self.processes)
        samples = samples[own.start : own.stop]
        if self.views:
            return self._several(samples)
        count = crop.DRAWS + draws_needed(self.augment)
        randoms = np.stack([draws(self.seed, e, index, count, copy) for e, index, copy in samples])
        boxes = [self._box(row[: crop.DRAWS]) for row in randoms]
        indices = [index for _, index, _ in samples]
        others, quick = randoms[:, crop.DRAWS :], self.augment.area < 1
        return _stack(self.source, indices, self.spec, boxes, others, quick=quick)

    def _several(self, samples: list[tuple[int, int, int]]) -> Batch:
        """Return the views of (epoch, index, copy) each."""
        count = sum(view.draws for view in self.views)
        randoms = np.stack([draws(self.seed, e, index, count, copy) for e, index, copy in samples])
        each = parted(randoms, self.views)
        indices = [index for _, index, _ in samples]
        read_ahead(self.source, indices)
        found, places, bad = [], [], []
        for place, index in enumerate(indices):
            boxes = [
                v.box(own[place, : crop.DRAWS]) for v, own in zip(self.views, each, strict=True)
            ]
            try:
                image = self.source.image(index)
                found.append(load_views(image, self.spec, self.views, boxes))
                places.append(place)
            except ImageError as error:
                bad.append((index, str(error)))
        chosen = np.array(indices, np.int64)[places]
        labels = torch.from_numpy(self.source.labels.take(chosen).targets())
        batches = [
            Batch(
                joined_pixels(
                    [pixels[number] for pixels in found],
                    replace(self.spec.images, image_size=view.size),
                ),
                labels,
                torch.from_numpy(own[places, crop.DRAWS :]),
                torch.from_numpy(chosen),
            )
            for number, (view, own) in enumerate(zip(self.views, each, strict=True))
        ]
        return replace(batches[0], bad=bad, views=tuple(batches[1:]))

    def _box(self, randoms: NDArray[np.float32]) -> ChooseBox:
        """Return where to crop an image: at random if the recipe does, else around the center."""
        if self.augment.area == 1:
            return center(self.spec)
        least, most = self.augment.area, self.augment.aspect
        if self.spec.fit == "native":
            area, aspect, draw = (least, 1.0), (1 / most, most), randoms.tolist()
            return lambda high, wide: crop.random_box(high, wide, high, wide, area, aspect, draw)
        return View(self.spec.size, (least, 1.0), self.augment).box(randoms)


@dataclass(frozen=True)
class EvaluationBatches(Dataset[Batch]):
    """The images of a source in their own order, each cropped at its center.

    Attributes:
        source: the images
        spec: size, channels, interpolation and crop
        batch: images per batch
        crops: 1, or 5 for corners and center, one after the other
    """

    source: Source
    spec: ImageSpec
    batch: int
    crops: int = 1

    def __len__(self) -> int:
        return -(-len(self.source) // self.batch)

    def __getitem__(self, k: int) -> Batch:
        """Return batch k; the last one is shorter."""
        indices = range(k * self.batch, min((k + 1) * self.batch, len(self.source)))
        boxes = [center(self.spec)] * len(indices)
        randoms = np.empty((len(indices), 0), np.float32)
        return _stack(self.source, list(indices), self.spec, boxes, randoms, crops=self.crops)


def center(spec: ImageSpec) -> ChooseBox:
    """Return the box that evaluation uses."""
    if spec.center != "exact" and spec.fit != "native":
        return partial(crop.resized_box, spec=spec)
    if spec.fit != "crop":
        return partial(crop.whole_box, crop=spec.crop)
    high, wide = spec.size
    return partial(crop.center_box, high=high, wide=wide, crop=spec.crop)


def load_image(
    source: Source, index: int, spec: ImageSpec, choose: ChooseBox, *, quick: bool = False
) -> Pixels:
    """Decode, crop and resize one image: uint8 (H, W, channels).

    Args:
        source: where it comes from
        index: its number there
        spec: size, channels and interpolation
        choose: where to crop it, given its rows and columns
        quick: for random boxes: crop at whole pixels, from a JPEG decoded at as little as the size
            of the result (else whole, as other libraries do) and no further down than the box

    Raises:
        ImageError: it cannot be decoded.
    """
    return fitted_image(source.image(index), spec, choose, quick=quick)


def fitted_image(
    image: StoredImage, spec: ImageSpec, choose: ChooseBox, *, quick: bool = False
) -> Pixels:
    """Decode, crop and resize one image as `load_image` does: uint8 (H, W, channels).

    Raises:
        ImageError: it cannot be decoded.
    """
    rows, columns = spec.size
    if spec.fit == "native":
        left, top, right, bottom = choose(*image.shape()[:2])
        rows, columns = spec.size_for(bottom - top, right - left)
    least = (rows, columns) if quick else _least(rows, columns, spec)
    pixels, box = image.decode_box(spec.channels, choose, least, cut=quick)
    if quick:
        return crop.cut_resize(pixels, box, rows, columns, spec.interpolation)
    return _resized(pixels, box, rows, columns, spec)


def load_crops(source: Source, index: int, spec: ImageSpec) -> Pixels:
    """Decode an image once, and return its corners and center: uint8 (5, H, W, channels).

    Each has `CORNERS` of the image's sides, or the share that the model's own crop has if that is
    less.

    Raises:
        ImageError: it cannot be decoded.
    """
    rows, columns = spec.size
    image = source.image(index)
    shape = image.shape()[:2]
    middle = center(replace(spec.images, crop=min(spec.crop, CORNERS)))
    boxes = crop.five_boxes(*shape, middle(*shape))
    least = _least(rows, columns, spec)
    pixels, first = image.decode_box(spec.channels, lambda high, wide: boxes[0], least)
    places = [moved(box, boxes[0], first, pixels) for box in boxes]
    return np.stack([_resized(pixels, box, rows, columns, spec) for box in places])


def _least(rows: int, columns: int, spec: ImageSpec) -> tuple[float, float]:
    """The rows and columns to decode for evaluation: all, but for models of before `center`."""
    return (2.0 * rows, 2.0 * columns) if spec.center == "exact" else (math.inf, math.inf)


def _resized(pixels: Pixels, box: Box, rows: int, columns: int, spec: ImageSpec) -> Pixels:
    """Resize a box for evaluation."""
    whole = spec.center != "exact" and spec.fit == "crop" and spec.channels < 4
    return crop.crop_resize(pixels, box, rows, columns, spec.interpolation, whole)


def _stack(
    source: Source,
    indices: list[int],
    spec: ImageSpec,
    boxes: list[ChooseBox],
    randoms: NDArray[np.float32],
    *,
    quick: bool = False,
    crops: int = 1,
) -> Batch:
    """Return a batch of the images that can be decoded, and messages about the others."""
    read_ahead(source, indices)
    images, places, bad = [], [], []
    copies = copies_of(source, indices, spec, boxes) if quick else {}
    for place, (index, box) in enumerate(zip(indices, boxes, strict=True)):
        try:
            if place in copies:
                images.append(copies[place])
            elif crops == 1:
                images.append(load_image(source, index, spec, box, quick=quick))
            else:
                images.extend(load_crops(source, index, spec))
            places.append(place)
        except ImageError as error:
            bad.append((index, str(error)))
    chosen = np.array(indices, np.int64)[places]
    return Batch(
        joined_pixels(images, spec),
        torch.from_numpy(source.labels.take(chosen).targets()),
        torch.from_numpy(randoms[places]),
        torch.from_numpy(chosen),
        bad,
    )


def joined_pixels(images: list[Pixels], spec: ImageSpec) -> Tensor | Packed:
    """Return images as one tensor, or packed where each has its own size."""
    if spec.fit != "native":
        shape = (0, *spec.size, spec.channels)
        return torch.from_numpy(np.stack(images) if images else np.empty(shape, np.uint8))
    if not images:
        none = torch.empty(0, spec.channels * spec.step**2, dtype=torch.uint8)
        return Packed(none, (), spec.step)
    return Packed.of([torch.from_numpy(each).permute(2, 0, 1) for each in images], spec.step)
