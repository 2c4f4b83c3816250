"""Intervals near 0% and 100%: they hold the truth as often as they say, and are there for all."""

from collections import defaultdict

import numpy as np
import pytest
from numpy.typing import NDArray

from vitlab.data.labels import Labels, MultiLabels, SingleLabels
from vitlab.evaluation.answers import Weighted, answers_of
from vitlab.evaluation.intervals import difference, with_intervals
from vitlab.evaluation.metrics import METRICS, values_of
from vitlab.evaluation.near_ends import of_share, wilson

SETS, MANY = 120, 100_000
# By classes, how far the true one stands out, several labels, and the accuracy.
NEAR = [
    (2, 4.1, False, 0.998),
    (10, 5.2, False, 0.999),
    (10, 4.2, False, 0.989),
    (3, 6.0, True, 0.996),
    (50, 0.0, False, 0.02),
    (10, -3.0, False, 0.0),
]
LOSSES = {"nll", "bce", "balanced_nll"}  # of these, the worst answers say nothing


def drawn(
    generator: np.random.Generator, classes: int, apart: float, several: bool, images: int
) -> tuple[NDArray[np.float64], Labels]:
    """Probabilities and labels: the true classes score higher by `apart`, in deviations."""
    scores = generator.normal(size=(images, classes))
    if several:
        table = generator.random((images, classes)) < 0.3
        return 1 / (1 + np.exp(-2 * (scores + apart * (table - 0.5)))), MultiLabels.of_table(
            table.astype(np.uint8)
        )
    labels = generator.integers(0, classes, images)
    scores = 3 * (scores + apart * np.eye(classes)[labels])
    shares = np.exp(scores - scores.max(1, keepdims=True))
    return shares / shares.sum(1, keepdims=True), SingleLabels(labels)


@pytest.mark.parametrize(("classes", "apart", "several", "accuracy"), NEAR)
def test_few_errors_or_few_hits(classes: int, apart: float, several: bool, accuracy: float) -> None:
    """100 images: balanced accuracy held the truth in 77% of the sets that had an interval."""
    generator = np.random.default_rng(classes)
    shown, labels = drawn(generator, classes, apart, several, MANY)
    many = Weighted(answers_of(shown, labels), np.ones((1, MANY)), shown)
    truth = {name: float(value[0]) for name, value in values_of(many).items()}
    assert truth["exact_match" if several else "accuracy"] == pytest.approx(accuracy, abs=2e-3)
    hits, widths = defaultdict[str, list[bool]](list), defaultdict[str, list[float]](list)
    for _ in range(SETS):
        found = with_intervals(*drawn(generator, classes, apart, several, 100), 100)
        for name, (low, high) in found["intervals"].items():
            hits[name].append(low <= truth[name] <= high)
            widths[name].append(high - low)
    assert not LOSSES & set(hits)
    likely = {"balanced_top5", "top5"} if classes == 50 else set()  # a tenth: no end
    for name in set(hits) - likely:
        assert np.mean(hits[name]) > 0.9, name  # of a coverage of 95%: once in a hundred
        assert len(hits[name]) == SETS, name
    assert min(map(min, widths.values())) > 0


@pytest.mark.parametrize("images", [40, 100, 1000])
@pytest.mark.parametrize("rate", [0.05, 0.1, 0.17, 0.2, 0.36, 0.8, 1.1, 3.0])
def test_a_share_near_its_end_by_the_binomial_distribution(images: int, rate: float) -> None:
    """Of a model with so many errors expected; Wilson's own holds 84% at 0.17."""
    stats = pytest.importorskip("scipy.stats")
    chances = stats.binom.pmf(np.arange(images + 1), images, rate / images)
    held = {
        each: sum(
            chance
            for errors, chance in enumerate(chances)
            if each(1 - errors / images, images)[0]
            <= 1 - rate / images
            <= each(1 - errors / images, images)[1]
        )
        for each in (of_share, wilson)
    }
    assert held[of_share] > 0.93
    assert held[of_share] >= held[wilson]
    if rate == 0.17:
        assert held[wilson] < 0.85


def test_a_share_elsewhere_is_wilsons() -> None:
    for images in (5, 20, 100, 400):
        for right in range(images + 1):
            near = 0 < right / images <= 0.1 or 0.9 <= right / images < 1
            if not (near and min(right, images - right) <= 3):
                assert of_share(right / images, images) == wilson(right / images, images)


def test_models_that_are_alike_on_these_images_have_no_difference_of_width_0() -> None:
    assert difference(METRICS["macro_f1"], 0.0, np.zeros(100), 200) is None


def test_a_narrow_interval_is_not_written_as_if_it_were_none() -> None:
    text = METRICS["auroc"].range
    assert text([0.98112, 0.99401]) == "98.1 to 99.4"
    assert text([0.999991, 1.0]) == "99.999 to 100.000"
    assert text([1.0, 1.0]) == "100.0 to 100.0"
    assert METRICS["nll"].range([0.00001, 0.00002]) == "0.00001 to 0.00002"
