"""Images in the plane: neighbors stay neighbors, and the same features give the same map."""

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.manifold import TSNE, trustworthiness
from sklearn.neighbors import KNeighborsClassifier
from threadpoolctl import threadpool_info, threadpool_limits

from vitlab.errors import DataError
from vitlab.evaluation.embedding_map import embedding_map

IMAGES = 200


@pytest.fixture(scope="module")
def digits() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    loaded = load_digits()
    return loaded.data[:IMAGES].astype(np.float32), loaded.target[:IMAGES]


@pytest.fixture(scope="module")
def placed(digits: tuple[NDArray[np.float32], NDArray[np.int64]]) -> NDArray[np.float32]:
    return embedding_map(digits[0])


def test_neighbors_stay_neighbors(
    digits: tuple[NDArray[np.float32], NDArray[np.int64]], placed: NDArray[np.float32]
) -> None:
    features, labels = digits
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    assert trustworthiness(unit, placed, n_neighbors=10) > 0.95
    nearest = KNeighborsClassifier(6).fit(placed, labels).kneighbors(return_distance=False)[:, :5]
    agree = (labels[nearest] == labels[:, None]).mean()
    assert agree > 0.8  # by chance, 0.1


def test_it_lies_in_the_unit_square_to_one_scale(placed: NDArray[np.float32]) -> None:
    assert placed.shape == (IMAGES, 2)
    assert placed.dtype == np.float32
    spans = np.ptp(placed, axis=0)
    assert spans.max() == pytest.approx(1)
    assert (placed.min(0) + placed.max(0)) / 2 == pytest.approx([0.5, 0.5], abs=1e-6)


def test_the_same_bits_with_other_threads_and_another_scale(
    digits: tuple[NDArray[np.float32], NDArray[np.int64]],
    placed: NDArray[np.float32],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Powers of two change no digit of a cosine; t-SNE itself never sees more than one thread."""
    threads, fit = set(), TSNE.fit_transform

    def watched(self: TSNE, values: NDArray[np.float64]) -> NDArray[np.float32]:
        threads.update(each["num_threads"] for each in threadpool_info())
        return fit(self, values)

    monkeypatch.setattr(TSNE, "fit_transform", watched)
    with threadpool_limits(2):
        assert embedding_map(digits[0] * 4).tobytes() == placed.tobytes()
    assert threads == {1}


def test_few_images_and_images_that_are_alike() -> None:
    assert embedding_map(np.empty((0, 5), np.float32)).shape == (0, 2)
    assert embedding_map(np.ones((1, 5), np.float32)).tolist() == [[0.5, 0.5]]
    same = embedding_map(np.ones((40, 5), np.float32))
    assert np.isfinite(same).all()
    assert len(np.unique(same[:, 0])) == 40  # each can be seen
    zero = embedding_map(np.zeros((5, 3), np.float32))
    assert np.isfinite(zero).all()
    generator = np.random.default_rng(0)
    for shape in ((4, 8), (9, 2), (12, 1)):
        found = embedding_map(generator.normal(size=shape).astype(np.float32))
        assert np.isfinite(found).all()
        assert (found >= 0).all()
        assert (found <= 1).all()


def test_features_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(DataError, match="gives 1 of 1 images a feature that is not a number"):
        embedding_map(np.array([[1.0, np.nan]], np.float32))
