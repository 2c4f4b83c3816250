"""Few-shot evaluation: the closed form against other solutions of the same problem."""

import numpy as np
import pytest
import torch

import vitlab
from counted import Counted
from vitlab.errors import DataError, OptionError
from vitlab.evaluation.probes.feature_options import Probing
from vitlab.evaluation.probes.few_shot import sample_shots
from vitlab.evaluation.probes.probing import Side, few_shots


def examples(n: int, d: int, classes: int, seed: int = 0) -> tuple[np.ndarray, ...]:
    """Clusters on features of very different scales, one of them constant."""
    generator = np.random.default_rng(seed)
    centers = generator.normal(size=(classes, d))
    labels = np.concatenate([np.arange(classes), generator.integers(0, classes, n - classes)])
    truth = generator.integers(0, classes, 80)
    scale = 10.0 ** generator.uniform(-3, 3, d)
    x, test = (
        (centers[own] + 1.5 * generator.normal(size=(len(own), d))) * scale + 7 * scale
        for own in (labels, truth)
    )
    x[:, 0] = test[:, 0] = 3.0
    return x.astype(np.float32), labels, test.astype(np.float32), truth


def solved(
    x: np.ndarray, y: np.ndarray, test: np.ndarray, l2: float, bias: float = 100.0
) -> np.ndarray:
    """The outputs by least squares on the problem with sqrt(l2) I below it, in float64."""
    x, test = x.astype(np.float64), test.astype(np.float64)
    mean, deviation = x.mean(0), np.sqrt(((x - x.mean(0)) ** 2).mean(0)) + 1e-5
    a = np.column_stack([(x - mean) / deviation, np.full(len(x), bias)])
    b = 2.0 * (y[:, None] == np.arange(y.max() + 1)) - 1
    rows = np.vstack([a, np.sqrt(l2) * np.eye(a.shape[1])])
    below = np.zeros((a.shape[1], b.shape[1]))
    weights = np.linalg.lstsq(rows, np.vstack([b, below]), rcond=None)[0]
    return np.column_stack([(test - mean) / deviation, np.full(len(test), bias)]) @ weights


@pytest.mark.parametrize(("n", "d"), [(200, 12), (30, 12), (12, 60), (13, 12), (10, 300)])
@pytest.mark.parametrize("l2", [1024.0, 1e-2])
def test_the_closed_form_is_the_least_squares_solution(n: int, d: int, l2: float) -> None:
    x, y, test, truth = examples(n, d, 10)
    found = vitlab.fewshot(x, y, test, l2=l2)
    outputs = solved(x, y, test, l2)
    assert np.array_equal(found, outputs.argmax(1))
    assert found.dtype == np.int64
    if n == 200:
        assert (found == truth).mean() > 0.25, "the examples can be learned"


def test_the_penalty_that_is_best_when_one_is_left_out() -> None:
    x, y, test, truth = examples(100, 12, 4)
    found = vitlab.fewshot(x, y, test, l2="auto")
    chances = {l2: vitlab.fewshot(x, y, test, l2=l2) for l2 in (2.0**k for k in range(20, -5, -2))}
    assert any(np.array_equal(found, each) for each in chances.values())
    assert (found == truth).mean() >= (vitlab.fewshot(x, y, test) == truth).mean() - 0.05
    one = np.arange(4), x[:4]
    same = [vitlab.fewshot(one[1], one[0], test, l2=l2) for l2 in ("auto", 1024.0)]
    assert np.array_equal(*same), "nothing can be left out"
    for wrong in ("best", 0.0, -1.0, np.nan, np.inf):
        with pytest.raises(
            OptionError, match=f"l2 must be a number above 0 or auto, not '?{wrong}"
        ):
            vitlab.fewshot(x, y, test, l2=wrong)
    gaps = np.array([2, 3, 7, 40])  # classes without examples are never predicted
    assert np.array_equal(vitlab.fewshot(x, gaps[y], test), gaps[vitlab.fewshot(x, y, test)])


def test_the_constants_matter() -> None:
    """With 1 in place of the constant 100, classes of uneven size come out otherwise."""
    x, y, test, _ = examples(60, 12, 3)
    y = np.where(np.arange(60) < 30, 0, y)
    found = vitlab.fewshot(x, y, test)
    assert np.array_equal(found, solved(x, y, test, 1024.0).argmax(1))
    assert not np.array_equal(found, solved(x, y, test, 1024.0, bias=1.0).argmax(1))


def test_a_constant_feature_and_a_tiny_class_do_no_harm() -> None:
    x = np.array([[1.0, 5.0], [2.0, 5.0], [3.0, 5.0]])
    assert vitlab.fewshot(x, [0, 0, 1], x).shape == (3,)
    one = vitlab.fewshot(x[:1], [4], x)
    assert one.tolist() == [4, 4, 4]
    assert vitlab.fewshot(x, [0, 0, 1], np.empty((0, 2))).shape == (0,)


@pytest.mark.parametrize(
    ("x", "y", "test", "message"),
    [
        (np.ones(3), [0, 1, 2], np.ones((2, 3)), "x_train must have two dimensions"),
        (np.ones((3, 2)), [0, 1], np.ones((2, 2)), "y_train must be 3 whole numbers"),
        (np.ones((3, 2)), [0.0, 1.0, 2.0], np.ones((2, 2)), "y_train must be 3 whole numbers"),
        (np.ones((3, 2)), [0, 1, 2], np.ones((2, 3)), r"x_train \(3, 2\) and x_test \(2, 3\)"),
        (np.ones((0, 2)), [], np.ones((2, 2)), "with n above 0"),
        (np.full((3, 2), np.nan), [0, 1, 2], np.ones((2, 2)), "x_train contains numbers that are"),
    ],
)
def test_what_does_not_fit_is_refused(
    x: np.ndarray, y: list[int], test: np.ndarray, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        vitlab.fewshot(x, y, test)


def test_shots_are_the_first_of_a_permutation_per_class() -> None:
    labels = np.array([2, 0, 1, 1, 0, 2, 2, 0, 1, 0])
    found = sample_shots(labels, "abc", (1, 3), seed=7)
    generator = np.random.default_rng(7)
    places = [generator.permutation(np.where(labels == own)[0]) for own in range(3)]
    for shots in (1, 3):
        assert found[shots].tolist() == [int(each) for own in places for each in own[:shots]]
    other = sample_shots(labels, "abc", (3,), seed=8)[3]
    assert other.tolist() != found[3].tolist()


def test_drawing_shots_looks_at_each_label_a_few_times_however_many_classes_there_are() -> None:
    labels = (np.arange(3000) % 1000).view(Counted)
    Counted.seen = 0
    assert len(sample_shots(labels, tuple(map(str, range(1000))), (2,), seed=0)[2]) == 2000
    assert Counted.seen < 40 * 3000


def test_too_few_examples_of_a_class_are_named() -> None:
    labels = np.array([0, 0, 0, 1, 1, 2])
    words = r"class 'c' has 1 training image, too few for 3 shots: choose at most 1"
    with pytest.raises(DataError, match=words):
        sample_shots(labels, "abc", (1, 3), seed=0)
    assert len(sample_shots(labels, "abc", (1,), seed=0)[1]) == 3
    with pytest.raises(DataError, match=r"class 'd' has 0 training images.*add images of it"):
        sample_shots(labels, "abcd", (1,), seed=0)


def test_one_draw_has_no_deviation() -> None:
    x, y, test, truth = examples(40, 12, 3)
    learn, own = (
        Side(values, labels, ("a", "b", "c"), [], torch.device("cpu"))
        for values, labels in ((x, y), (test, truth))
    )
    rows, _ = few_shots(learn, own, Probing(shots=(1,), seeds=1, l2=1024.0))
    (found,) = rows["fewshot"].values()
    assert (found["std"], found["seeds"]) == (0, [found["accuracy"]])
