"""Inductive bias: what a classifier relies on, measured on changed copies of a sample of images.

Images are changed in one respect each: their spectrum, missing patches, tiles that change places,
shifts by a few pixels. What is taken away becomes the mean color of the images, whatever mean the
model's pixels are normalized by: gray on digits, which are strokes on black, would be seen itself.
Sources are with the functions.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from vitlab.data.augment.normalize import normalize, standardize
from vitlab.data.images import Images
from vitlab.data.labels import SingleLabels
from vitlab.data.settings import Columns
from vitlab.data.sources.request import Given
from vitlab.device import autocast
from vitlab.errors import DataError, OptionError
from vitlab.evaluation.answers import Integers, check_numbers
from vitlab.evaluation.choosing import Split, choose, unlearned
from vitlab.evaluation.compute import Compute, FastForm, borrowed
from vitlab.evaluation.infer import check_classifier, infer, stacked
from vitlab.models.model import Model
from vitlab.objectives.pretext_task import unit_pixels
from vitlab.on_device import exact
from vitlab.precision import fixed
from vitlab.progress import LOG
from vitlab.public_calls import public

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
        compute: where, and the precision of the model itself: fp32, or bf16 by autocast
    """

    model: Model
    form: FastForm
    pixels: Tensor
    labels: Tensor
    damaged: int
    batch: int
    compute: Compute

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
        return normalize(pixels.to(self.compute.where), self.model.config)

    @cached_property
    def fill(self) -> Tensor:
        """The mean color of the images, normalized: (channels, 1, 1)."""
        sums = np.zeros(self.pixels.shape[-1])
        for first in range(0, len(self), self.batch):
            sums += self.pixels[first : first + self.batch].numpy().sum((0, 1, 2), dtype=np.int64)
        mean = (sums / (self.pixels[..., 0].numel() * 255)).astype(np.float32)
        unit = torch.from_numpy(mean).view(1, -1, 1, 1).to(self.compute.where)
        return standardize(unit, self.model.config)[0]

    def gradients(self, images: Tensor) -> Tensor:
        """Return the gradient of the logit of each image's likeliest class for its pixels."""
        with torch.inference_mode(False), torch.enable_grad():
            leaf = images.clone().requires_grad_()
            with autocast(self.compute.where, fixed(self.compute.precision)):
                logits = self.model(leaf)
            (found,) = torch.autograd.grad(logits.float().amax(-1).sum(), leaf)
        return found

    @torch.no_grad()
    def predicted(self, change: Change = lambda images: images, *drawn: Tensor) -> Tensor:
        """Return the likeliest class of each image once it is changed, int64 (n,).

        `drawn` are further arguments of `change`, each with a row for every image, (n, …).
        """
        found = []
        for images, places in self.batches():
            changed = change(images, *(each[places] for each in drawn))
            with autocast(self.compute.where, self.form.autocast):
                logits = self.form.model(changed).float().cpu()
            check_numbers(logits.numpy(), "images a logit")
            found.append(logits.argmax(-1))
        return torch.cat(found)


def share(true: Tensor) -> float:
    """Return the share of a bool tensor that is true."""
    return exact(true).mean().item()


def balanced(labels: Integers, count: int, generator: np.random.Generator) -> Integers:
    """Choose images at random, of each class as many as there are, until there are `count`."""
    order = generator.permutation(len(labels))
    by_class = np.argsort(labels[order], kind="stable")
    sizes = np.unique(labels, return_counts=True)[1]
    rank = np.empty(len(labels), np.int64)  # among the images of its class, in the random order
    rank[by_class] = np.arange(len(labels)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return np.sort(order[np.argsort(rank, kind="stable")[:count]])


def probed_images(
    model: Model,
    source: Images,
    images: int,
    *,
    batch: int,
    generator: np.random.Generator,
    compute: Compute,
) -> Probed:
    """Decode a balanced sample of a source's images, as evaluation does, and keep it in memory.

    The model is on the device and in evaluation mode (`borrowed`).

    Raises:
        OptionError: as `labels_of`.
        DataError: as `labels_of`, or no usable image.
    """
    part = source.take(balanced(labels_of(model, source, images, batch), images, generator))
    found = list(infer(model, part, compute, ["pixels"]))
    _, numbers, bad = stacked(found, (0,))
    if not len(numbers):
        raise DataError(next(iter(bad.values()), "there are no images"))
    labels = part.target.take(numbers)
    form = compute.fast(model, part, PASSES)
    pixels = torch.cat([each.pixels for each in found if isinstance(each.pixels, Tensor)])
    return Probed(model, form, pixels, torch.from_numpy(labels.batch()), len(bad), batch, compute)


def labels_of(model: Model, source: Images, images: int, batch: int) -> Integers:
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
    if not isinstance(source.target, SingleLabels):
        raise DataError(
            "the images have several labels each: inductive bias is measured with one class each"
        )
    if len(source.classes) != model.config.classes:
        raise DataError(
            f"the data has {len(source.classes)} classes, but the model has "
            f"{model.config.classes}: open it with the model's classes"
        )
    return source.target.values


SHARES = (0.25, 0.5, 0.75)  # of the patches, and of the Nyquist frequency
NYQUIST = 0.5  # cycles per pixel


def recombine(phases: Tensor, amplitudes: Tensor) -> Tensor:
    """Return images with the phase spectrum of one and the amplitude spectrum of another.

    Phases carry the shapes of an image, amplitudes its texture. Source: Chen et al.,
    Amplitude-Phase Recombination: Rethinking Robustness of Convolutional Neural Networks in
    Frequency Domain, 2021.

    An image recombined with itself is itself.
    """
    mixed = torch.polar(torch.fft.rfft2(amplitudes).abs(), torch.fft.rfft2(phases).angle())
    return torch.fft.irfft2(mixed, s=phases.shape[-2:])


def low_pass(images: Tensor, radius: float) -> Tensor:
    """Keep the frequencies up to a radius, which is a share of the Nyquist frequency."""
    size = images.shape[-2:]
    rows = torch.fft.fftfreq(size[0])
    columns = torch.fft.rfftfreq(size[1])
    kept = (torch.hypot(rows[:, None], columns) / NYQUIST <= radius).to(images.device)
    return torch.fft.irfft2(torch.fft.rfft2(images) * kept, s=size)


def high_pass(images: Tensor, radius: float, fill: Tensor) -> Tensor:
    """Keep the frequencies above a radius, what `low_pass` removes, around a mean color.

    Args:
        images: (b, channels, H, W)
        radius: a share of the Nyquist frequency
        fill: the mean of each channel, (channels, 1, 1)
    """
    return images - low_pass(images, radius) + fill.to(images.device)


def partners(labels: Integers, generator: np.random.Generator) -> Integers:
    """Draw an image of another class for each, all of them equally likely: int64 (n,).

    Raises:
        DataError: all images are of one class.
    """
    order = np.argsort(labels, kind="stable")
    ends = np.searchsorted(labels[order], labels, side="right")
    others = len(labels) - np.bincount(labels)[labels]
    if not others.all():
        raise DataError("all images are of one class: shape and texture need at least 2 classes")
    return order[(ends + generator.integers(others)) % len(labels)]


def shape_bias(predicted: Tensor, shapes: Tensor, textures: Tensor) -> dict[str, float]:
    """Count the decisions for each cue where the two disagree; `shape_bias` is NaN without any.

    Source: Geirhos et al., ImageNet-Trained CNNs Are Biased Towards Texture, 2019, figure 4: the
    decisions for the shape's class, of those for either class.
    """
    shape = share(predicted == shapes)
    texture = share(predicted == textures)
    bias = shape / (shape + texture) if shape + texture else math.nan
    return {"cue_shape": shape, "cue_texture": texture, "shape_bias": bias}


def cue_figures(probed: Probed, generator: np.random.Generator) -> dict[str, float]:
    """Return what the model decides by if phases and amplitudes are of different classes.

    Spectra are exchanged between images of pixels from 0 to 1, and what leaves that range is
    clipped, as in an image file.

    Raises:
        DataError: all images are of one class.
    """
    config = probed.model.config

    def conflicting(images: Tensor, others: Tensor) -> Tensor:
        texture = probed.normalized(probed.pixels[others])
        mixed = recombine(unit_pixels(images, config), unit_pixels(texture, config))
        return standardize(mixed.clamp(0, 1), config)

    others = torch.from_numpy(partners(probed.labels.numpy(), generator))
    predicted = probed.predicted(conflicting, others)
    return shape_bias(predicted, probed.labels, probed.labels[others])


GRID = 8  # patches per side, whatever the patches of a ViT


def patch_numbers(size: tuple[int, int]) -> Tensor:
    """Return the number of the patch that each pixel belongs to, in raster order: (rows, columns).

    Where the grid does not divide a side, its patches differ by one pixel. A side of fewer pixels
    than that has a patch for each.
    """
    high, wide = (torch.arange(side) * min(GRID, side) // side for side in size)
    return high[:, None] * min(GRID, size[1]) + wide


def drop_patches(images: Tensor, scores: Tensor, fraction: float, fill: Tensor) -> Tensor:
    """Paint the patches of the highest scores in one color, (channels, 1, 1).

    Source: Naseer et al., Intriguing Properties of Vision Transformers, 2021, section 3.1
    (PatchDrop; the share dropped is their information loss). Salient patches are theirs by the
    attention of a self-supervised ViT, here by the gradients of the model itself, so that all
    architectures are treated alike.
    """
    order = scores.argsort(dim=1, descending=True, stable=True)
    count = round(fraction * scores.shape[1])
    kept = torch.ones_like(scores, dtype=torch.bool).scatter(1, order[:, :count], False)
    numbers = patch_numbers((images.shape[-2], images.shape[-1]))
    mask = kept[:, numbers.flatten()].unflatten(1, numbers.shape)
    return torch.where(mask[:, None].to(images.device), images, fill.to(images.device))


def contributions(probed: Probed) -> Tensor:
    """Return what each patch contributes to the logit of the likeliest class: gradient x input.

    To first order, the logit falls by so much when the patch is painted in the mean color, from
    which the input is counted: float32 (n, patches).
    Source: Shrikumar et al., Not Just a Black Box: Learning Important Features Through Propagating
    Activation Differences, 2016.
    """
    numbers = patch_numbers(probed.size).flatten()
    found = []
    for images, _ in probed.batches():
        each = (probed.gradients(images) * (images - probed.fill)).sum(1).flatten(1).float().cpu()
        sums = each.new_zeros(len(each), int(numbers.max()) + 1)
        found.append(sums.index_add(1, numbers, each))
    return torch.cat(found)


GRIDS = (2, 4, 8)  # tiles per side


def tile_orders(count: int, tiles: int, generator: np.random.Generator) -> Tensor:
    """Draw a permutation of the tiles for each image, all equally likely: int64 (count, tiles)."""
    rows = np.broadcast_to(np.arange(tiles), (count, tiles))
    return torch.from_numpy(generator.permuted(rows, axis=1))


def shuffle_tiles(images: Tensor, orders: Tensor) -> Tensor:
    """Cut each image into a square grid of tiles, and put tile `orders[:, place]` at each place.

    Raises:
        OptionError: the grid does not divide both sides.
    """
    count, channels, rows, columns = images.shape
    grid = round(orders.shape[1] ** 0.5)
    if rows % grid or columns % grid:
        raise OptionError(
            f"images of {rows}x{columns} pixels cannot be cut into {grid}x{grid} equal tiles: "
            "choose a grid that divides both sides"
        )
    high = rows // grid
    wide = columns // grid
    tiles = images.reshape(count, channels, grid, high, grid, wide)
    tiles = tiles.permute(0, 2, 4, 1, 3, 5).flatten(1, 2)
    each = torch.arange(count, device=images.device)[:, None]
    moved = tiles[each, orders.to(images.device)]
    moved = moved.unflatten(1, (grid, grid)).permute(0, 3, 1, 4, 2, 5)
    return moved.reshape(images.shape)


DISTANCES = (1, 2, 3, 4)  # pixels of the model's input
DIRECTIONS = torch.tensor(
    [(y, x) for y in (-1, 0, 1) for x in (-1, 0, 1) if (y, x) != (0, 0)], dtype=torch.int64
)


def shift(images: Tensor, shifts: Tensor) -> Tensor:
    """Shift each image by so many rows down and columns to the right, int64 (b, 2).

    What enters at a border is the image reflected there, without the pixel at the border.
    """
    shifts = shifts.to(images.device)
    rows = _reflected(images.shape[-2], shifts[:, 0])
    columns = _reflected(images.shape[-1], shifts[:, 1])
    count = torch.arange(len(images), device=images.device)
    moved = images.permute(0, 2, 3, 1)[count[:, None, None], rows[:, :, None], columns[:, None]]
    return moved.permute(0, 3, 1, 2)


def _reflected(side: int, shifts: Tensor) -> Tensor:
    """Return where each pixel along a side comes from: int64 (b, side)."""
    found = (torch.arange(side, device=shifts.device) - shifts[:, None]).abs()
    return torch.minimum(found, 2 * (side - 1) - found)


def changed_figures(
    probed: Probed,
    shuffling: np.random.Generator,
    dropping: np.random.Generator,
    shifting: np.random.Generator,
) -> dict[str, float]:
    """Return the accuracy on images as they are, `clean`, and on changed ones.

    Of shifted images also the consistency: the share of images whose class stays, right or wrong.
    """
    clean = probed.predicted()
    figures = {"clean": share(clean == probed.labels)}
    for name, change, *drawn in _changes(probed, shuffling, dropping, shifting):
        classes = probed.predicted(change, *drawn)
        figures[name] = share(classes == probed.labels)
        if change is shift:
            figures[name.replace("shift", "consistency")] = share(classes == clean)
    return figures


def _changes(
    probed: Probed,
    shuffling: np.random.Generator,
    dropping: np.random.Generator,
    shifting: np.random.Generator,
) -> Iterator[tuple[str, Change, *tuple[Tensor, ...]]]:
    """Yield the name of each figure, a change, and what is drawn for each image.

    Sources: Zhang and Zhu, Interpreting Adversarially Trained Convolutional Neural Networks, 2019
    (shuffled tiles); Naseer et al., Intriguing Properties of Vision Transformers, 2021, 3.1 and 3.3
    (dropped patches; tiles, of ViTs); Zhang, Making Convolutional Networks Shift-Invariant Again,
    2019, section 4, where two random shifts are compared; Yin et al., A Fourier Perspective on
    Model Robustness in Computer Vision, 2019 (filters); Park and Kim, How Do Vision Transformers
    Work?, 2022 (self-attention acts as a low-pass filter, convolutions as high-pass filters).
    """
    for grid in GRIDS:
        if not any(side % grid for side in probed.size):
            orders = tile_orders(len(probed), grid**2, shuffling)
            yield f"shuffled_{grid}", shuffle_tiles, orders
    salient = contributions(probed)
    noise = torch.from_numpy(dropping.random(salient.shape))
    for name, scores in (("", noise), ("salient_", salient), ("nonsalient_", -salient)):
        for fraction in SHARES:
            change = partial(drop_patches, fraction=fraction, fill=probed.fill)
            yield f"occluded_{name}{round(100 * fraction)}", change, scores
    numbers = shifting.integers(len(DIRECTIONS), size=len(probed))
    for distance in DISTANCES:
        if distance < min(probed.size):
            yield f"shift_{distance}", shift, distance * DIRECTIONS[torch.from_numpy(numbers)]
    above: Change = partial(high_pass, fill=probed.fill)
    for name, keep in (("low_pass", low_pass), ("high_pass", above)):
        for radius in SHARES:
            yield f"{name}_{round(100 * radius)}", partial(keep, radius=radius)


@public(model=Model)
def inductive_bias(
    model: Model,
    data: Given | Images,
    *,
    images: int = 2000,
    batch: int = 250,
    seed: int = 0,
    split: Split = "auto",
    columns: Columns | None = None,
    precision: Literal["fp32", "bf16"] = "fp32",
    device: str = "auto",
    workers: int | None = None,
) -> dict[str, float]:
    """Measure a classifier on images that are changed in one respect each.

    The images are a balanced sample, prepared as for evaluation, and changed as the model sees
    them. All that is random is drawn for each image from the seed, before the model is asked: two
    models of one image size see the same changes, except for the salient patches, which are the
    model's own. The figures do not depend on the batch size, apart from rounding.

    Args:
        model: with a classifier; its device and mode are the same afterwards
        data: labeled images, as `vitlab.evaluate` takes them; or an opened source, all of it
        images: how many to take at most, as many of each class as there are; all are in memory
        batch: images at once
        seed: of the sample and the changes
        split: as `vitlab.evaluate`; of an opened source there is none
        columns: the columns of a list or a table; None to find them
        precision: fp32 or bf16
        device: auto, cpu, cuda, cuda:N or mps
        workers: processes that decode; None to choose

    Returns:
        Accuracies, as shares: `clean`; `shuffled_2` (2 x 2 tiles in random order), 4 and 8, where
        they divide the image; `occluded_25` (percent of 8 x 8 patches that get the images' mean
        color, drawn at random), 50 and 75, `occluded_salient_25` (those that contribute most first)
        and `occluded_nonsalient_25`; `shift_1` to `shift_4` (pixels); `low_pass_25` (percent of the
        Nyquist frequency), 50 and 75, and `high_pass_25`, 50 and 75, around the images' mean color.
        Other shares: `consistency_1` to `consistency_4` (classes
        that stay when the image is shifted); `cue_shape` and `cue_texture` (images with the phases
        of one class and the amplitudes of another that are taken for the one and the other) and
        `shape_bias`, the first of both (NaN if there are none). Counts: `images`, `damaged`, and
        `learned_from` if these are images that the model has learned from, as there are no others.

    Raises:
        DataError: no such data or split, classes that the model does not have, several labels per
            image, images of one class alone, no usable image, or a logit that is no number.
        OptionError: the model has no classifier, takes images of different sizes, or is a form of
            `vitlab.accelerate`, which gives no gradients.
    """
    check_classifier(model)
    if isinstance(data, Images):
        asked = unlearned(data, model.seen, leave_out=False)
    else:
        asked = choose(model, data, split, columns)
    for note in asked.notes:
        LOG.warning(note)
    compute = Compute(device, precision, workers=workers)
    sampling, shuffling, dropping, shifting, pairing = np.random.default_rng(seed).spawn(5)
    with borrowed(model, compute.where):
        probed = probed_images(
            model, asked.source, images, batch=batch, generator=sampling, compute=compute
        )
        return {
            **changed_figures(probed, shuffling, dropping, shifting),
            **cue_figures(probed, pairing),
            "images": float(len(probed)),
            "damaged": float(probed.damaged),
            **({"learned_from": float(asked.learned_from)} if asked.learned_from else {}),
        }
