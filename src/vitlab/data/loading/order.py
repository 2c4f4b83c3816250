"""The order of training images: batch k is a pure function of the seed and k.

The images of all epochs, each epoch in its own order, form one endless stream; batch k is its k-th
stretch of `batch` images. It does not depend on where a run stopped, how many processes load the
images or how many devices share a batch. Every image occurs once per epoch, unless classes are
drawn equally often (`Groups`).
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

BALANCED = 2**40  # separates the orders within classes from those of epochs


@dataclass(frozen=True, eq=False)
class Groups:
    """The images of each class, to draw every class equally often.

    Attributes:
        members: indices of the images of each class that has any, int64 (n,) each
    """

    members: tuple[NDArray[np.int64], ...]

    @classmethod
    def of(cls, classes: NDArray[np.integer[Any]]) -> Self:
        """Group images, given the class of each, (n,)."""
        order = np.argsort(classes, kind="stable")
        _, starts = np.unique(classes[order], return_index=True)
        return cls(tuple(np.split(order, starts[1:])))


def batch_samples(
    seed: int, k: int, images: int, batch: int, repeats: int = 1, groups: Groups | None = None
) -> list[tuple[int, int, int]]:
    """Return (times drawn before, index of the image, number of its copy) of batch k's samples.

    Without `groups`, an image has been drawn before as often as there were epochs before.

    Repeated augmentation (Hoffer et al., 2020; the sampler of DeiT): each image occurs `repeats`
    times in a row in the endless stream, so an epoch of `images` samples covers the first part of
    that epoch's order. Within a batch all first copies come first, then all second ones: neighbors,
    which Mixup and CutMix pair, are different images.
    """
    samples = []
    for position in range(k * batch, (k + 1) * batch):
        epoch, place = divmod(position, images)
        which, copy = divmod(place, repeats)
        if groups is None:
            drawn = epoch
            index = epoch_order(seed, epoch, images)[which]
        else:
            drawn, index = balanced_order(seed, epoch, -(-images // repeats), groups)[which]
        samples.append((int(drawn), int(index), copy))
    return sorted(samples, key=lambda sample: sample[2])  # stable: else in the stream's order


def slice_of(count: int, rank: int, size: int) -> range:
    """Return which of `count` images process `rank` of `size` gets; shares differ by one at most.

    The shares of all processes, concatenated, are all images in their order.
    """
    return range(count * rank // size, count * (rank + 1) // size)


def own_part(count: int, rank: int, size: int) -> range:
    """Return which of a batch's `count` images process `rank` of `size` learns from.

    Pairs, which Mixup and CutMix mix, stay together, unless a process would then have none.
    """
    each = 2 if count >= 2 * size else 1
    pairs = slice_of(-(-count // each), rank, size)
    return range(pairs.start * each, min(pairs.stop * each, count))


@lru_cache(maxsize=2)  # a batch spans two epochs at the most, unless it is larger than one
def epoch_order(seed: int, epoch: int, images: int) -> NDArray[np.int64]:
    """Return the order of an epoch: a permutation of the images drawn from (seed, epoch)."""
    return np.random.default_rng((seed, epoch)).permutation(images)


@lru_cache(maxsize=2)
def balanced_order(seed: int, epoch: int, count: int, groups: Groups) -> NDArray[np.int64]:
    """Return (times drawn before, index) of the `count` images of an epoch: (count, 2).

    The classes take turns in one endless row of turns, of which an epoch takes the next `count`, in
    an order drawn from (seed, epoch): in no epoch do two classes differ by more than one image.
    Each class goes through all of its images, in an order drawn from (seed, class, round), before
    it begins its next round, so that its images too differ by at most one. Nothing depends on what
    was drawn before.
    """
    classes = len(groups.members)
    turns = epoch * count + np.random.default_rng((seed, epoch)).permutation(count)
    chosen = np.empty((count, 2), np.int64)
    by_class = np.argsort(turns % classes, kind="stable")
    ends = np.cumsum(np.bincount(turns % classes, minlength=classes))
    for number, members in enumerate(groups.members):
        own = by_class[ends[number - 1] if number else 0 : ends[number]]
        rounds, places = np.divmod(turns[own] // classes, len(members))
        for each in np.unique(rounds):
            now = rounds == each
            order = np.random.default_rng((seed, BALANCED, number, each)).permutation(members)
            chosen[own[now], 0], chosen[own[now], 1] = each, order[places[now]]
    return chosen


def draws(seed: int, epoch: int, index: int, count: int, copy: int = 0) -> NDArray[np.float32]:
    """Draw the random numbers of one image (or copy) in one epoch, uniform in [0, 1): (count,).

    They travel with the image, so augmentation is the same on every device and in every process.
    """
    generator = np.random.Generator(np.random.Philox(key=seed, counter=(0, copy, index, epoch)))
    return generator.random(count, np.float32)


def steps(epochs: float, images: int, batch: int) -> int:
    """Return the number of batches that cover so many epochs, at least one."""
    return max(1, math.ceil(epochs * images / batch - 1e-9))
