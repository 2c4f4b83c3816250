"""The order of training is a pure function of the seed and the batch's number."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitlab.data.loading.order import (
    ORDERS,
    Groups,
    Order,
    Samples,
    Stream,
    balanced_order,
    draws,
    epoch_order,
    steps,
)
from vitlab.data.loading.parts import own_part

IMAGES, BATCH, SEED = st.integers(1, 50), st.integers(1, 70), st.integers(0, 2**62)
KIND = st.sampled_from([*ORDERS])
Rows = list[tuple[int, int, int]]


def rows(samples: Samples) -> Rows:
    """Times drawn before, index and number of the copy of each sample."""
    columns = (samples.rounds, samples.indices, samples.copies)
    return list(zip(*(each.tolist() for each in columns), strict=True))


def stream_of(stream: Stream, total: int) -> Rows:
    """The first batches."""
    return [row for k in range(total) for row in rows(stream.samples(k))]


def samples_of(*each: tuple[int, int, int]) -> Samples:
    """Samples, given what `rows` returns."""
    return Samples(*(np.array(column, np.int64) for column in zip(*each, strict=True)))


def listed_by_hand(seed: int, k: int, images: int, batch: int, repeats: int, groups) -> Rows:
    """Batch k sample by sample, as every process once listed all of it."""
    samples = []
    for position in range(k * batch, (k + 1) * batch):
        epoch, place = divmod(position, images)
        which, copy = divmod(place, repeats)
        if groups is None:
            drawn = epoch
            index = np.random.default_rng((seed, epoch)).permutation(images)[which]
        else:
            drawn, index = balanced_by_hand(seed, epoch, -(-images // repeats), groups)[which]
        samples.append((int(drawn), int(index), copy))
    return sorted(samples, key=lambda sample: sample[2])


def balanced_by_hand(seed: int, epoch: int, count: int, members) -> np.ndarray:
    """Times drawn before and index of an epoch whose classes take turns, from lists."""
    turns = epoch * count + np.random.default_rng((seed, epoch)).permutation(count)
    rows = []
    for turn in turns.tolist():
        each, number = divmod(turn, len(members))
        drawn, place = divmod(each, len(members[number]))
        generator = np.random.default_rng((seed, 2**40, number, drawn))
        rows.append((drawn, generator.permutation(members[number])[place]))
    return np.array(rows)


def draws_by_hand(seed: int, row: tuple[int, int, int], count: int) -> np.ndarray:
    """The numbers of one sample from a generator of its own."""
    epoch, index, copy = row
    philox = np.random.Philox(key=seed, counter=(0, copy, index, epoch))
    return np.random.Generator(philox).random(count, np.float32)


@settings(deadline=None)
@given(KIND, IMAGES, BATCH, st.integers(1, 4), SEED)
def test_every_image_comes_once_an_epoch(kind, images, batch, epochs, seed) -> None:
    total = steps(epochs, images, batch)
    stream = stream_of(Stream(seed, images, batch, 1, Order(kind)), total)
    counts = Counter(stream[: epochs * images])
    assert counts == dict.fromkeys(((e, i, 0) for e in range(epochs) for i in range(images)), 1)
    assert 0 <= len(stream) - epochs * images < batch


@settings(deadline=None, max_examples=50)
@given(IMAGES, BATCH, st.integers(0, 9), st.integers(1, 4), SEED, st.booleans())
def test_a_listed_order_is_the_one_that_runs_always_had(
    images, batch, k, repeats, seed, balanced
) -> None:
    classes = np.random.default_rng(seed).integers(0, 4, images)
    groups = Groups.of(classes) if balanced else None
    members = [np.flatnonzero(classes == each) for each in np.unique(classes)]
    theirs = listed_by_hand(seed, k, images, batch, repeats, members if balanced else None)
    stream = Stream(seed, images, batch, repeats, Order("listed", groups))
    assert rows(stream.samples(k)) == theirs


@settings(deadline=None, max_examples=50)
@given(KIND, IMAGES, BATCH, st.integers(0, 9), st.integers(1, 4), st.integers(1, 9), st.booleans())
def test_parts_of_processes_make_up_the_batch(
    kind, images, batch, k, repeats, processes, balanced
) -> None:
    groups = Groups.of(np.arange(images) % 3) if balanced else None
    stream = Stream(5, images, batch, repeats, Order(kind, groups))
    whole = rows(stream.samples(k))
    parts = [rows(stream.samples(k, rank, processes)) for rank in range(processes)]
    assert [row for part in parts for row in part] == whole
    assert [len(part) for part in parts] == [
        len(own_part(batch, rank, processes)) for rank in range(processes)
    ]


@pytest.mark.parametrize("kind", ORDERS)
def test_batches_do_not_depend_on_those_before(kind: str) -> None:
    order = Order(kind)
    late = rows(Stream(5, 33, 8, 1, order).samples(40))
    epoch_order.cache_clear()
    assert late == rows(Stream(5, 33, 8, 1, order).samples(40))
    assert late != rows(Stream(6, 33, 8, 1, order).samples(40))
    whole = rows(Stream(4, 33, 99, 1, order).samples(0))  # three epochs
    assert whole[:33] != [(0, index, 0) for _, index, _ in whole[33:66]]
    assert rows(Stream(4, 33, 10, 1, order).samples(7)) == whole[70:80]
    assert (steps(1, 100, 10), steps(0.25, 100, 10), steps(3, 7, 100)) == (10, 3, 1)


def test_draws_belong_to_seed_epoch_and_image() -> None:
    row = (2, 3, 0)
    base = draws(1, samples_of(row), 28)
    assert base.shape == (1, 28)
    assert base.dtype == np.float32
    for seed, *other in ((2, 2, 3, 0), (1, 3, 3, 0), (1, 2, 4, 0)):
        assert not np.array_equal(base, draws(seed, samples_of((*other,)), 28))
    many = draws(0, samples_of(*((0, i, 0) for i in range(2000))), 28)
    assert many.min() >= 0
    assert many.max() < 1
    assert many.mean() == pytest.approx(0.5, abs=0.01)
    assert abs(np.corrcoef(many[:-1, 0], many[1:, 0])[0, 1]) < 0.1  # neighbors are independent


@settings(deadline=None)
@given(
    SEED,
    st.lists(st.tuples(st.integers(0, 2**62), st.integers(0, 2**40), st.integers(0, 9)),
             min_size=1, max_size=9),
    st.integers(0, 40),
)  # fmt: skip
def test_draws_are_those_of_a_generator_each(seed: int, each: Rows, count: int) -> None:
    found = draws(seed, samples_of(*each), count)
    assert np.array_equal(found, np.stack([draws_by_hand(seed, row, count) for row in each]))


@settings(deadline=None)
@given(KIND, IMAGES, BATCH, st.integers(1, 5), SEED)
def test_repeats_fill_an_epoch_with_fewer_images(kind, images, batch, repeats, seed) -> None:
    """As DeiT's sampler: each image of the first part of an epoch's order, so many times."""
    total = steps(2, images, batch)
    stream = stream_of(Stream(seed, images, batch, repeats, Order(kind)), total)
    plain = rows(Stream(seed, images, 2 * images, 1, Order(kind)).samples(0))
    for epoch in range(2):
        counts = Counter(index for e, index, _ in stream if e == epoch)
        order = [index for e, index, _ in plain if e == epoch]
        theirs = [i for i in order for _ in range(repeats)][:images]
        if epoch == 0 or len(stream) == 2 * images:
            assert counts == Counter(theirs)
    assert len(set(stream)) == len(stream)  # no copy comes twice


def test_copies_of_an_image_are_apart_and_draw_on_their_own() -> None:
    indices = Stream(4, 1000, 48, 3).samples(3).indices.tolist()
    assert len(set(indices)) == 16
    assert all(a != b for a, b in pairwise(indices))
    copies = draws(1, samples_of(*((2, 3, copy) for copy in range(3))), 40)
    assert np.array_equal(copies[:, :28], draws(1, samples_of((2, 3, 0), (2, 3, 1), (2, 3, 2)), 28))
    assert len(np.unique(copies)) == 120


sizes = st.lists(st.integers(0, 9), min_size=1, max_size=6).filter(lambda each: sum(each) > 0)


@settings(deadline=None)
@given(KIND, sizes, st.integers(1, 40), st.integers(0, 2**62))
def test_every_class_is_drawn_equally_often(
    kind: str, sizes: list[int], batch: int, seed: int
) -> None:
    classes = np.random.default_rng(0).permutation(np.repeat(np.arange(len(sizes)), sizes))
    images, groups = len(classes), Groups.of(classes)
    total = steps(3, images, batch)
    stream = stream_of(Stream(seed, images, batch, 1, Order(kind, groups)), total)[: 3 * images]
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


@pytest.mark.parametrize("kind", ORDERS)
def test_equal_draws_depend_on_nothing_that_was_drawn_before(kind: str) -> None:
    classes = np.repeat([0, 1, 2], [30, 5, 1])

    def epochs(seed: int, batch: int, k: int) -> Rows:
        order = Order(kind, Groups.of(classes))
        return rows(Stream(seed, 36, batch, 1, order).samples(k))

    late = epochs(5, 8, 40)
    balanced_order.cache_clear()
    assert late == epochs(5, 8, 40)
    assert late != epochs(6, 8, 40)
    orders = [[index for _, index, _ in epochs(5, 36, k)] for k in (0, 1)]
    assert orders[0] != orders[1]
    assert classes[orders[0]].tolist() != [0, 1, 2] * 12  # it is random
