"""Scope of the search for leaks: by the number of images and their bytes, never by a clock.

So that the answer, and with it what is left out of training, is the same on every machine. The
costs are those of two cores with AVX2 (docs/duplicates.md).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitlab.data.duplicates.finding import SMALL
from vitlab.data.exists import SCENES
from vitlab.data.images import Images
from vitlab.data.splits import Splits
from vitlab.errors import DataError
from vitlab.recipes.recipe import Host, Recipe
from vitlab.units import seconds

LIMIT = 60.0  # seconds that a search may take unless it is asked for
SHARE = 0.05  # of a time budget
IMAGE, BYTE = 7e-4, 7.5e-9  # seconds for an image, and for each of its stored bytes
LOOKED_AT = 16  # images of each split that say how large all are
SAMPLE = 20_000  # training images of a sample
OF_TRAINING = 2 / 3  # of the images of a sample
FEWEST = 300  # training images, of which a sample says something: 1% of all at most, if none
FEW = 5.0  # seconds of the search below which no worker processes are started
CERTAINTY = 0.95  # with which a bound holds


@dataclass(frozen=True)
class LeakScope:
    """What the search for near-duplicates takes, and how much of it is done.

    Attributes:
        cost: seconds of an image, its share of the search included
        counts: of the training, test and validation images
        limit: seconds that the search may take without being asked for
        is_tiny: whether all images are too small for near-duplicates
    """

    cost: float
    counts: tuple[int, ...]
    limit: float
    is_tiny: bool

    @property
    def all_seconds(self) -> float:
        """What the search of all images takes."""
        return self.cost * sum(self.counts)

    @property
    def most_images(self) -> int:
        """How many images can be searched within the limit."""
        return int(self.limit / self.cost)

    @property
    def fits_all(self) -> bool:
        """Whether all images can be."""
        return sum(self.counts) <= self.most_images

    @property
    def sample_counts(self) -> tuple[int, ...]:
        """How many of each are in a sample within the limit; none if it would say too little."""
        train, *others = self.counts
        drawn = min(train, SAMPLE, int(OF_TRAINING * self.most_images))
        share = min(1.0, (self.most_images - drawn) / max(1, sum(others)))
        return (drawn, *(int(share * count) for count in others)) if drawn >= FEWEST else ()

    def takes_long(self, images: int) -> bool:
        """Return whether worker processes are worth it to decode so many images."""
        return self.cost * images > FEW


def scope_of(recipe: Recipe, splits: Splits) -> LeakScope:
    """Return what the search of some splits takes, from the sizes of a few images of each."""
    parts = [splits.train, splits.test, splits.validation]
    counts = tuple(0 if part is None else len(part) for part in parts)
    measured = [(0.0, 0) if part is None else _measure_images(part) for part in parts]
    stored = sum(count * size for count, (size, _) in zip(counts, measured, strict=True))
    cost = IMAGE + BYTE * stored / max(1, sum(counts))
    is_tiny = max(side for _, side in measured) < SMALL
    return LeakScope(cost, counts, time_limit(recipe), is_tiny)


def _measure_images(source: Images) -> tuple[float, int]:
    """Return the mean of the stored bytes of a few images, and the longest of their short sides."""
    stored = list[int]()
    longest = 0
    chosen = np.linspace(0, len(source) - 1, num=min(LOOKED_AT, len(source)), dtype=np.int64)
    for index in chosen.tolist():
        try:
            image = source.image(index)
            stored.append(len(image.content()))
            longest = max(longest, min(image.shape()[:2]))
        except DataError:  # reported when it is decoded
            continue
    return sum(stored) / max(1, len(stored)), longest


def time_limit(recipe: Recipe) -> float:
    """Return the seconds that a search may take without being asked for, on two cores."""
    return min(LIMIT, max(1, SHARE * seconds(recipe.budget))) if recipe.budget else LIMIT


def is_asked_for(recipe: Recipe, host: Host) -> bool:
    """Return whether all images are searched, however long it takes."""
    return recipe.data.drop_duplicates or host.check_duplicates == "yes"


def is_left_out(recipe: Recipe, host: Host) -> bool:
    """Return whether nothing is searched.

    No test scene has a digit of a training scene, but some look alike.
    """
    unwanted = host.check_duplicates == "no" or recipe.data.data == SCENES
    return unwanted and not is_asked_for(recipe, host)


def has_spares(recipe: Recipe, splits: Splits) -> bool:
    """Return whether most images may look alike: plain pictures with one thing in them, unsplit."""
    drop = recipe.data.drop_duplicates
    return recipe.pretext.annotated and splits.whole is not None and not drop


def counts_searched(
    recipe: Recipe, host: Host, splits: Splits, scope: LeakScope
) -> tuple[int, ...]:
    """Return how many images of each split are compared; none where only copies are looked for."""
    if scope.is_tiny:
        return ()
    if is_asked_for(recipe, host):
        return scope.counts
    if recipe.data.dev_share:
        return ()
    if scope.fits_all:
        return scope.counts
    return () if has_spares(recipe, splits) else scope.sample_counts


def images_searched(recipe: Recipe, host: Host, splits: Splits) -> int:
    """Return how many images the search for near-duplicates decodes."""
    if is_left_out(recipe, host):
        return 0
    return sum(counts_searched(recipe, host, splits, scope_of(recipe, splits)))


def draw_sample(counts: Sequence[int], wanted: Sequence[int]) -> list[NDArray[np.int64]]:
    """Return the numbers of the images in a sample, sorted: always the same ones."""
    rng = np.random.default_rng(0)
    return [
        np.sort(rng.choice(count, size, replace=False)).astype(np.int64)
        for count, size in zip(counts, wanted, strict=True)
    ]


def bound_share(found: int, images: int) -> float:
    """Return the share that is not exceeded with 95% certainty, `found` of some images having it.

    The upper end of a one-sided interval by Clopper and Pearson: 0 of 20,000 are below 0.015%.
    """
    from scipy.special import betaincinv

    return 1.0 if found >= images else float(betaincinv(found + 1, images - found, CERTAINTY))
