"""A keyed permutation, computed place by place (a Feistel network with cycle walking).

Nothing is listed: what stands at a place follows from the key, the place and how many places there
are, so that a permutation of a billion images costs no memory and begins at once.
"""

import numpy as np
from numpy.typing import NDArray

from vitlab.data.target import Integers

Words = NDArray[np.uint64]

ROUNDS = 16  # six would do for many places; of five, six would prefer some permutations by half
GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # the step of SplitMix64 (Steele et al., 2014)
ONE = np.uint64(1)


def derive_key(*numbers: int | Integers) -> Words:
    """Return 64 bits that look random for each row of numbers: (n,), or (1,) of single ones."""
    key = np.zeros(1, np.uint64)
    for number in numbers:
        key = _mix(key + np.asarray(number).astype(np.uint64))
    return key


def permute(keys: Words, places: Integers, counts: int | Integers) -> Integers:
    """Return what stands at some places of permutations of the numbers below a count, (n,).

    A place is written in two digits, of which each is shifted, in turns, by a random number that
    depends on the other one. There are somewhat more pairs of digits than places: a result that is
    no place is shifted again, until it is one.

    Args:
        keys: of the permutation that each place is in, (n,), or one for all
        places: below the count, (n,)
        counts: of places in each permutation, (n,), or one for all
    """
    high = np.ceil(np.sqrt(counts)).astype(np.int64)
    low = -(-np.asarray(counts) // high)
    columns = [np.broadcast_to(column, places.shape) for column in (keys, high, low, counts)]
    result = places.astype(np.uint64)
    astray = np.arange(len(places))
    while len(astray):
        rows = [column[astray].astype(np.uint64, copy=False) for column in columns]
        result[astray] = _shift(result[astray], rows[0], rows[1], rows[2])
        astray = astray[result[astray] >= rows[3]]
    return result.astype(np.int64)


def _shift(places: Words, keys: Words, high: Words, low: Words) -> Words:
    """Return places below `high * low` after all rounds of shifts."""
    first, second = np.divmod(places, low)
    key = keys
    for _ in range(ROUNDS // 2):
        first = (first + (_mix(key + second) >> ONE)) % high  # below 2^63: the sum is exact
        key = key + GOLDEN
        second = (second + (_mix(key + first) >> ONE)) % low
        key = key + GOLDEN
    return first * low + second


def _mix(words: Words) -> Words:
    """Return the numbers that SplitMix64 draws from some states."""
    words = words + GOLDEN
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
