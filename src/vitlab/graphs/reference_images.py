"""Reference images of an export: like photographs, of sizes that users have, drawn from a seed."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from vitlab.data.augment.normalize import normalize
from vitlab.models.model import Model

Pixels = NDArray[np.uint8]
SIZES = ((375, 500), (500, 375), (480, 640))  # rows and columns
COUNTS = (1, 2, 7)  # of images in a batch
DISKS = 4  # hard edges of each image
REFERENCE = 2  # images of each size that are kept beside a file


def raw_images(model: Model, counts: Sequence[int] = COUNTS) -> Iterator[Pixels]:
    """Yield batches for a graph that prepares images itself, uint8 (B, rows, columns, channels).

    Photographs of each size, then noise of the model's size and of a tall one.

    Args:
        model: that sees them
        counts: of images in a batch, in turn
    """
    rows, columns = model.config.size
    channels = model.config.channels
    for number, size in enumerate(SIZES):
        yield photographs(counts[number % len(counts)], size, channels, number)
    for number, size in enumerate(((rows, columns), (3 * rows, columns))):
        shape = (counts[number % len(counts)], *size, channels)
        yield np.random.default_rng(number).integers(0, 256, shape, dtype=np.uint8)


def make_normalized_images(
    model: Model, counts: Sequence[int] = COUNTS
) -> Iterator[NDArray[np.float32]]:
    """Yield batches of normalized images of the model's size, (B, channels, H, W)."""
    for number, count in enumerate(counts):
        yield normal_noise(model, count)
        yield normal_photographs(model, count, number)


def normal_noise(model: Model, count: int) -> NDArray[np.float32]:
    """Return normalized images of noise, (count, channels, H, W)."""
    shape = (count, model.config.channels, *model.config.size)
    return np.random.default_rng(count).standard_normal(shape, np.float32)


def normal_photographs(model: Model, count: int, seed: int) -> NDArray[np.float32]:
    """Return normalized images like photographs, (count, channels, H, W)."""
    import torch

    made = photographs(count, model.config.size, model.config.channels, seed)
    return normalize(torch.from_numpy(made), model.config.images).numpy()


def photographs(count: int, size: tuple[int, int], channels: int, seed: int) -> Pixels:
    """Return images with the spectrum of photographs, light and shade, and hard edges.

    Args:
        count: of images
        size: rows and columns
        channels: of each
        seed: of the draw

    Returns:
        uint8 (count, rows, columns, channels).
    """
    draw = np.random.default_rng((seed, 7))
    rows, columns = size
    frequency = np.hypot(np.fft.fftfreq(rows)[:, None], np.fft.rfftfreq(columns)[None])
    falling = 1 / np.maximum(frequency, 1 / max(size))
    places = [np.linspace(-1, 1, side) for side in size]
    made = np.empty((count, rows, columns, channels), np.uint8)
    for image in made:
        shared = _cloud(draw, size, falling)
        level = draw.uniform(60, 200, channels)
        for channel in range(channels):
            own = 0.8 * shared + 0.3 * _cloud(draw, size, falling)
            image[..., channel] = np.clip(level[channel] + 45 * own, 0, 255)
        for _ in range(DISKS):
            center = draw.uniform(-1, 1, 2)
            radius = draw.uniform(0.1, 0.5)
            inside = np.hypot(places[0][:, None] - center[0], places[1] - center[1]) < radius
            color = draw.integers(0, 256, channels)
            image[inside] = (0.4 * image[inside] + 0.6 * color).astype(np.uint8)
    return made


def _cloud(
    draw: np.random.Generator, size: tuple[int, int], falling: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return noise whose amplitude falls with the frequency, of the mean 0 and the deviation 1."""
    found = np.fft.irfft2(np.fft.rfft2(draw.standard_normal(size)) * falling, size)
    found = found - found.mean()
    return found / max(float(found.std()), 1e-12)  # one pixel has none
