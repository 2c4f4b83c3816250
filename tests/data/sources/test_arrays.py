"""The digits, and other pixels in memory."""

import numpy as np
from sklearn.datasets import load_digits

from vitlab.data.learning import open_to_learn
from vitlab.data.sources.memory import digits
from vitlab.data.summary import input_shape


def test_digits_are_those_of_scikit_learn() -> None:
    theirs, ours = load_digits(), digits()
    assert np.array_equal(ours.labels.values, theirs.target)
    np.testing.assert_array_equal(ours.images[..., 0], np.round(theirs.images * 255 / 16))
    assert ours.classes == tuple("0123456789")
    splits = open_to_learn("digits", test_fraction=0.5)  # the split is fixed
    assert (len(splits.train), len(splits.test)) == (1438, 359)
    assert input_shape(splits.train) == (8, 1)
