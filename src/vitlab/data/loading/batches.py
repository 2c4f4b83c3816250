"""Batch k: which images it has, decoded and cropped to one size, with their labels."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from vitlab.data.augment.draws import mirrored
from vitlab.data.decode.crop_box import DRAWS
from vitlab.data.decode.pixels import Pixels
from vitlab.data.labels import PlacedLabels
from vitlab.data.loading.batch import Batch
from vitlab.data.loading.crops import center, copies_of, fitted_image, load_views
from vitlab.data.loading.order import Order, Stream, draws
from vitlab.data.loading.views import View
from vitlab.data.settings import Augment
from vitlab.data.sources.ahead import read_ahead
from vitlab.data.sources.source import Source
from vitlab.errors import ImageError
from vitlab.images import ImageSpec
from vitlab.models.packed import Packed

Loaded = tuple[list[Pixels], NDArray[Any] | None]
"""The views of one image, and its target; None for the label that its source knows."""


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
        order: of the images of an epoch
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
    order: Order = Order()
    views: tuple[View, ...] = ()

    def __getitem__(self, k: int) -> Batch:
        """Return batch k of the endless stream."""
        images, repeats = len(self.source), self.augment.repeats
        stream = Stream(self.seed, images, self.batch, repeats, self.order)
        samples = stream.samples(k, self.rank, self.processes)
        indices = samples.indices.tolist()
        views = self.views or (View(self.spec.size, (self.augment.area, 1.0), self.augment),)
        *ends, count = np.cumsum([view.draws for view in views]).tolist()
        randoms = draws(self.seed, samples, count)
        parts = np.split(randoms, ends, axis=1)
        labels = self.source.labels
        placed = labels if isinstance(labels, PlacedLabels) else None
        native = (placed is not None and placed.keeps_aspect) or self.spec.fit == "native"
        quick = not self.views and self.augment.area < 1
        boxes = [
            [view.box(row[:DRAWS], native=native) for row in part]
            for view, part in zip(views, parts, strict=True)
        ]
        if not self.views and not quick:
            boxes = [[center(self.spec)] * len(indices)]
        read_ahead(self.source, indices)
        shared = quick and placed is None
        copies = copies_of(self.source, indices, self.spec, boxes[0]) if shared else {}

        def load(place: int) -> Loaded:
            if place in copies:
                return [copies[place]], None
            image = self.source.image(indices[place])
            choices = [each[place] for each in boxes]
            if self.views:
                return load_views(image, self.spec, self.views, choices), None
            pixels = [fitted_image(image, self.spec, *choices, quick=quick)]
            if placed is None:
                return pixels, None
            shape = image.shape()[:2]
            box = choices[0](*shape)
            return pixels, placed.inside(indices[place], self.spec.size, shape, box)

        specs = [replace(self.spec.images, image_size=view.size) for view in self.views]
        rest = [part[:, DRAWS:] for part in parts]
        batch = _stacked(self.source, indices, load, specs or [self.spec], rest)
        if placed is None or not self.augment.flip:
            return batch
        half = torch.from_numpy(mirrored(batch.draws.numpy()))[:, None, None]
        turned = torch.where(half, placed.mirrored(batch.labels), batch.labels)
        return replace(batch, labels=turned)


@dataclass(frozen=True)
class EvaluationBatches(Dataset[Batch]):
    """The images of a source in their own order, each cropped at its center.

    Attributes:
        source: the images
        spec: size, channels, interpolation and crop
        batch: images per batch
    """

    source: Source
    spec: ImageSpec
    batch: int

    def __len__(self) -> int:
        return -(-len(self.source) // self.batch)

    def __getitem__(self, k: int) -> Batch:
        """Return batch k; the last one is shorter."""
        indices = list(range(k * self.batch, min((k + 1) * self.batch, len(self.source))))
        read_ahead(self.source, indices)

        def load(place: int) -> Loaded:
            return [fitted_image(self.source.image(indices[place]), self.spec)], None

        randoms = np.empty((len(indices), 0), np.float32)
        return _stacked(self.source, indices, load, [self.spec], [randoms])


def _stacked(
    source: Source,
    indices: list[int],
    load: Callable[[int], Loaded],
    specs: Sequence[ImageSpec],
    randoms: Sequence[NDArray[np.float32]],
) -> Batch:
    """Return a batch of the images that can be decoded, and messages about the others.

    Args:
        source: the images
        indices: which of them
        load: decodes and crops the image of a place in the batch
        specs: the size of each view
        randoms: for `augment`, (B, n) of each view
    """
    images = list[Pixels]()
    places = []
    bad = []
    targets = []
    for place, index in enumerate(indices):
        try:
            loaded, target = load(place)
        except ImageError as error:
            bad.append((index, str(error)))
            continue
        images.extend(loaded)
        places.append(place)
        if target is not None:
            targets.append(target)
    chosen = np.array(indices, np.int64)[places]
    labels = torch.from_numpy(
        np.stack(targets) if targets else source.labels.take(chosen).targets()
    )
    first, *others = (
        Batch(
            joined_pixels(images[number :: len(specs)], spec),
            labels,
            torch.from_numpy(own[places]),
            torch.from_numpy(chosen),
        )
        for number, (spec, own) in enumerate(zip(specs, randoms, strict=True))
    )
    return replace(first, bad=bad, views=tuple(others))


def joined_pixels(images: list[Pixels], spec: ImageSpec) -> Tensor | Packed:
    """Return images as one tensor, or packed where each has its own size."""
    if spec.fit != "native":
        shape = (0, *spec.size, spec.channels)
        return torch.from_numpy(np.stack(images) if images else np.empty(shape, np.uint8))
    if not images:
        none = torch.empty(0, spec.channels * spec.step**2, dtype=torch.uint8)
        return Packed(none, (), spec.step)
    return Packed.of([torch.from_numpy(each).permute(2, 0, 1) for each in images], spec.step)
