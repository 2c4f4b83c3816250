"""A keyed permutation is one, and a fair one, however many places it has."""

import math
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitlab.data.loading.permutation import derive_key, permute

ODDS = 5.0  # standard deviations: of a fair permutation, one test in two million is as far off


def whole(count: int, keys: int, seed: int = 0) -> np.ndarray:
    """The permutations of so many keys, (keys, count)."""
    each = derive_key(seed, np.repeat(np.arange(keys), count))
    return permute(each, np.tile(np.arange(count), keys), count).reshape(keys, count)


def surprise(observed: np.ndarray, expected: float, freedom: int) -> float:
    """How many standard deviations a chi-squared sum is above its mean."""
    total = ((observed - expected) ** 2 / expected).sum()
    return float((total - freedom) / math.sqrt(2 * freedom))


@settings(deadline=None)
@given(st.integers(1, 5000), st.integers(0, 2**63 - 1))
def test_every_number_stands_at_one_place(count: int, seed: int) -> None:
    assert sorted(whole(count, 1, seed)[0].tolist()) == list(range(count))


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 2**45), st.integers(0, 2**62))
def test_places_of_many_are_told_apart_and_stay_below_their_count(count: int, seed: int) -> None:
    places = np.unique(np.random.default_rng(seed).integers(0, count, 2000))
    found = permute(derive_key(seed), places, count)
    assert len(np.unique(found)) == len(places)
    assert 0 <= found.min() <= found.max() < count


def test_a_place_does_not_depend_on_those_beside_it() -> None:
    generator = np.random.default_rng(0)
    counts = generator.integers(1, [2, 10, 1000, 2**40], (500, 4)).ravel()
    places = generator.integers(0, counts)
    keys = derive_key(3, np.arange(len(counts)))
    together = permute(keys, places, counts)
    alone = [permute(keys[i : i + 1], places[i : i + 1], int(counts[i])) for i in range(2000)]
    assert np.array_equal(together, np.concatenate(alone))


@pytest.mark.parametrize("count", [2, 3, 4])
def test_few_places_have_every_permutation_equally_often(count: int) -> None:
    keys = 40_000
    rows = whole(count, keys, seed=1)
    orders = np.array([*permutations(range(count))])
    observed = (rows[:, None] == orders).all(2).sum(0)
    assert surprise(observed, keys / len(orders), len(orders) - 1) < ODDS


@pytest.mark.parametrize("count", [5, 10, 17, 64, 100])
def test_numbers_and_pairs_of_neighbors_are_equally_frequent(count: int) -> None:
    keys = 4_000_000 // count**2
    rows = whole(count, keys, seed=2)
    table = np.zeros((count, count))
    np.add.at(table, (np.arange(count), rows), 1)
    assert surprise(table, keys / count, (count - 1) ** 2) < ODDS + count / (count - 1) ** 2
    for distance in (1, count // 2):
        pairs = np.zeros((count, count))
        np.add.at(pairs, (rows[:, 0], rows[:, distance]), 1)
        other = ~np.eye(count, dtype=bool)
        freedom = count * (count - 1)
        assert surprise(pairs[other], keys / freedom, freedom - 1) < ODDS


@pytest.mark.parametrize("count", [1797, 65_536, 1_281_167])
def test_one_permutation_of_many_is_as_unlike_their_order_as_chance_has_it(count: int) -> None:
    """Fixed places, steps between neighbors, and how far numbers follow their places."""
    for key in range(3):
        row = whole(count, 1, seed=key)[0]
        places = np.arange(count)
        assert (row == places).sum() < 10  # one is expected
        assert (np.diff(row) == 1).sum() < 10
        scale = math.sqrt(count)
        assert abs(np.corrcoef(row, places)[0, 1]) * scale < ODDS
        assert abs(np.corrcoef(row[:-1], row[1:])[0, 1]) * scale < ODDS
        bins = np.bincount(row[: count // 2] * 64 // count, minlength=64)  # half: a fair sample
        assert surprise(bins, count / 128, 63) < ODDS
        other = whole(count, 1, seed=key + 1)[0]
        assert (row == other).sum() < 10
        assert abs(np.corrcoef(row, other)[0, 1]) * scale < ODDS
