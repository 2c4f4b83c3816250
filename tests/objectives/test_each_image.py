"""What is drawn for an image depends on its own draws, not on its neighbors."""

from itertools import combinations

import torch

from vitlab.data.loading.batch import Batch
from vitlab.objectives.masks import (
    EachImage,
    block_masks,
    draws_of,
    exponentials,
    random_places,
    uniform,
)


def batch_of(count: int, first: int = 0) -> Batch:
    """Images that bring six numbers each."""
    draws = torch.rand(10, 6, generator=torch.Generator().manual_seed(0))[first : first + count]
    none = torch.zeros(count, dtype=torch.int64)
    return Batch(torch.zeros(count, 3, 8, 8), none, draws, none)


def test_half_a_batch_draws_what_the_whole_batch_does() -> None:
    other = torch.Generator().manual_seed(1)
    for draw in (
        lambda given, n: uniform(given, n, 3),
        lambda given, n: exponentials(given, n, 2, 2),
        lambda given, n: random_places(n, 16, 5, given),
        lambda given, n: block_masks(n, (6, 6), 14, given),
    ):
        whole = draw(draws_of(batch_of(10), other), 10)
        halves = [draw(draws_of(batch_of(5, first), other), 5) for first in (0, 5)]
        assert torch.equal(torch.cat(halves), whole)


def test_every_image_draws_its_own() -> None:
    given = draws_of(batch_of(10), torch.Generator())
    assert isinstance(given, EachImage)
    masks = block_masks(10, (14, 14), 75, given)
    assert all(not torch.equal(one, two) for one, two in combinations(masks, 2))


def test_batches_without_draws_take_the_generator() -> None:
    generator = torch.Generator().manual_seed(0)
    none = torch.zeros(2, dtype=torch.int64)
    given = draws_of(Batch(torch.zeros(2, 3, 8, 8), none, torch.zeros(2, 0), none), generator)
    assert given is generator
    assert uniform(given, 2, 3).shape == (2, 3)


def test_numbers_are_uniform_and_exponential() -> None:
    given = EachImage(list(range(2000)), torch.device("cpu"))
    assert abs(uniform(given, 2000, 5).mean() - 0.5) < 4 * (1 / 12 / 10_000) ** 0.5
    assert abs(exponentials(given, 2000, 5).mean() - 1) < 4 * (1 / 10_000) ** 0.5
