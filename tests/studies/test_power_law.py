"""Power laws: known exponents are found, and intervals are those of a linear regression."""

import numpy as np
import pytest
from scipy import stats

from vitlab.errors import DataError
from vitlab.studies.power_law import fitted, sentence

COMPUTE = np.array([50.0, 100.0, 200.0, 400.0, 800.0, 1600.0])


def test_exact_power_law_is_found() -> None:
    law = fitted(list(COMPUTE), list(2.0 * COMPUTE**-0.35))
    assert law.exponent == pytest.approx(-0.35, abs=1e-6)
    assert law.reach < 1e-5
    assert law(np.array([3200.0])) == pytest.approx(2.0 * 3200**-0.35, rel=1e-5)


def test_floor_is_found() -> None:
    law = fitted(list(COMPUTE), list(3.0 * COMPUTE**-0.5 + 0.08), floor=True)
    assert (law.exponent, law.floor) == pytest.approx((-0.5, 0.08), abs=1e-4)
    none = fitted(list(COMPUTE), list(3.0 * COMPUTE**-0.5), floor=True)
    assert none.floor == 0
    assert none.exponent == pytest.approx(-0.5, abs=1e-6)
    assert sentence("x", none).endswith("no floor found.")


def test_interval_is_that_of_a_regression_of_logarithms() -> None:
    noise = np.random.default_rng(0).normal(0, 0.05, len(COMPUTE))
    errors = 2.0 * COMPUTE**-0.35 * np.exp(noise)
    law = fitted(list(COMPUTE), list(errors))
    line = stats.linregress(np.log(COMPUTE), np.log(errors))
    assert law.exponent == pytest.approx(line.slope, rel=1e-5)
    reach = stats.t.ppf(0.975, len(COMPUTE) - 2) * line.stderr
    assert law.reach == pytest.approx(reach, rel=1e-3)


def test_interval_covers_the_true_exponent_as_often_as_it_says() -> None:
    generator = np.random.default_rng(1)
    covered = 0
    for _ in range(200):
        noise = generator.normal(0, 0.1, len(COMPUTE))
        law = fitted(list(COMPUTE), list(COMPUTE**-0.35 * np.exp(noise)))
        covered += abs(law.exponent + 0.35) < law.reach
    assert 0.90 <= covered / 200 <= 0.99


def test_sentence() -> None:
    law = fitted([1.0, 10.0, 100.0], [0.4, 0.2, 0.1])
    assert sentence("ViT", law) == (
        f"ViT: error = 0.2 (C / 10)^-0.301, exponent ± {law.reach:.2g} (95%, 3 points)."
    )


def test_too_few_points_are_refused() -> None:
    with pytest.raises(DataError, match="needs 3 different points, not 2"):
        fitted([1.0, 2.0], [0.5, 0.4])
    with pytest.raises(DataError, match="above 0"):
        fitted([1.0, 2.0, 3.0], [0.5, 0.4, 0.0])
