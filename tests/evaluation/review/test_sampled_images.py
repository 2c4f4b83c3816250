"""Samples of images: drawn at random by a seed, all equally likely."""

import numpy as np
import pytest

from vitlab.evaluation.choosing import sample


def test_a_sample_is_seeded_and_even() -> None:
    assert sample(5, 9, 0).tolist() == [0, 1, 2, 3, 4]
    first = sample(1000, 50, 0)
    assert first.tolist() == sorted(set(first.tolist()))
    assert len(first) == 50
    assert first.tolist() != sample(1000, 50, 1).tolist()
    shares = np.bincount(np.concatenate([sample(20, 5, seed) for seed in range(400)]))
    assert shares / 400 == pytest.approx(0.25, abs=0.08)
