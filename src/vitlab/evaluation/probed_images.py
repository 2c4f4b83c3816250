"""A balanced sample of a source's images, and the classes that a model gives changed copies."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitlab.data.augment.augment import normalize
from vitlab.data.labels import SingleLabels
from vitlab.data.sources.source import Source, Subset
from vitlab.device import autocast, exact
from vitlab.errors import DataError, OptionError
from vitlab.evaluation.compute import Compute, FastForm
from vitlab.evaluation.infer import infer, stacked
from vitlab.models.model import Model
from vitlab.precision import fixed

PASSES = 24  # over the images without gradients, for all figures

Change = Callable[..., Tensor]
"""Changes normalized images (b, channels, H, W), given what is drawn for each of them."""


@dataclass(frozen=True, eq=False)
class Probed:
    """A model, already on its device and in evaluation mode, and the images to probe it with.

    Attributes:
        model: with a classifier; gradients are its own
        form: what computes without gradients: the model, or its fast form
        pixels: as the model's preprocessing leaves them, uint8 (n, H, W, channels)
        labels: the true class of each, int64 (n,)
        damaged: images of the sample that could not be decoded and are left out
        batch: images at once
        device: where to compute
        precision: fp32; or bf16, of the model itself by autocast
    """

    model: Model
    form: FastForm
    pixels: Tensor
    labels: Tensor
    damaged: int
    batch: int
    device: torch.device
    precision: Literal["fp32", "bf16"]

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def size(self) -> tuple[int, int]:
        """Rows and columns of the images, in pixels."""
        return self.pixels.shape[1], self.pixels.shape[2]

    def batches(self) -> Iterator[tuple[Tensor, slice]]:
        """Yield normalized images (b, channels, H, W) on the device, and their places."""
        for first in range(0, len(self), self.batch):
            places = slice(first, min(first + self.batch, len(self)))
            yield self.normalized(self.pixels[places]), places

    def normalized(self, pixels: Tensor) -> Tensor:
        """Return pixels (b, H, W, channels) as the model takes them: (b, channels, H, W)."""
        config = self.model.config
        return normalize(pixels.to(self.device), config)

    def gradients(self, images: Tensor) -> Tensor:
        """Return the gradients of the logit of each image's likeliest class.

        Args:
            images: normalized, (b, channels, H, W)

        Returns:
            With respect to the pixels, (b, channels, H, W).
        """
        with torch.inference_mode(False), torch.enable_grad():
            leaf = images.clone().requires_grad_()
            with autocast(self.device, self.precision):
                logits = self.model(leaf)
            (found,) = torch.autograd.grad(logits.float().amax(-1).sum(), leaf)
        return found

    @torch.no_grad()
    def predicted(self, change: Change = lambda images: images, *drawn: Tensor) -> Tensor:
        """Return the likeliest class of each image once it is changed, int64 (n,).

        Args:
            change: of the images of a batch
            drawn: further arguments of it, each with a row for every image, (n, …)
        """
        found = []
        for images, places in self.batches():
            changed = change(images, *(each[places] for each in drawn))
            with autocast(self.device, self.form.autocast):
                found.append(self.form.model(changed).float().argmax(-1).cpu())
        return torch.cat(found)

    def accuracy(self, change: Change = lambda images: images, *drawn: Tensor) -> float:
        """Return the share of images whose class is right once they are changed."""
        return share(self.predicted(change, *drawn) == self.labels)


def share(true: Tensor) -> float:
    """Return the share of a bool tensor that is true."""
    return exact(true).mean().item()


def balanced(
    labels: NDArray[np.int64], count: int, generator: np.random.Generator
) -> NDArray[np.int64]:
    """Choose images at random, as many of each class as there are until `count` is reached.

    Args:
        labels: class of each image, (n,)
        count: how many images to choose; all if there are no more
        generator: of the choice

    Returns:
        Their numbers, ascending; the classes differ by at most one image unless one has too few.
    """
    order = generator.permutation(len(labels))
    by_class = np.argsort(labels[order], kind="stable")
    sizes = np.unique(labels, return_counts=True)[1]
    rank = np.empty(len(labels), np.int64)  # among the images of its class, in the random order
    rank[by_class] = np.arange(len(labels)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return np.sort(order[np.argsort(rank, kind="stable")[:count]])


def probed_images(
    model: Model,
    source: Source,
    images: int,
    *,
    batch: int,
    generator: np.random.Generator,
    compute: Compute,
) -> Probed:
    """Decode a balanced sample of a source's images, as evaluation does, and keep it in memory.

    Args:
        model: on the device and in evaluation mode (`borrowed`)
        source: images with one label each
        images: how many
        batch: images at once
        generator: of the sample
        compute: where the model is, and how

    Raises:
        OptionError: as `labels_of`.
        DataError: as `labels_of`, or no usable image.
    """
    part = Subset(source, balanced(labels_of(model, source, images, batch), images, generator))
    found = list(infer(model, part, compute, ["pixels"]))
    _, numbers, bad = stacked(found, (0,))
    if not len(numbers):
        raise DataError(next(iter(bad.values()), "there are no images"))
    labels, form = part.labels.take(numbers), compute.fast(model, part, PASSES)
    pixels = torch.cat([each.pixels for each in found if isinstance(each.pixels, Tensor)])
    truth, precision = torch.from_numpy(labels.targets()), fixed(compute.precision)
    return Probed(model, form, pixels, truth, len(bad), batch, compute.where, precision)


def labels_of(model: Model, source: Source, images: int, batch: int) -> NDArray[np.int64]:
    """Return the class of each image of a source, (n,), and refuse what cannot be probed.

    Raises:
        OptionError: no images asked for; a model that takes images of different sizes, or that
            gives no gradients.
        DataError: several labels per image, or other classes than the model's.
    """
    if images < 1 or batch < 1:
        raise OptionError(f"images and batch must be at least 1, not {images} and {batch}")
    if model.config.fit == "native":
        raise OptionError("inductive bias is measured on images of one size, not with fit=native")
    if model.engine != "plain":
        raise OptionError(
            "a form of vitlab.accelerate gives no gradients: pass the model that it was made from"
        )
    if not isinstance(source.labels, SingleLabels):
        raise DataError(
            "the images have several labels each: inductive bias is measured with one class each"
        )
    if len(source.classes) != model.config.classes:
        raise DataError(
            f"the data has {len(source.classes)} classes, but the model has "
            f"{model.config.classes}: open it with the model's classes"
        )
    return source.labels.values
