"""Linear heads, against scikit-learn's solvers of the same problems."""

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.neighbors import NearestCentroid

from vitlab.evaluation.probes import blocks
from vitlab.evaluation.probes.blocks import Blocks, By
from vitlab.evaluation.probes.heads import HEADS, LogisticFits, crossed, logistic, swept_logistic
from vitlab.evaluation.probes.ridge import RIDGES, best_ridge, leave_one_out, ridge, signs


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
    monkeypatch.setattr(blocks, "MEMORY", memory)
    monkeypatch.setattr(blocks, "BLOCK", 64)
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
    rows_of_x, targets = Blocks(x, scaled=False), signs(y, 3)
    for own, l2, outputs in leave_one_out(rows_of_x, targets.__getitem__, (4.0, 0.25)):
        assert own == slice(0, 4096)
        for row in range(len(x)):
            rest = np.arange(len(x)) != row
            model = RidgeClassifier(alpha=l2, tol=1e-12)
            own = np.concatenate([y[rest], [0, 1, 2]])[: rest.sum()]
            if set(own) != {0, 1, 2}:
                continue
            expected = model.fit(x[rest], own).decision_function(x[[row]])[0]
            np.testing.assert_allclose(outputs[row], expected, atol=1e-8)
    assert best_ridge(rows_of_x, y, 3)[1] in RIDGES


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


def peak_of(work: Callable[[], object]) -> int:
    """The most bytes that NumPy holds during some work."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_closed_forms_hold_blocks_and_no_number_for_each_image_and_class(tmp_path: Path) -> None:
    """Of features in a file: twice as many images take no more memory."""
    generator = np.random.default_rng(0)
    np.save(tmp_path / "x.npy", generator.normal(size=(60_000, 8)).astype(np.float32))
    x, y = np.load(tmp_path / "x.npy", mmap_mode="r"), generator.integers(0, 40, 60_000)
    best_ridge(Blocks(x[:5000]), y[:5000], 40)  # imports
    for fit in (best_ridge, lambda *given: ridge(*given, 1.0)):
        half, whole = (peak_of(lambda: fit(Blocks(x[:n]), y[:n], 40)) for n in (30_000, 60_000))  # noqa: B023
        assert whole < half + 2**20
        assert whole < 8 * 60_000 * 40


def test_blocks_give_what_all_rows_at_once_give() -> None:
    x, y = examples(9000)
    z = standardized(x, x)
    found = ridge(Blocks(x), y, 4, 2.0)
    std = x.astype(np.float64).std(0) + 1e-5
    model = RidgeClassifier(alpha=2.0, tol=1e-12).fit(z, y)
    np.testing.assert_allclose(found.weights * std, model.coef_, rtol=1e-9, atol=1e-12)
    said = {l2: np.empty((9000, 4)) for l2 in (4.0, 0.25)}
    targets = signs(y, 4)
    for own, l2, outputs in leave_one_out(Blocks(x), targets.__getitem__, tuple(said)):
        said[l2][own] = outputs
    for l2, outputs in said.items():
        inverse = np.linalg.inv(z.T @ z + l2 * np.eye(12))
        leverage = np.einsum("nd,de,ne->n", z, inverse, z) + 1 / 9000
        middle = targets.mean(0)
        fitted = middle + z @ (inverse @ (z.T @ (targets - middle)))
        expected = targets - (targets - fitted) / (1 - leverage)[:, None]
        np.testing.assert_allclose(outputs, expected, atol=1e-9)
    rows = np.flatnonzero(np.arange(9000) % 3)
    some, alone = Blocks(x, rows=rows), Blocks(x[rows])
    np.testing.assert_array_equal(some.mean, alone.mean)
    np.testing.assert_array_equal(ridge(some, y[rows], 4, 1.0).bias,
                                  ridge(alone, y[rows], 4, 1.0).bias)  # fmt: skip


def test_logits_of_many_images_and_classes_are_kept_of_some_and_judged_of_all() -> None:
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(17_000, 3)).astype(np.float32), np.arange(17_000) % 2000
    folds = np.arange(17_000) % 2
    found = crossed("means", x, y, 2000, folds, (0.0,))
    assert len(found.rows) == len(found.logits) == 2**28 // (8 * 2000) < 17_000
    right = 0
    for fold in range(2):
        head = HEADS["means"](Blocks(x[folds != fold]), y[folds != fold], 2000, 0.0)
        own = found.rows[folds[found.rows] == fold][:50]
        np.testing.assert_array_equal(found.logits[np.isin(found.rows, own)], head.logits(x[own]))
        right += int((head.predict(x[folds == fold]) == y[folds == fold]).sum())
    assert found.accuracy == right / 17_000
