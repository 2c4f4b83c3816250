"""The random numbers of an image: how many its augmentation needs, and what each is for."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitlab.data.settings import Augment

# The use of an image's random numbers; the first six move it. RandAugment's follow, four per
# operation, and then those of `policy.by_chance`, where an option needs them.
THREE = slice(6, 8)
JITTER = slice(8, 13)
ERASE = slice(13, 38)
RAND = 38
CHANCES = 5


def draws_needed(options: Augment) -> int:
    """Return how many random numbers `augment` uses per image."""
    by_chance = options.jitter_probability < 1 or has_chances(options)
    return RAND + 4 * options.rand_ops + CHANCES * by_chance


def has_chances(options: Augment) -> bool:
    """Return whether an option is applied by chance, so that `policy.by_chance` draws for it."""
    return any((options.grayscale, options.blur, options.solarize))


def mirrored(draws: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which images `flip` mirrors, by the first of their random numbers, (B,)."""
    found: NDArray[np.bool_] = draws[:, 0] < 0.5
    return found
