"""Bootstrap intervals against scipy, against loops by hand, and in the cases that break them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats
from sklearn import metrics as sk

from vitlab.data.labels import Labels, MultiLabels, SingleLabels
from vitlab.evaluation.intervals import (
    FEWEST,
    RESAMPLES,
    interval,
    intervals,
    of_several,
    of_single,
    resampled,
    with_intervals,
)
from vitlab.evaluation.metrics import auroc, ece, figures, nll, one_hot


@pytest.fixture(autouse=True)
def _all_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as users get, which the other tests do not."""
    monkeypatch.setattr("vitlab.evaluation.intervals.RESAMPLES", RESAMPLES)
    monkeypatch.setattr("vitlab.evaluation.intervals.FEWEST", FEWEST)


def single(
    classes: int = 6, images: int = 150, missing: int = 0
) -> tuple[NDArray[np.float64], SingleLabels]:
    """A middling classifier; the last `missing` classes have no images, but are predicted."""
    generator = np.random.default_rng(classes)
    labels = generator.integers(0, classes - missing, images)
    scores = generator.normal(size=(images, classes)) + 2 * np.eye(classes)[labels]
    probabilities = np.exp(2 * scores) / np.exp(2 * scores).sum(1, keepdims=True)
    return probabilities, SingleLabels(labels)


def several(classes: int = 4, images: int = 150) -> tuple[NDArray[np.float64], MultiLabels]:
    """The same with several labels per image, and many equal probabilities."""
    generator = np.random.default_rng(classes)
    labels = (generator.random((images, classes)) < 0.3).astype(np.uint8)
    probabilities = 0.4 * labels + 0.6 * generator.random((images, classes))
    return np.clip(probabilities, 0.01, 0.99).round(2), MultiLabels(labels)


CASES = [single(), single(9, missing=2), single(2), several(), several(1, 60)]


@pytest.mark.parametrize(("probabilities", "labels"), CASES)
def test_weights_count_as_repeated_images(
    probabilities: NDArray[np.float64], labels: Labels
) -> None:
    """Each figure of a resample is the figure of the images that the weights repeat."""
    generator = np.random.default_rng(0)
    rows = [np.arange(len(labels)), *generator.integers(0, len(labels), (5, len(labels)))]
    weights = np.stack([np.bincount(row, minlength=len(labels)) for row in rows]).astype(float)
    of = of_single if isinstance(labels, SingleLabels) else of_several
    ours = of(probabilities, labels.values)(weights)
    for place, row in enumerate(rows):
        want = figures(probabilities[row], labels.take(row))
        assert set(ours) == set(want) - {"images"}
        for name, values in ours.items():
            assert values[place] == pytest.approx(want[name]), (name, place)


def by_scipy(statistic: Callable[[NDArray[Any]], float], images: int, method: str) -> list[float]:
    found = stats.bootstrap(
        (np.arange(images),), statistic, n_resamples=1000, method=method, vectorized=False,
        rng=np.random.default_rng(1),
    ).confidence_interval  # fmt: skip
    return [float(found.low), float(found.high)]


@pytest.mark.parametrize("method", ["percentile", "BCa"])
def test_the_accuracy_is_as_uncertain_as_scipy_says(method: str) -> None:
    probabilities, labels = single()
    right = (probabilities.argmax(1) == labels.values).astype(float)
    want = by_scipy(lambda rows: right[rows].mean(), len(labels), method)
    ours = with_intervals(probabilities, labels)["intervals"]["accuracy"]
    assert ours == pytest.approx(want, abs=2.1 / len(labels))
    binomial = stats.binomtest(int(right.sum()), len(labels)).proportion_ci()
    assert ours == pytest.approx([binomial.low, binomial.high], abs=0.02)


def test_other_figures_are_as_uncertain_as_scipy_says() -> None:
    probabilities, labels = single()
    truth = labels.values
    ours = with_intervals(probabilities, labels)["intervals"]
    # scipy's acceleration matters for the ECE alone, whose few resamples below it are a long tail
    for name, tolerance, metric in (("nll", 0.12, nll), ("ece", 0.4, ece)):
        want = by_scipy(
            lambda rows, metric=metric: metric(probabilities[rows], truth[rows]),
            len(labels), "BCa",
        )  # fmt: skip
        width = want[1] - want[0]
        assert ours[name] == pytest.approx(want, abs=tolerance * width), name
    guess = probabilities.argmax(1)
    want = by_scipy(
        lambda rows: sk.f1_score(truth[rows], guess[rows], average="macro"), len(labels), "BCa"
    )
    assert ours["macro_f1"] == pytest.approx(want, abs=0.12 * (want[1] - want[0]))
    want = by_scipy(lambda rows: sk.matthews_corrcoef(truth[rows], guess[rows]), len(labels), "BCa")
    assert ours["mcc"] == pytest.approx(want, abs=0.12 * (want[1] - want[0]))
    table = one_hot(truth, 6)
    want = by_scipy(lambda rows: auroc(probabilities[rows], table[rows]), len(labels), "BCa")
    assert ours["auroc"] == pytest.approx(want, abs=0.2 * (want[1] - want[0]))


def test_the_interval_by_hand() -> None:
    samples = np.arange(1, 101, dtype=float)
    assert interval(50.5, samples) == pytest.approx(np.quantile(samples, (0.025, 0.975)))
    low, high = interval(20.5, samples)  # a fifth is below: twice its quantile is taken off
    shift = 2 * stats.norm.ppf(0.2)
    want = np.quantile(samples, stats.norm.cdf([shift - 1.959964, shift + 1.959964]))
    assert (low, high) == pytest.approx(want)
    assert low < 20.5 < high
    low, high = interval(0.5, samples)  # below every sample, and yet inside
    assert low == 0.5
    assert 1 <= high < 1.1
    assert interval(3.0, np.array([np.nan])) == (3.0, 3.0)
    assert interval(2.0, np.array([np.nan, 2.0, 2.0])) == (2.0, 2.0)


def test_it_covers_the_truth_as_often_as_it_says() -> None:
    generator, hits = np.random.default_rng(5), 0
    for _ in range(200):
        right = generator.random(100) < 0.8
        probabilities = np.where(right[:, None], [0.9, 0.1], [0.1, 0.9])
        labels = SingleLabels(np.zeros(100, np.int64))
        found = intervals(probabilities, labels, {"accuracy": float(right.mean())}, 300)
        low, high = found["accuracy"]
        hits += low <= 0.8 <= high
    assert 180 <= hits <= 200


def test_a_flawless_model_is_not_known_to_be_perfect() -> None:
    probabilities, labels = np.eye(6)[np.arange(30) % 6], SingleLabels(np.arange(30) % 6)
    ours = with_intervals(probabilities, labels)["intervals"]
    exact = stats.binomtest(30, 30).proportion_ci(method="exact")
    for name in ("accuracy", "top5", "balanced_accuracy", "macro_f1"):
        assert ours[name] == pytest.approx([exact.low, 1.0]), name
    none = with_intervals(np.roll(probabilities, 1, 1), labels)["intervals"]
    assert none["accuracy"] == pytest.approx([0.0, 1 - exact.low])
    few = with_intervals(probabilities[:5, :5], SingleLabels(np.arange(5)))
    assert few["intervals"]["top5"] == [1.0, 1.0]  # of five classes it can be nothing else


@pytest.mark.parametrize(("probabilities", "labels"), CASES)
def test_every_figure_lies_in_its_interval(
    probabilities: NDArray[np.float64], labels: Labels
) -> None:
    result = with_intervals(probabilities, labels)
    ranges = result.pop("intervals")
    assert set(ranges) == set(result) - {"images"}
    for name, (low, high) in ranges.items():
        assert low <= result[name] <= high
        assert 0 <= low <= high
    assert with_intervals(probabilities, labels)["intervals"] == ranges  # the seed is fixed


def test_figures_that_do_not_exist_have_no_interval() -> None:
    probabilities, labels = several()
    result = with_intervals(probabilities, MultiLabels(0 * labels.values))
    assert result["map"] is None
    assert result["auroc"] is None
    known = {"micro_f1", "macro_precision", "macro_recall", "macro_f1", "bce"}
    assert set(result["intervals"]) == known
    alone = with_intervals(np.array([[0.9, 0.1], [0.8, 0.2]]), SingleLabels(np.array([0, 0])))
    assert {"mcc", "auroc"} & set(alone["intervals"]) == set()


def test_many_pairs_of_images_have_no_interval_of_the_area(monkeypatch: pytest.MonkeyPatch) -> None:
    probabilities, labels = single()
    assert "auroc" in with_intervals(probabilities, labels)["intervals"]
    monkeypatch.setattr("vitlab.evaluation.intervals.PAIRS", 1000)
    assert "auroc" not in with_intervals(probabilities, labels)["intervals"]


def test_blocks_do_not_change_the_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    probabilities, labels = single()
    statistics = of_single(probabilities, labels.values)
    whole = resampled(statistics, len(labels), 50)
    monkeypatch.setattr("vitlab.evaluation.intervals._BLOCK", 7 * len(labels))
    parts = resampled(statistics, len(labels), 50)
    for name, values in whole.items():
        np.testing.assert_allclose(parts[name], values)
    assert len(parts["accuracy"]) == 50


def test_more_images_get_fewer_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []

    def draw(statistics: object, images: int, resamples: int) -> dict[str, Any]:
        drawn.append(resamples)
        return {"accuracy": np.array([0.5])}

    monkeypatch.setattr("vitlab.evaluation.intervals.resampled", draw)
    for images in (100, 400_000, 1_200_000):
        labels = SingleLabels(np.zeros(images, np.int64))
        intervals(np.full((images, 2), 0.5), labels, {"accuracy": 0.5})
    assert drawn == [1000, 500, 200]
