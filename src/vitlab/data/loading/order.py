"""The order of training images: batch k is a pure function of the seed and k.

The images of all epochs, each epoch in its own order, form one endless stream; batch k is its k-th
stretch of `batch` images. It does not depend on where a run stopped, how many processes load the
images or how many devices share a batch. Every image occurs once per epoch, unless classes are
drawn equally often (`Groups`).

There are several ways to order the images of an epoch, in the table `ORDERS`. A run keeps to the
one that it was started with.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from vitlab.data.loading.parts import own_part
from vitlab.data.loading.permutation import derive_key, permute
from vitlab.data.target import Integers

LISTED = "listed"  # of runs whose `run.toml` names none
KEYED = "keyed"
BALANCED = 2**40  # separates the orders within classes from those of epochs
EPOCHS = 0  # the same of keys
CLASSES = 1


@dataclass(frozen=True, eq=False)
class Groups:
    """The images of each class, to draw every class equally often.

    Attributes:
        members: indices of all images, class after class, (n,)
        ends: where each class that has any ends there, (classes,)
    """

    members: Integers
    ends: Integers

    @classmethod
    def of(cls, classes: NDArray[np.integer[Any]]) -> Self:
        """Group images, given the class of each, (n,)."""
        order = np.argsort(classes, kind="stable")
        _, sizes = np.unique(classes, return_counts=True)
        return cls(order, np.cumsum(sizes))

    @property
    def sizes(self) -> Integers:
        """How many images each class has, (classes,)."""
        return np.diff(self.ends, prepend=0)


@dataclass(frozen=True, eq=False)
class Order:
    """In which order the images of an epoch come.

    Attributes:
        kind: a name in `ORDERS`
        groups: the images of each class, to draw every class equally often; None: every image once
            per epoch
    """

    kind: str = KEYED
    groups: Groups | None = None


@dataclass(frozen=True)
class Samples:
    """What a batch, or the part of it that one process learns from, consists of.

    Attributes:
        rounds: how often each image has been drawn before, (n,)
        indices: of the images, (n,)
        copies: the number of each copy, of an image that is repeated, (n,)
    """

    rounds: Integers
    indices: Integers
    copies: Integers


@dataclass(frozen=True, eq=False)
class Stream:
    """The endless stream of the images of all epochs.

    Repeated augmentation (Hoffer et al., 2020; the sampler of DeiT): each image occurs `repeats`
    times in a row in the stream, so an epoch of `images` samples covers the first part of that
    epoch's order.

    Attributes:
        seed: of the order
        images: how many there are, and samples of an epoch
        batch: samples per batch
        repeats: copies of each image
        order: of the images of an epoch
    """

    seed: int
    images: int
    batch: int
    repeats: int = 1
    order: Order = Order()

    @property
    def epoch_images(self) -> int:
        """How many images an epoch draws."""
        return -(-self.images // self.repeats)

    def samples(self, k: int, rank: int = 0, processes: int = 1) -> Samples:
        """Return the samples of batch k that process `rank` learns from.

        Within a batch all first copies come first, then all second ones: neighbors, which Mixup and
        CutMix pair, are different images. Without groups, an image has been drawn before as often
        as there were epochs before.
        """
        part = own_part(self.batch, rank, processes)
        positions = np.arange(part.start, part.stop) + k * self.batch
        if self.repeats > 1:
            whole = np.arange(k * self.batch, (k + 1) * self.batch)
            copies = whole % self.images % self.repeats
            positions = whole[np.argsort(copies, kind="stable")[part.start : part.stop]]
        epochs, places = np.divmod(positions, self.images)
        places, copies = np.divmod(places, self.repeats)
        rounds, indices = ORDERS[self.order.kind](self, epochs, places)
        return Samples(rounds, indices, copies)


# The ways to order an epoch: functions of the stream, epochs and the places in them, (n,) each,
# that return how often each image has been drawn before, and its index, (n,) each


def draw_listed(stream: Stream, epochs: Integers, places: Integers) -> tuple[Integers, Integers]:
    """Look images up in a list of the whole epoch, as all runs did whose `run.toml` names none.

    Every process holds the list.
    """
    rounds = epochs.copy()
    indices = np.empty_like(places)
    for epoch in np.unique(epochs).tolist():
        now = epochs == epoch
        if stream.order.groups is None:
            indices[now] = epoch_order(stream.seed, epoch, stream.images)[places[now]]
        else:
            drawn = balanced_order(stream.seed, epoch, stream.epoch_images, stream.order.groups)
            rounds[now], indices[now] = drawn[places[now]].T
    return rounds, indices


@lru_cache(maxsize=2)  # a batch spans two epochs at the most, unless it is larger than one
def epoch_order(seed: int, epoch: int, images: int) -> Integers:
    """Return the order of an epoch: a permutation of the images drawn from (seed, epoch)."""
    return np.random.default_rng((seed, epoch)).permutation(images)


@lru_cache(maxsize=2)
def balanced_order(seed: int, epoch: int, count: int, groups: Groups) -> Integers:
    """Return (times drawn before, index) of the `count` images of an epoch: (count, 2).

    As `draw_keyed` does it, with listed permutations of the turns and of each class.
    """
    classes = len(groups.ends)
    turns = epoch * count + np.random.default_rng((seed, epoch)).permutation(count)
    chosen = np.empty((count, 2), np.int64)
    by_class = np.argsort(turns % classes, kind="stable")
    ends = np.cumsum(np.bincount(turns % classes, minlength=classes))
    for number, members in enumerate(np.split(groups.members, groups.ends[:-1])):
        own = by_class[ends[number - 1] if number else 0 : ends[number]]
        rounds, places = np.divmod(turns[own] // classes, len(members))
        for each in np.unique(rounds):
            now = rounds == each
            order = np.random.default_rng((seed, BALANCED, number, each)).permutation(members)
            chosen[own[now], 0], chosen[own[now], 1] = each, order[places[now]]
    return chosen


def draw_keyed(stream: Stream, epochs: Integers, places: Integers) -> tuple[Integers, Integers]:
    """Compute each image by its place: nothing is held, and an epoch begins at once.

    Where classes are drawn equally often, they take turns in one endless row of turns, of which an
    epoch takes the next ones, in an order drawn from (seed, epoch): in no epoch do two classes
    differ by more than one image. Each class goes through all of its images, in an order drawn from
    (seed, class, round), before it begins its next round, so that its images too differ by at most
    one. Nothing depends on what was drawn before.
    """
    keys = derive_key(stream.seed, EPOCHS, epochs)
    groups = stream.order.groups
    if groups is None:
        return epochs, permute(keys, places, stream.images)
    turns = epochs * stream.epoch_images + permute(keys, places, stream.epoch_images)
    turns, number = np.divmod(turns, len(groups.ends))
    sizes = groups.sizes[number]
    rounds, places = np.divmod(turns, sizes)
    members = permute(derive_key(stream.seed, CLASSES, number, rounds), places, sizes)
    return rounds, groups.members[groups.ends[number] - sizes + members]


DrawOrder = Callable[[Stream, Integers, Integers], tuple[Integers, Integers]]
ORDERS: dict[str, DrawOrder] = {
    LISTED: draw_listed,
    KEYED: draw_keyed,
}


def draws(seed: int, samples: Samples, count: int) -> NDArray[np.float32]:
    """Draw the random numbers of each sample, uniform in [0, 1): (n, count).

    They travel with the image, so augmentation is the same on every device and in every process.
    They are those of Philox, a generator that draws from its key and a counter, which is set to
    what identifies a sample.
    """
    philox = np.random.Philox(key=seed)
    generator = np.random.Generator(philox)
    state: Any = philox.state
    counters = np.zeros((len(samples.indices), 4), np.uint64)
    counters[:, 1] = samples.copies
    counters[:, 2] = samples.indices
    counters[:, 3] = samples.rounds
    numbers = np.empty((len(counters), count), np.float32)
    for row, counter in zip(numbers, counters, strict=True):
        state["state"]["counter"] = counter
        philox.state = state
        generator.random(dtype=np.float32, out=row)
    return numbers


def steps(epochs: float, images: int, batch: int) -> int:
    """Return the number of batches that cover so many epochs, at least one."""
    return max(1, math.ceil(epochs * images / batch - 1e-9))
