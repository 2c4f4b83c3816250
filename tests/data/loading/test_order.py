"""The order of training is a pure function of the seed and the batch's number."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitlab.data.loading.order import (
    Groups,
    balanced_order,
    batch_samples,
    draws,
    epoch_order,
    steps,
)

IMAGES, BATCH, SEED = st.integers(1, 50), st.integers(1, 70), st.integers(0, 2**62)


@settings(deadline=None)
@given(IMAGES, BATCH, st.integers(1, 4), SEED)
def test_every_image_comes_once_an_epoch(images: int, batch: int, epochs: int, seed: int) -> None:
    total = steps(epochs, images, batch)
    stream = [pair for k in range(total) for pair in batch_samples(seed, k, images, batch)]
    counts = Counter(stream[: epochs * images])
    assert counts == dict.fromkeys(((e, i, 0) for e in range(epochs) for i in range(images)), 1)
    assert 0 <= len(stream) - epochs * images < batch


def test_batches_do_not_depend_on_those_before() -> None:
    late = batch_samples(5, 40, 33, 8)
    epoch_order.cache_clear()
    assert late == batch_samples(5, 40, 33, 8)
    assert late != batch_samples(6, 40, 33, 8)
    assert not np.array_equal(epoch_order(5, 0, 33), epoch_order(5, 1, 33))
    stream = [divmod(position, 33) for position in range(70, 80)]
    orders = [epoch_order(4, epoch, 33).tolist() for epoch in range(3)]
    assert batch_samples(4, 7, 33, 10) == [(e, orders[e][place], 0) for e, place in stream]
    assert (steps(1, 100, 10), steps(0.25, 100, 10), steps(3, 7, 100)) == (10, 3, 1)


def test_draws_belong_to_seed_epoch_and_image() -> None:
    base = draws(1, 2, 3, 28)
    assert base.shape == (28,)
    assert base.dtype == np.float32
    assert np.array_equal(base, draws(1, 2, 3, 28))
    for other in ((2, 2, 3), (1, 3, 3), (1, 2, 4)):
        assert not np.array_equal(base, draws(*other, 28))
    many = np.stack([draws(0, 0, i, 28) for i in range(2000)])
    assert many.min() >= 0
    assert many.max() < 1
    assert many.mean() == pytest.approx(0.5, abs=0.01)
    assert abs(np.corrcoef(many[:-1, 0], many[1:, 0])[0, 1]) < 0.1  # neighbors are independent


@settings(deadline=None)
@given(IMAGES, BATCH, st.integers(1, 5), SEED)
def test_repeats_fill_an_epoch_with_fewer_images(images, batch, repeats, seed) -> None:
    """As DeiT's sampler: each image of the first part of an epoch's order, so many times."""
    total = steps(2, images, batch)
    stream = [s for k in range(total) for s in batch_samples(seed, k, images, batch, repeats)]
    for epoch in range(2):
        counts = Counter(index for e, index, _ in stream if e == epoch)
        order = [int(i) for i in epoch_order(seed, epoch, images)]
        theirs = [i for i in order for _ in range(repeats)][:images]
        if epoch == 0 or len(stream) == 2 * images:
            assert counts == Counter(theirs)
    assert len(set(stream)) == len(stream)  # no copy comes twice


def test_copies_of_an_image_are_apart_and_draw_on_their_own() -> None:
    samples = batch_samples(4, 3, 1000, 48, 3)
    indices = [index for _, index, _ in samples]
    assert len(set(indices)) == 16
    assert all(a != b for a, b in pairwise(indices))
    base = draws(1, 2, 3, 40)
    assert np.array_equal(base, draws(1, 2, 3, 40, copy=0))
    assert np.array_equal(base[:28], draws(1, 2, 3, 28))
    copies = np.stack([draws(1, 2, 3, 40, copy) for copy in range(3)])
    assert len(np.unique(copies)) == 120


sizes = st.lists(st.integers(0, 9), min_size=1, max_size=6).filter(lambda each: sum(each) > 0)


@settings(deadline=None)
@given(sizes, st.integers(1, 40), st.integers(0, 2**62))
def test_every_class_is_drawn_equally_often(sizes: list[int], batch: int, seed: int) -> None:
    classes = np.random.default_rng(0).permutation(np.repeat(np.arange(len(sizes)), sizes))
    images, groups = len(classes), Groups.of(classes)
    total = steps(3, images, batch)
    stream = [s for k in range(total) for s in batch_samples(seed, k, images, batch, 1, groups)]
    stream = stream[: 3 * images]
    assert len(set(stream)) == len(stream)  # no image is drawn twice with the same random numbers
    present = [number for number, size in enumerate(sizes) if size]
    for epoch in range(3):
        own = Counter(classes[i] for _, i, _ in stream[epoch * images : (epoch + 1) * images])
        assert max(own[c] for c in present) - min(own[c] for c in present) <= 1
    for number in present:
        drawn = Counter(index for _, index, _ in stream if classes[index] == number)
        members = np.flatnonzero(classes == number)
        assert max(drawn[i] for i in members) - min(drawn[i] for i in members) <= 1
    rounds = Counter(index for _, index, _ in stream)
    assert set(stream) == {(each, i, 0) for i, count in rounds.items() for each in range(count)}


def test_equal_draws_depend_on_nothing_that_was_drawn_before() -> None:
    classes = np.repeat([0, 1, 2], [30, 5, 1])
    late = batch_samples(5, 40, 36, 8, 1, Groups.of(classes))
    balanced_order.cache_clear()
    assert late == batch_samples(5, 40, 36, 8, 1, Groups.of(classes))
    assert late != batch_samples(6, 40, 36, 8, 1, Groups.of(classes))
    orders = [balanced_order(5, epoch, 36, Groups.of(classes))[:, 1] for epoch in (0, 1)]
    assert not np.array_equal(*orders)
    assert not np.array_equal(classes[orders[0]], np.tile([0, 1, 2], 12))  # it is random
