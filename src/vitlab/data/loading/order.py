"""Which images make up batch k: a pure function of the seed and k.

The images of all epochs, each epoch in its own order, form one endless stream; batch k is its k-th
stretch of `batch` images. It does not depend on where a run stopped, how many processes load the
images or how many devices share a batch, and every image occurs once per epoch.
"""

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray


def batch_places(k: int, images: int, batch: int) -> list[tuple[int, int]]:
    """Return (epoch, place in that epoch's order) of each image of batch k."""
    return [divmod(position, images) for position in range(k * batch, (k + 1) * batch)]


def batch_samples(
    seed: int, k: int, images: int, batch: int, repeats: int = 1
) -> list[tuple[int, int, int]]:
    """Return (epoch, index of the image, number of its copy) of each sample of batch k.

    Repeated augmentation (Hoffer et al., 2020; the sampler of DeiT): each image occurs `repeats`
    times in a row in the endless stream, so an epoch of `images` samples covers the first part of
    that epoch's order. Within a batch all first copies come first, then all second ones: neighbors,
    which Mixup and CutMix pair, are different images.
    """
    samples = []
    for epoch, place in batch_places(k, images, batch):
        which, copy = divmod(place, repeats)
        samples.append((epoch, int(epoch_order(seed, epoch, images)[which]), copy))
    return sorted(samples, key=lambda sample: sample[2])  # stable: else in the stream's order


def slice_of(count: int, rank: int, size: int) -> range:
    """Return which of `count` images process `rank` of `size` gets; shares differ by one at most.

    The shares of all processes, concatenated, are all images in their order.
    """
    return range(count * rank // size, count * (rank + 1) // size)


@lru_cache(maxsize=2)  # a batch spans two epochs at the most, unless it is larger than one
def epoch_order(seed: int, epoch: int, images: int) -> NDArray[np.int64]:
    """Return the order of an epoch: a permutation of the images drawn from (seed, epoch)."""
    return np.random.default_rng((seed, epoch)).permutation(images)


def draws(seed: int, epoch: int, index: int, count: int, copy: int = 0) -> NDArray[np.float32]:
    """Draw the random numbers of one image (or copy) in one epoch, uniform in [0, 1): (count,).

    They travel with the image, so augmentation is the same on every device and in every process.
    """
    generator = np.random.Generator(np.random.Philox(key=seed, counter=(0, copy, index, epoch)))
    return generator.random(count, np.float32)


def steps(epochs: float, images: int, batch: int) -> int:
    """Return the number of batches that cover so many epochs, at least one."""
    return max(1, math.ceil(epochs * images / batch - 1e-9))
