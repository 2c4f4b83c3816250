"""`vitlab.inductive_bias`: what a classifier relies on, measured on changed copies of images.

Shape against texture, and coarse against fine structure, by the spectrum of the images.

The phases of an image's Fourier transform carry its shapes, the amplitudes its texture and
statistics (Chen et al., Amplitude-Phase Recombination: Rethinking Robustness of Convolutional
Neural Networks in Frequency Domain, 2021).

Images of which a share is missing: patches dropped at random, or by what they contribute.

Source: Naseer et al., Intriguing Properties of Vision Transformers, 2021, section 3.1 (PatchDrop;
the share dropped is their information loss). They take salient patches from the attention of a
self-supervised ViT. Here they come from the gradients of the model itself, so that all
architectures are treated alike.

Images cut into tiles that change places: what is left once the layout is gone.

Sources: Zhang and Zhu, Interpreting Adversarially Trained Convolutional Neural Networks, 2019 (the
test); Naseer et al., Intriguing Properties of Vision Transformers, 2021, section 3.3 (of ViTs).

Images that are shifted by a few pixels: whether the prediction stays.

Source: Zhang, Making Convolutional Networks Shift-Invariant Again, 2019, section 4. There, two
random shifts of an image are compared; here, the image and its shift by a given distance.

`vitlab.inductive_bias`: what a classifier relies on, in one dictionary of figures.
"""

import logging
import math
from functools import partial
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitlab.data.augment.augment import standardize
from vitlab.data.settings import Columns
from vitlab.data.sources.request import Given
from vitlab.data.sources.source import Source
from vitlab.errors import DataError, OptionError
from vitlab.evaluation.choosing import Split, choose, unlearned
from vitlab.evaluation.compute import Compute, borrowed
from vitlab.evaluation.predictions import check_classifier
from vitlab.evaluation.probed_images import Probed, probed_images, share
from vitlab.models.model import Model
from vitlab.objectives.unit_pixels import unit_pixels
from vitlab.progress import public

RADII = (0.25, 0.5, 0.75)  # of the Nyquist frequency
NYQUIST = 0.5  # cycles per pixel


def recombine(phases: Tensor, amplitudes: Tensor) -> Tensor:
    """Return images with the phase spectrum of one and the amplitude spectrum of another.

    Args:
        phases: images that give their phases, (b, channels, H, W)
        amplitudes: images that give their amplitudes, of the same shape

    Returns:
        (b, channels, H, W); an image recombined with itself is itself.
    """
    size = (phases.shape[-2], phases.shape[-1])
    angles = torch.fft.rfft2(phases).angle()
    return torch.fft.irfft2(torch.polar(torch.fft.rfft2(amplitudes).abs(), angles), s=size)


def frequencies(size: tuple[int, int]) -> Tensor:
    """Return the radial frequencies of `torch.fft.rfft2`, as shares of the Nyquist frequency.

    Args:
        size: rows and columns of the image, in pixels

    Returns:
        (rows, columns // 2 + 1): 0 for the mean, 1 along an axis at most, sqrt(2) in the corner.
    """
    rows, columns = torch.fft.fftfreq(size[0]), torch.fft.rfftfreq(size[1])
    return torch.hypot(rows[:, None], columns) / NYQUIST


def low_pass(images: Tensor, radius: float) -> Tensor:
    """Keep the frequencies up to a radius.

    Args:
        images: (b, channels, H, W)
        radius: share of the Nyquist frequency

    Returns:
        (b, channels, H, W).
    """
    size = (images.shape[-2], images.shape[-1])
    kept = (frequencies(size) <= radius).to(images.device)
    return torch.fft.irfft2(torch.fft.rfft2(images) * kept, s=size)


def high_pass(images: Tensor, radius: float) -> Tensor:
    """Keep the frequencies above a radius: what `low_pass` removes.

    The mean of every channel becomes zero, which is the mean of normalized pixels.
    """
    return images - low_pass(images, radius)


def partners(labels: NDArray[np.int64], generator: np.random.Generator) -> NDArray[np.int64]:
    """Draw an image of another class for each, all of them equally likely.

    Args:
        labels: class of each image, (n,)
        generator: of the draws

    Returns:
        Their numbers, int64 (n,).

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
    """Count the decisions for each cue where the two disagree.

    Source: Geirhos et al., ImageNet-Trained CNNs Are Biased Towards Texture, 2019, figure 4: the
    decisions for the shape's class, of those for either class.

    Args:
        predicted: class of each image, int64 (n,)
        shapes: class of the image that gave its shape, (n,)
        textures: class of the image that gave its texture, (n,)

    Returns:
        `cue_shape` and `cue_texture`, the shares of all images that were taken for the one and the
        other; `shape_bias`, NaN if none was taken for either.
    """
    shape, texture = share(predicted == shapes), share(predicted == textures)
    bias = shape / (shape + texture) if shape + texture else math.nan
    return {"cue_shape": shape, "cue_texture": texture, "shape_bias": bias}


def cue_figures(probed: Probed, generator: np.random.Generator) -> dict[str, float]:
    """Return what the model decides by if phases and amplitudes are of different classes.

    Spectra are exchanged between images of pixels from 0 to 1, and what leaves that range is
    clipped, as in an image file.

    Raises:
        DataError: all images are of one class.
    """
    labels = probed.labels.numpy()
    others = torch.from_numpy(partners(labels, generator))
    predicted = probed.predicted(partial(_conflicting, probed=probed), others)
    return shape_bias(predicted, probed.labels, probed.labels[others])


def _conflicting(images: Tensor, others: Tensor, *, probed: Probed) -> Tensor:
    """Give images the amplitudes of their partners, whose places among all these are."""
    config, texture = probed.model.config, probed.normalized(probed.pixels[others])
    mixed = recombine(unit_pixels(images, config), unit_pixels(texture, config))
    return standardize(mixed.clamp(0, 1), config)


def filtered_figures(probed: Probed) -> dict[str, float]:
    """Return the accuracy on filtered images, `low_pass_50` for half of the Nyquist frequency.

    Sources: Yin et al., A Fourier Perspective on Model Robustness in Computer Vision, 2019 (the
    filters); Park and Kim, How Do Vision Transformers Work?, 2022 (self-attention acts as a
    low-pass filter, convolutions as high-pass filters).
    """
    return {
        f"{name}_{round(100 * radius)}": probed.accuracy(partial(change, radius=radius))
        for name, change in (("low_pass", low_pass), ("high_pass", high_pass))
        for radius in RADII
    }


GRID = 8  # patches per side, whatever the patches of a ViT
SHARES = (0.25, 0.5, 0.75)


def patch_numbers(size: tuple[int, int], grid: int = GRID) -> Tensor:
    """Return the number of the patch that each pixel belongs to, in raster order.

    Where the grid does not divide a side, its patches differ by one pixel. A side of fewer pixels
    than that has a patch for each.

    Args:
        size: rows and columns of the image, in pixels
        grid: patches per side

    Returns:
        int64 (rows, columns), each number from 0 on at least once.
    """
    high, wide = (torch.arange(side) * min(grid, side) // side for side in size)
    return high[:, None] * min(grid, size[1]) + wide


def drop_patches(images: Tensor, scores: Tensor, fraction: float) -> Tensor:
    """Set the patches of the highest scores to zero, the mean of normalized pixels.

    Args:
        images: normalized, (b, channels, H, W)
        scores: of each patch of each image, (b, patches), numbered as `patch_numbers` does
        fraction: of the patches to drop, rounded to whole patches

    Returns:
        (b, channels, H, W).
    """
    gone = scores.argsort(dim=1, descending=True, stable=True)[
        :, : round(fraction * scores.shape[1])
    ]
    kept = torch.ones_like(scores, dtype=torch.bool).scatter(1, gone, False)
    numbers = patch_numbers((images.shape[-2], images.shape[-1]))
    mask = kept[:, numbers.flatten()].unflatten(1, numbers.shape)
    return images * mask[:, None].to(images.device)


def contributions(probed: Probed) -> Tensor:
    """Return what each patch contributes to the logit of the likeliest class: gradient x input.

    To first order, the logit falls by so much when the patch is set to zero. Source: Shrikumar et
    al., Not Just a Black Box: Learning Important Features Through Propagating Activation
    Differences, 2016.

    Returns:
        float32 (n, patches), numbered as `patch_numbers` does.
    """
    numbers = patch_numbers(probed.size).flatten()
    found = []
    for images, _ in probed.batches():
        each = (probed.gradients(images) * images).sum(1).flatten(1).float().cpu()
        sums = each.new_zeros(len(each), int(numbers.max()) + 1)
        found.append(sums.index_add(1, numbers, each))
    return torch.cat(found)


def occluded_figures(probed: Probed, generator: np.random.Generator) -> dict[str, float]:
    """Return the accuracy with a share of the patches dropped, in percent in each key.

    `occluded_50` is half of them at random, the same ones for every model, and fewer of the same
    where the share is less; `occluded_salient_50` the half that contributes most to the prediction;
    `occluded_nonsalient_50` the half that contributes least.
    """
    salient = contributions(probed)
    noise = torch.from_numpy(generator.random(salient.shape))
    orders = {"": noise, "salient_": salient, "nonsalient_": -salient}
    return {
        f"occluded_{name}{round(100 * fraction)}": probed.accuracy(
            partial(drop_patches, fraction=fraction), scores
        )
        for name, scores in orders.items()
        for fraction in SHARES
    }


GRIDS = (2, 4, 8)  # tiles per side


def tile_orders(count: int, tiles: int, generator: np.random.Generator) -> Tensor:
    """Draw a permutation of the tiles for each image, all permutations equally likely.

    Args:
        count: images
        tiles: of an image
        generator: of the draws

    Returns:
        int64 (count, tiles): the tile that each place gets.
    """
    rows = np.broadcast_to(np.arange(tiles), (count, tiles))
    return torch.from_numpy(generator.permuted(rows, axis=1))


def shuffle_tiles(images: Tensor, orders: Tensor) -> Tensor:
    """Cut each image into a square grid of tiles, and put these in another order.

    Args:
        images: (b, channels, H, W)
        orders: int64 (b, k * k): the number of the tile, in raster order, that each place gets

    Returns:
        (b, channels, H, W).

    Raises:
        OptionError: k divides not both sides.
    """
    count, channels, rows, columns = images.shape
    grid = round(orders.shape[1] ** 0.5)
    if rows % grid or columns % grid:
        raise OptionError(
            f"images of {rows}x{columns} pixels cannot be cut into {grid}x{grid} equal tiles: "
            "choose a grid that divides both sides"
        )
    high, wide = rows // grid, columns // grid
    tiles = images.reshape(count, channels, grid, high, grid, wide)
    tiles = tiles.permute(0, 2, 4, 1, 3, 5).flatten(1, 2)
    each = torch.arange(count, device=images.device)[:, None]
    moved = tiles[each, orders.to(images.device)]
    moved = moved.unflatten(1, (grid, grid)).permute(0, 3, 1, 4, 2, 5)
    return moved.reshape(images.shape)


def shuffled_figures(probed: Probed, generator: np.random.Generator) -> dict[str, float]:
    """Return the accuracy on shuffled images, `shuffled_2` for 2 x 2 tiles, and so on.

    Each image has a permutation of its own. A grid that does not divide the image is left out.
    """
    figures = {}
    for grid in GRIDS:
        if not any(side % grid for side in probed.size):
            orders = tile_orders(len(probed), grid**2, generator)
            figures[f"shuffled_{grid}"] = probed.accuracy(shuffle_tiles, orders)
    return figures


DISTANCES = (1, 2, 3, 4)  # pixels of the model's input
DIRECTIONS = torch.tensor(
    [(y, x) for y in (-1, 0, 1) for x in (-1, 0, 1) if (y, x) != (0, 0)], dtype=torch.int64
)


def shift(images: Tensor, shifts: Tensor) -> Tensor:
    """Shift each image; what enters at a border is the image reflected there, and nothing wraps.

    Args:
        images: (b, channels, H, W)
        shifts: rows down and columns to the right of each image, int64 (b, 2); of less than the
            sides of the image

    Returns:
        (b, channels, H, W); the pixel at the border is not repeated.
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


def shifted_figures(
    probed: Probed, clean: Tensor, generator: np.random.Generator
) -> dict[str, float]:
    """Return accuracy and consistency under shifts, `shift_2` and `consistency_2` of two pixels.

    Each image is shifted in one of eight directions, the same for every distance and every model.
    Consistency is the share of images whose class stays, right or wrong. A distance that is no less
    than a side of the image is left out.

    Args:
        probed: model and images
        clean: the classes of the unchanged images, int64 (n,)
        generator: of the directions
    """
    drawn = generator.integers(len(DIRECTIONS), size=len(probed))
    directions = DIRECTIONS[torch.from_numpy(drawn)]
    figures = {}
    for distance in DISTANCES:
        if distance < min(probed.size):
            classes = probed.predicted(shift, distance * directions)
            figures[f"shift_{distance}"] = share(classes == probed.labels)
            figures[f"consistency_{distance}"] = share(classes == clean)
    return figures


@public(model=Model)
def inductive_bias(
    model: Model,
    data: Given | Source,
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
        columns: which columns of a list or a table hold what; None to find them
        precision: fp32 or bf16
        device: auto, cpu, cuda, cuda:N or mps
        workers: processes that decode; None to choose

    Returns:
        Accuracies, as shares: `clean`; `shuffled_2` (2 x 2 tiles in random order), 4 and 8, where
        they divide the image; `occluded_25` (percent of 8 x 8 patches dropped at random), 50 and
        75, `occluded_salient_25` (those that contribute most first) and `occluded_nonsalient_25`;
        `shift_1` to `shift_4` (pixels); `low_pass_25` (percent of the Nyquist frequency), 50 and
        75, and `high_pass_25`, 50 and 75. Other shares: `consistency_1` to `consistency_4` (classes
        that stay when the image is shifted); `cue_shape` and `cue_texture` (images with the phases
        of one class and the amplitudes of another that are taken for the one and the other) and
        `shape_bias`, the first of both (NaN if there are none). Counts: `images`, `damaged`, and
        `learned_from` if these are images that the model has learned from, as there are no others.

    Raises:
        DataError: no such data or split, classes that the model does not have, several labels per
            image, images of one class alone, or no usable image.
        OptionError: the model has no classifier, takes images of different sizes, or is a form of
            `vitlab.accelerate`, which gives no gradients.
    """
    check_classifier(model)
    if isinstance(data, Source):
        asked = unlearned(data, model.seen, leave_out=False)
    else:
        asked = choose(model, data, split, columns)
    for note in asked.notes:
        logging.getLogger("vitlab").warning(note)
    compute = Compute(device, precision, workers=workers)
    sampling, shuffling, dropping, shifting, pairing = np.random.default_rng(seed).spawn(5)
    with borrowed(model, compute.where):
        probed = probed_images(
            model,
            asked.source,
            images,
            batch=batch,
            generator=sampling,
            compute=compute,
        )
        clean = probed.predicted()
        return {
            "clean": share(clean == probed.labels),
            **shuffled_figures(probed, shuffling),
            **occluded_figures(probed, dropping),
            **shifted_figures(probed, clean, shifting),
            **cue_figures(probed, pairing),
            **filtered_figures(probed),
            "images": float(len(probed)),
            "damaged": float(probed.damaged),
            **({"learned_from": float(asked.learned_from)} if asked.learned_from else {}),
        }
