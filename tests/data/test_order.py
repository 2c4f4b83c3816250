"""The order of training is a pure function of the seed and the batch's number."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitlab.data.order import batch_indices, draws, epoch_order, steps


@given(
    images=st.integers(1, 50), batch=st.integers(1, 70), epochs=st.integers(1, 4),
    seed=st.integers(0, 2**62),
)  # fmt: skip
def test_every_image_comes_once_an_epoch(images: int, batch: int, epochs: int, seed: int) -> None:
    total = steps(epochs, images, batch)
    stream = [pair for k in range(total) for pair in batch_indices(seed, k, images, batch)]
    counts = Counter(stream[: epochs * images])
    assert counts == dict.fromkeys(((e, i) for e in range(epochs) for i in range(images)), 1)
    assert 0 <= len(stream) - epochs * images < batch


def test_batches_do_not_depend_on_those_before() -> None:
    late = batch_indices(5, 40, 33, 8)
    epoch_order.cache_clear()
    assert late == batch_indices(5, 40, 33, 8)
    assert late != batch_indices(6, 40, 33, 8)
    assert not np.array_equal(epoch_order(5, 0, 33), epoch_order(5, 1, 33))


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
    assert abs(np.corrcoef(many[:-1, 0], many[1:, 0])[0, 1]) < 0.1  # neighbours are independent


def test_lengths() -> None:
    assert steps(1, 100, 10) == 10
    assert steps(0.25, 100, 10) == 3
    assert steps(3, 7, 100) == 1
