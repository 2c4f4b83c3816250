"""Intervals against statsmodels' formula, scipy's bootstrap, and in the cases that break them."""

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from vitlab.data.labels import Labels, MultiLabels, SingleLabels
from vitlab.evaluation import intervals as module
from vitlab.evaluation.answers import SingleAnswers
from vitlab.evaluation.intervals import difference, transformed, with_intervals
from vitlab.evaluation.metrics import METRICS, figures
from vitlab.evaluation.near_ends import wilson
from vitlab.evaluation.reliability import calibration_interval


def single(
    classes: int = 6, images: int = 400, missing: int = 0
) -> tuple[NDArray[np.float64], SingleLabels]:
    """A middling classifier; the last `missing` classes have no images, but are predicted."""
    generator = np.random.default_rng(classes)
    labels = generator.integers(0, classes - missing, images)
    scores = generator.normal(size=(images, classes)) + 2 * np.eye(classes)[labels]
    probabilities = np.exp(2 * scores) / np.exp(2 * scores).sum(1, keepdims=True)
    return probabilities, SingleLabels(labels)


def several(classes: int = 4, images: int = 400) -> tuple[NDArray[np.float64], MultiLabels]:
    """The same with several labels per image, and many equal probabilities."""
    generator = np.random.default_rng(classes)
    labels = (generator.random((images, classes)) < 0.3).astype(np.uint8)
    probabilities = 0.4 * labels + 0.6 * generator.random((images, classes))
    return np.clip(probabilities, 0.01, 0.99).round(2), MultiLabels.of_table(labels)


CASES = [single(), single(9, missing=2), single(2), several(), several(1)]


@pytest.mark.parametrize("images", [1, 5, 20, 90])
def test_a_share_has_the_interval_of_wilson(images: int) -> None:
    for right in range(images + 1):
        known = stats.binomtest(right, images).proportion_ci(method="wilson")
        assert wilson(right / images, images) == pytest.approx([known.low, known.high])


def test_other_figures_are_as_uncertain_as_scipy_says() -> None:
    probabilities, labels = single()
    names = ("nll", "macro_f1", "mcc", "auroc")

    def statistic(rows: NDArray[np.int64]) -> list[float]:
        found = figures(probabilities[rows], labels.take(rows))
        return [float(found[name]) for name in names]

    found = stats.bootstrap(
        (np.arange(len(labels)),), statistic, n_resamples=300, method="percentile",
        vectorized=False, rng=np.random.default_rng(1),
    ).confidence_interval  # fmt: skip
    ours = with_intervals(probabilities, labels)["intervals"]
    for name, low, high in zip(names, found.low, found.high, strict=True):
        assert ours[name] == pytest.approx([low, high], abs=0.25 * (high - low)), name


def test_the_interval_by_hand() -> None:
    samples = np.array([0.7, 0.8, 0.9])
    wide = 1.959964 * samples.std()
    assert transformed("log", 2.0, samples) == pytest.approx(
        [2 * np.exp(-wide / 2), 2 * np.exp(wide / 2)]
    )
    logit, step = np.log(0.8 / 0.2), wide / (0.8 * 0.2)
    ends = [1 / (1 + np.exp(-each)) for each in (logit - step, logit + step)]
    assert transformed("logit", 0.8, samples) == pytest.approx(ends)
    z, step = np.arctanh(-0.5), wide / (1 - 0.5**2)
    assert transformed("fisher", -0.5, samples) == pytest.approx(np.tanh([z - step, z + step]))
    assert transformed("logit", 0.8, np.append(samples, np.nan)) == pytest.approx(
        transformed("logit", 0.8, samples)
    )
    for alike in (np.array([0.8, 0.8]), np.array([np.nan]), np.array([])):
        assert np.isnan(transformed("logit", 0.8, alike)).all()
    assert np.isnan(transformed("logit", 1.0, samples)).all()


def test_the_interval_of_a_difference_by_hand() -> None:
    samples = np.arange(-40, 61) / 100
    assert difference(METRICS["mcc"], 0.0, samples, 100) == pytest.approx((-0.375, 0.575))
    for name, images in (("mcc", 99), ("ece", 100), ("calibration_error", 100), ("accuracy", 4),
                         ("nll", 199)):  # fmt: skip
        assert difference(METRICS[name], 0.0, samples, images) is None
    assert difference(METRICS["nll"], 0.0, samples, 200) is not None
    assert difference(METRICS["mcc"], 0.3, np.array([np.nan]), 100) is None
    only_first, only_second, images = 3, 10, 100  # Bonett & Price, equation 3
    gap = (only_second - only_first) / images
    wide = np.sqrt((only_first + only_second) / images**2 - gap**2 / images)
    one, other = (only_second + 1) / (images + 2), (only_first + 1) / (images + 2)
    reach = 1.959964 * np.sqrt((one + other - (one - other) ** 2) / (images + 2))
    ours = difference(METRICS["accuracy"], gap, np.array([-wide, wide]), images)
    assert ours == pytest.approx((one - other - reach, one - other + reach))


def test_the_interval_of_a_calibration_error_by_hand() -> None:
    """Its ends solve (found - x)² = 1.96² (4 slope x + fixed), here in a single bin."""
    sure, right, n = np.linspace(0.6, 0.9, 15), np.arange(15) % 3 > 0, 15
    answers = SingleAnswers.of(np.stack([sure, 1 - sure], 1), np.where(right, 0, 1))
    gap = sure - right
    variance = max(gap.var(ddof=1), 11 * 6 / 17**2)  # as if there was one more of either kind
    found, fixed = gap.mean() ** 2 - gap.var(ddof=1) / n, 2 * variance**2 / (n * (n - 1))
    ends = np.roots(
        [1, -2 * found - 1.959964**2 * 4 * variance / n, found**2 - 1.959964**2 * fixed]
    )
    wanted = np.sqrt(np.maximum(np.sort(ends), 0))
    assert calibration_interval(answers) == pytest.approx(wanted, rel=1e-5)


def test_a_flawless_model_is_not_known_to_be_perfect() -> None:
    probabilities, labels = np.eye(6)[np.arange(120) % 6], SingleLabels(np.arange(120) % 6)
    ours = with_intervals(probabilities, labels)["intervals"]
    shares = {"accuracy", "balanced_accuracy", "balanced_top5", "macro_precision", "macro_f1"}
    assert set(ours) == shares | {
        "top5", "calibration_error", "brier", "mcc", "kappa", "auroc", "aurc"
    }  # fmt: skip
    assert ours["accuracy"] == pytest.approx(wilson(1.0, 120))
    for name in shares:  # of classes of equal size
        assert ours[name] == pytest.approx(wilson(1.0, 120)), name
    assert ours["brier"] == pytest.approx([0, 2 * wilson(0.0, 120)[1]])
    assert ours["kappa"] == pytest.approx([1 - (1 - wilson(1.0, 120)[0]) * 6 / 5, 1])
    assert ours["calibration_error"][0] == 0
    assert 0.03 < ours["calibration_error"][1] < 0.3
    wrong = with_intervals(probabilities, SingleLabels((labels.values + 1) % 6))["intervals"]
    assert wrong["calibration_error"][1] == 1


@pytest.mark.parametrize(("probabilities", "labels"), CASES)
def test_every_figure_lies_in_its_interval(
    probabilities: NDArray[np.float64], labels: Labels
) -> None:
    result = with_intervals(probabilities, labels)
    ranges, classes = result.pop("intervals"), probabilities.shape[1]
    having = {each for each in METRICS.values() if each.name in result and each.interval}
    assert set(ranges) == {each.name for each in having if each.tells(classes)}
    for name, (low, high) in ranges.items():
        assert low <= result[name] <= high
        assert 0 <= low <= high
    assert with_intervals(probabilities, labels)["intervals"] == ranges  # the seed is fixed


def test_what_would_take_long_has_no_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    probabilities, labels = single()
    assert "auroc" in with_intervals(probabilities, labels)["intervals"]
    monkeypatch.setattr(module, "MOST", 1000)
    assert "auroc" not in with_intervals(probabilities, labels)["intervals"]
    monkeypatch.undo()
    shown, table = several()
    nothing = with_intervals(shown, MultiLabels.of_table(0 * table.values), 50)  # no such figures
    assert (nothing["map"], nothing["auroc"]) == (None, None)
    assert not {"map", "auroc", "macro_recall"} & set(nothing["intervals"])
