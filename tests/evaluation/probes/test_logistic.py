"""The logistic probe, against scikit-learn's solver of the same problem."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from vitlab.errors import DataError
from vitlab.evaluation.probes import logistic
from vitlab.evaluation.probes.logistic import fit, swept_logistic

CPU = torch.device("cpu")


def examples(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    centers = np.random.default_rng(9).normal(size=(4, 12))
    y = generator.integers(0, 4, n)
    x = (centers[y] + 1.5 * generator.normal(size=(n, 12))) * 10.0 ** np.arange(-3, 3).repeat(2)
    return (x + 5).astype(np.float32), y


def theirs(x: np.ndarray, y: np.ndarray, l2: float) -> tuple[LogisticRegression, np.ndarray]:
    x = x.astype(np.float64)
    deviation = x.std(0) + 1e-5
    model = LogisticRegression(C=1 / (l2 * len(x)), max_iter=5000, tol=1e-10)
    return model.fit((x - x.mean(0)) / deviation, y), deviation


@pytest.mark.parametrize("l2", [1.0, 1e-2, 1e-4])
@pytest.mark.parametrize("memory", [2**30, 0])
def test_the_fit_is_that_of_scikit_learn(
    l2: float, memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In blocks as well, as for features that do not fit into memory."""
    monkeypatch.setattr(logistic, "MEMORY", memory)
    monkeypatch.setattr(logistic, "BLOCK", 64)
    x, y = examples(300)
    blocks = logistic.Blocks(x, CPU)
    weights, bias = fit(blocks, torch.from_numpy(y), 4, l2)
    model, deviation = theirs(x, y, l2)
    np.testing.assert_allclose(weights.numpy() * deviation[:, None], model.coef_.T, atol=2e-4)
    outputs = x.astype(np.float64) @ weights.numpy() + bias.numpy()
    chances = np.exp(outputs - np.logaddexp.reduce(outputs, 1)[:, None])
    ours = model.predict_proba((x.astype(np.float64) - x.mean(0, np.float64)) / deviation)
    np.testing.assert_allclose(chances, ours, atol=1e-4)


def test_starting_elsewhere_ends_in_the_same_place() -> None:
    x, y = examples(200)
    blocks, labels = logistic.Blocks(x, CPU), torch.from_numpy(y)
    start = fit(blocks, labels, 4, 10.0)
    for a, b in zip(fit(blocks, labels, 4, 1e-2, start), fit(blocks, labels, 4, 1e-2), strict=True):
        deviation = torch.from_numpy(x.std(0))
        a, b = (each * deviation[:, None] if each.ndim == 2 else each for each in (a, b))
        torch.testing.assert_close(a, b, atol=1e-3, rtol=1e-3)


def test_the_penalty_is_chosen_on_held_out_images_and_the_last_fit_uses_all() -> None:
    x, y = examples(400)
    test, truth = examples(400, seed=1)
    found = swept_logistic(x, y * 10)  # classes need not be 0, 1, 2, …
    predicted = found.predict(test)
    assert set(np.unique(predicted)) <= {0, 10, 20, 30}
    model, deviation = theirs(x, y, found.l2)
    same = model.predict((test.astype(np.float64) - x.mean(0, np.float64)) / deviation)
    assert (predicted == 10 * same).mean() > 0.995
    assert abs((predicted == 10 * truth).mean() - found.validation) < 0.1
    noise = np.random.default_rng(0).permutation(y)
    strong = swept_logistic(x, noise, penalties=(1e3, 1e-6))
    assert strong.l2 in (1e3, 1e-6)
    assert strong.validation < 0.5


def test_of_equally_good_penalties_the_strongest_is_taken() -> None:
    x = np.repeat(np.eye(3, dtype=np.float32), 20, 0)
    assert swept_logistic(x, np.repeat([0, 1, 2], 20), penalties=(1.0, 1e-3)).l2 == 1.0


def test_too_few_images_to_hold_some_out() -> None:
    with pytest.raises(DataError, match="needs at least 3 training images of some class"):
        swept_logistic(np.eye(2, dtype=np.float32), np.array([0, 1]))
