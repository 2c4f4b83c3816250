"""Linear heads, against scikit-learn's solvers of the same problems."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.neighbors import NearestCentroid

from vitlab.evaluation.probes import heads
from vitlab.evaluation.probes.heads import (
    HEADS,
    Blocks,
    By,
    LogisticFits,
    best_ridge,
    crossed,
    left_one_out,
    logistic,
    signs,
    swept_logistic,
)


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


@pytest.mark.parametrize(("l2", "memory"), [(1.0, 2**30), (1e-2, 0), (1e-4, 2**30)])
def test_the_fit_is_that_of_scikit_learn(
    l2: float, memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In blocks as well, as for features that do not fit into memory."""
    monkeypatch.setattr(heads, "MEMORY", memory)
    monkeypatch.setattr(heads, "BLOCK", 64)
    x, y = examples(300)
    found = logistic(Blocks(x), y, 4, l2)
    model, deviation = theirs(x, y, l2)
    np.testing.assert_allclose(found.weights * deviation, model.coef_, atol=2e-3)
    outputs = found.logits(x)
    chances = np.exp(outputs - np.logaddexp.reduce(outputs, 1)[:, None])
    ours = model.predict_proba((x.astype(np.float64) - x.mean(0, np.float64)) / deviation)
    np.testing.assert_allclose(chances, ours, atol=1e-3)


@pytest.mark.parametrize("n", [240, 9])
def test_parts_that_are_fitted_together_are_fitted_as_each_alone(n: int) -> None:
    """In single precision, with fewer images than features too."""
    x, y = examples(n)
    folds = np.arange(n) % 3
    fits = LogisticFits(Blocks(x), y, 4, folds[:, None] != np.arange(3))
    fits.fit(0.1)
    z = standardized(x, x)
    for part in range(3):
        learn = folds != part
        model = LogisticRegression(C=1 / (0.1 * learn.sum()), max_iter=5000, tol=1e-10)
        model.fit(z[learn], y[learn])
        found = fits.head(0.1, part).logits(x)[:, model.classes_]
        chances = np.exp(found - np.logaddexp.reduce(found, 1)[:, None])
        np.testing.assert_allclose(chances, model.predict_proba(z), atol=2e-3)


def standardized(x: np.ndarray, of: np.ndarray) -> np.ndarray:
    of = of.astype(np.float64)
    return (x - of.mean(0)) / (of.std(0) + 1e-5)


@pytest.mark.parametrize("by", ["logistic", "ridge", "means"])
@pytest.mark.parametrize("n", [300, 9])
def test_every_kind_is_scikit_learns_folded_into_one_linear(by: By, n: int) -> None:
    """And what is folded says what the fit to standardized features says, to 1e-5."""
    x, y = examples(n)
    y = np.concatenate([np.arange(4), y[4:]])
    test, _ = examples(200, seed=1)
    l2 = 0.1
    found = HEADS[by](Blocks(x), y, 4, l2)
    peers = {
        "logistic": LogisticRegression(C=1 / (l2 * n), max_iter=5000, tol=1e-10),
        "ridge": RidgeClassifier(alpha=l2),
        "means": NearestCentroid(),
    }
    model, own = peers[by].fit(standardized(x, x), y), standardized(test, x)
    assert np.mean(found.predict(test) == model.predict(own)) > 0.99
    if by == "ridge":
        np.testing.assert_allclose(found.logits(test), model.decision_function(own), atol=1e-5)
    if by == "means":
        square = ((own[:, None] - model.centroids_) ** 2).sum(2)
        shown = found.logits(test)
        np.testing.assert_allclose(
            shown - shown[:, :1], (square[:, :1] - square) / 2, atol=1e-5, rtol=1e-5
        )
    as_model = torch.nn.functional.linear(
        torch.from_numpy(test.astype(np.float64)),
        torch.from_numpy(found.weights),
        torch.from_numpy(found.bias),
    )
    np.testing.assert_allclose(as_model.numpy(), found.logits(test), atol=1e-9)


@pytest.mark.parametrize("shape", [(40, 7), (7, 40), (20, 20)])
def test_leaving_one_out_in_closed_form_is_leaving_one_out(shape: tuple[int, int]) -> None:
    generator = np.random.default_rng(3)
    x, y = generator.normal(size=shape), generator.integers(0, 3, shape[0])
    x -= x.mean(0)
    for l2, outputs in left_one_out(x, signs(y, 3), (4.0, 0.25)):
        for row in range(len(x)):
            rest = np.arange(len(x)) != row
            model = RidgeClassifier(alpha=l2, tol=1e-12)
            own = np.concatenate([y[rest], [0, 1, 2]])[: rest.sum()]
            if set(own) != {0, 1, 2}:
                continue
            expected = model.fit(x[rest], own).decision_function(x[[row]])[0]
            np.testing.assert_allclose(outputs[row], expected, atol=1e-8)
    assert best_ridge(x, y, 3)[1] in heads.RIDGES


@pytest.mark.parametrize("by", ["logistic", "ridge", "means"])
def test_cross_validation_asks_each_fit_about_what_it_did_not_learn(by: By) -> None:
    x, y = examples(120)
    folds = np.arange(120) % 3
    found = crossed(by, x, y, 4, folds, (0.1,))
    for fold in range(3):
        own, rest = folds == fold, folds != fold
        head = HEADS[by](Blocks(x[rest]), y[rest], 4, 0.1)
        np.testing.assert_allclose(found.logits[own], head.logits(x[own]), atol=0.2)
    assert found.accuracy == (found.logits.argmax(1) == y).mean()
    if by == "logistic":
        assert crossed(by, x, y, 4, folds, (1e3, 0.1, 1e-6)).l2 == 0.1


def test_features_that_do_not_vary_leave_the_shares_of_the_classes() -> None:
    x, y = np.ones((6, 5), np.float32), np.array([0, 0, 1, 1, 1, 2])
    outputs = logistic(Blocks(x), y, 3, 1e-2).logits(x)
    chances = np.exp(outputs - np.logaddexp.reduce(outputs, 1)[:, None])
    np.testing.assert_allclose(chances, np.tile([2 / 6, 3 / 6, 1 / 6], (6, 1)), atol=1e-3)


def test_a_class_without_images_is_never_the_answer_of_means() -> None:
    x, y = examples(60)
    assert set(HEADS["means"](Blocks(x), y, 6, 0).predict(x)) <= {0, 1, 2, 3}


def test_the_penalty_is_chosen_on_held_out_images_and_the_last_fit_uses_all() -> None:
    (raw, y), (other, truth) = examples(400), examples(400, seed=1)
    x, test = (standardized(each, raw).astype(np.float32) * 0.3 for each in (raw, other))
    held, penalties = np.arange(0, 400, 5), [100.0, 1.0, 1e-2, 1e-4]
    found, validation = swept_logistic(Blocks(x, scaled=False), y, 5, held, penalties)
    predicted = found.predict(test)
    assert set(np.unique(predicted)) == {0, 1, 2, 3}, "never the fifth, which has no images"
    learn = np.setdiff1d(np.arange(400), held)

    def theirs_on(rows: np.ndarray, l2: float) -> LogisticRegression:
        return LogisticRegression(C=1 / l2, max_iter=5000, tol=1e-8).fit(x[rows], y[rows])

    scores = [theirs_on(learn, l2).score(x[held], y[held]) for l2 in penalties]
    assert validation == pytest.approx(max(scores), abs=0.02)
    assert scores[penalties.index(found.l2)] >= max(scores) - 0.02
    same = theirs_on(np.arange(400), found.l2).predict(test)
    assert (predicted == same).mean() > 0.995
    assert abs((predicted == truth).mean() - validation) < 0.1
    alike = np.repeat(np.eye(3, dtype=np.float32), 20, 0)  # of equals the strongest is taken
    strong, _ = swept_logistic(Blocks(alike), np.repeat([0, 1, 2], 20), 3, held[:12], (1.0, 1e-3))
    assert strong.l2 == 1.0
