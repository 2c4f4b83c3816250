"""Batches of images, decoded and cropped to one size, with their labels: those of a test here."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitlab.data.decode.pixels import Pixels
from vitlab.data.images import Images
from vitlab.data.loading.batch import Batch
from vitlab.data.loading.by_number import Batches
from vitlab.data.loading.crops import fitted_image
from vitlab.errors import ImageError
from vitlab.images import ImageSpec
from vitlab.models.packed import Packed

Loaded = tuple[list[Pixels], NDArray[Any] | None]
"""The views of one image, and its target; None for the label that its source knows."""


@dataclass(frozen=True)
class EvaluationBatches(Batches):
    """The images of a source in their own order, each cropped at its center.

    Attributes:
        source: the images
        spec: size, channels, interpolation and crop
        batch: images per batch
    """

    source: Images
    spec: ImageSpec
    batch: int

    def __len__(self) -> int:
        return -(-len(self.source) // self.batch)

    def __getitem__(self, k: int) -> Batch:
        """Return batch k; the last one is shorter."""
        indices = list(range(k * self.batch, min((k + 1) * self.batch, len(self.source))))
        self.source.read_ahead(indices)

        def load(place: int) -> Loaded:
            return [fitted_image(self.source.image(indices[place]), self.spec)], None

        randoms = np.empty((len(indices), 0), np.float32)
        return stack_images(self.source, indices, load, [self.spec], [randoms])


def stack_images(
    source: Images,
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
    labels = torch.from_numpy(np.stack(targets) if targets else source.target.take(chosen).batch())
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
