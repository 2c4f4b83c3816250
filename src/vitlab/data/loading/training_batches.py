"""The batches of training: which images batch k has, cropped at random, with their labels."""

from dataclasses import dataclass, replace

import numpy as np
import torch

from vitlab.data.augment.draws import mirrored
from vitlab.data.decode.crop_box import DRAWS
from vitlab.data.images import Images
from vitlab.data.loading.batch import Batch
from vitlab.data.loading.batches import Loaded, stack_images
from vitlab.data.loading.by_number import Batches
from vitlab.data.loading.crops import center, copies_of, fitted_image, load_views
from vitlab.data.loading.order import Order, Stream, draws
from vitlab.data.loading.views import View
from vitlab.data.settings import Augment
from vitlab.data.target import SpatialTarget
from vitlab.images import ImageSpec


@dataclass(frozen=True)
class TrainingBatches(Batches):
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

    source: Images
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
        repeats = self.augment.repeats
        stream = Stream(self.seed, len(self.source), self.batch, repeats, self.order)
        samples = stream.samples(k, self.rank, self.processes)
        indices = samples.indices.tolist()
        views = self.views or (View(self.spec.size, (self.augment.area, 1.0), self.augment),)
        *ends, count = np.cumsum([view.draws for view in views]).tolist()
        randoms = draws(self.seed, samples, count)
        parts = np.split(randoms, ends, axis=1)
        labels = self.source.target
        placed = labels if isinstance(labels, SpatialTarget) else None
        native = (placed is not None and placed.keeps_aspect) or self.spec.fit == "native"
        quick = not self.views and self.augment.area < 1
        boxes = [
            [view.box(row[:DRAWS], native=native) for row in part]
            for view, part in zip(views, parts, strict=True)
        ]
        if not self.views and not quick:
            boxes = [[center(self.spec)] * len(indices)]
        self.source.read_ahead(indices)
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
            return pixels, placed.cropped(indices[place], box, self.spec.size, shape)

        specs = [replace(self.spec.images, image_size=view.size) for view in self.views]
        rest = [part[:, DRAWS:] for part in parts]
        batch = stack_images(self.source, indices, load, specs or [self.spec], rest)
        if placed is None or not self.augment.flip:
            return batch
        half = torch.from_numpy(mirrored(batch.draws.numpy()))[:, None, None]
        turned = torch.where(half, placed.mirrored(batch.labels), batch.labels)
        return replace(batch, labels=turned)
