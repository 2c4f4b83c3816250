"""Nearest neighbors, against scikit-learn and against the votes counted by hand."""

import numpy as np
import pytest
from sklearn.neighbors import KNeighborsClassifier

from vitlab.evaluation.probes import few_shot
from vitlab.evaluation.probes.few_shot import nearest_neighbors


def examples(n: int, m: int, classes: int = 5) -> tuple[np.ndarray, ...]:
    generator = np.random.default_rng(0)
    centers = generator.normal(size=(classes, 16))
    y, truth = generator.integers(0, classes, n), generator.integers(0, classes, m)
    x, test = (
        (centers[own] + 1.6 * generator.normal(size=(len(own), 16))).astype(np.float32)
        * generator.uniform(0.1, 9, (len(own), 1)).astype(np.float32)  # lengths do not matter
        for own in (y, truth)
    )
    return x, y, test, truth


def theirs(x: np.ndarray, y: np.ndarray, test: np.ndarray, k: int) -> np.ndarray:
    found = KNeighborsClassifier(
        k, metric="cosine", weights=lambda distance: np.exp((1 - distance) / 0.07)
    )
    return found.fit(x.astype(np.float64), y).predict(test.astype(np.float64))


@pytest.mark.parametrize("block", [7, 64, 10_000])
def test_predictions_are_those_of_scikit_learn(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(few_shot, "TRAIN", block)
    monkeypatch.setattr(few_shot, "TEST", 50)
    x, y, test, truth = examples(300, 120)
    found = nearest_neighbors(x, y, test, (1, 10, 20))
    for k in (1, 10, 20):
        assert np.array_equal(found[k], theirs(x, y, test, k)), k
    assert (found[20] == truth).mean() > 0.5
    assert not np.array_equal(found[1], found[20])


def test_nearer_neighbors_outvote_more_of_them() -> None:
    angles = np.array([0.0, 0.5, 0.52, 0.54])
    x = np.stack([np.cos(angles), np.sin(angles)], 1).astype(np.float32)
    y, test = np.array([3, 1, 1, 1]), np.array([[5.0, 0.0]], np.float32)
    votes = np.exp(np.cos(angles) / 0.07)
    assert votes[1:].sum() < votes[0]
    assert nearest_neighbors(x, y, test, (4,))[4].tolist() == [3]
    assert nearest_neighbors(x, y, test, (4,), temperature=1.0)[4].tolist() == [1]


def test_with_fewer_images_than_neighbors_all_of_them_vote() -> None:
    x, y, test, _ = examples(6, 30)
    assert np.array_equal(nearest_neighbors(x, y, test, (20,))[20], theirs(x, y, test, 6))
    assert nearest_neighbors(x, y, test[:0], (20,))[20].shape == (0,)
