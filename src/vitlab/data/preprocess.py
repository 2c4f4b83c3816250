"""`vitlab.preprocess`: from images as people have them to the batch that a model wants."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vitlab.data.augment.normalize import normalize, standardize
from vitlab.data.decode.filters import filter_matrix, is_tall, resize, resize_tall
from vitlab.data.loading.crops import center, fitted_image
from vitlab.data.sources.pictures import Form, Pictures, several
from vitlab.errors import DataError, ImageError, OptionError
from vitlab.images import ImageSpec


class Preprocess(nn.Module):
    """Images to a model's batch, with the pixels that the commands see.

    Attributes:
        spec: what the model wants: size, channels, normalization, interpolation, crop; of one with
            fit=native its whole configuration, whose patches say how large an image becomes
    """

    def __init__(self, spec: ImageSpec) -> None:
        super().__init__()
        self.spec = spec

    def forward(self, images: Form | Iterable[Form]) -> Tensor:
        """Prepare images: (B, channels, H, W), normalized float32.

        Args:
            images: one image or any number of them: paths, bytes, open files (read from their
                start, as by Pillow, where they can seek), images of Pillow, arrays of uint8 (rows,
                columns, channels), tensors of uint8 (channels, rows, columns); or a batch of
                them: an array (B, rows, columns, channels), or a tensor (B, channels, rows,
                columns), which is prepared on its device, as Pillow would

        Raises:
            ImageError: one of them cannot be read; the message names it.
            DataError: no images, or with fit=native some of different sizes.
        """
        if isinstance(images, Tensor) and images.ndim == 4:
            return self._batch(images)
        pictures = several(images)
        source = Pictures(pictures)
        pixels = [fitted_image(source.image(number), self.spec) for number in range(len(pictures))]
        sizes = list(dict.fromkeys(f"{each.shape[0]} x {each.shape[1]}" for each in pixels))
        if len(sizes) > 1:
            raise DataError(
                f"images of {sizes[0]} and {sizes[1]} pixels make no batch: give them one by one"
            )
        return normalize(torch.from_numpy(np.stack(pixels)), self.spec)

    def one(self, image: Form) -> Tensor:
        """Prepare one image, as the `transform` of a data set of PyTorch: (channels, H, W).

        Args:
            image: a path, bytes, an open file, an image of Pillow, an array or a tensor

        Raises:
            ImageError: it cannot be read.
        """
        return self([image])[0]

    def _batch(self, images: Tensor) -> Tensor:
        """Prepare a batch of one size on its device: uint8 (B, C, rows, columns)."""
        spec, (channels, rows, columns) = self.spec, images.shape[1:]
        if images.dtype != torch.uint8:
            raise ImageError(
                f"the images have numbers of type {images.dtype}: give pixels from 0 to 255 as "
                "uint8"
            )
        if channels != spec.channels:
            if channels != 1 or spec.channels != 3:
                raise ImageError(f"the images have {channels} channels, not {spec.channels}")
            images = images.expand(-1, 3, -1, -1)
        left, top, right, bottom = center(spec)(rows, columns)
        size = spec.size_for(bottom - top, right - left)
        sides = (
            filter_matrix(rows, top, bottom, size[0], spec.interpolation),
            filter_matrix(columns, left, right, size[1], spec.interpolation),
        )
        sized = replace(spec.images, image_size=size) if spec.fit == "native" else spec
        form = resize_tall if is_tall(rows, columns, sized, bottom - top) else resize
        pixels = form(images.float(), *(side.to(images.device) for side in sides))
        return standardize(pixels / 255, spec)


def preprocess(model: Any) -> Preprocess:
    """Return the preprocessing of a model: `vitlab.preprocess(model)(images)`.

    Args:
        model: from `vitlab.load`, `vitlab.create` or a run; or its configuration

    Returns:
        A module without parameters: images of any kind to (B, channels, H, W), normalized float32.

    Raises:
        OptionError: it is neither.
    """
    config = getattr(model, "config", model)
    if not isinstance(config, ImageSpec):
        kind = type(model).__name__
        raise OptionError(f"model is of type {kind}, but a model or its configuration is needed")
    return Preprocess(config if config.fit == "native" else config.images)
