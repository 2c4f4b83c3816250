"""Power laws against a fit of their own nonlinear form, and against a simulation."""

import numpy as np
import pytest
from scipy.optimize import curve_fit
from scipy.stats import t

from vitlab.errors import DataError
from vitlab.studies.compute_card import fitted


def test_a_law_is_found_with_its_interval() -> None:
    generator = np.random.default_rng(0)
    x = np.geomspace(1, 1e3, 8)
    error = 0.5 * x**-0.2 * np.exp(generator.normal(0, 0.03, 8))
    law = fitted(list(zip(x, error, strict=True)))
    found, covariance = curve_fit(lambda z, a, b: a + b * z, np.log(x), np.log(error))
    assert law.exponent == pytest.approx(found[1])
    assert law.reach == pytest.approx(t.ppf(0.975, 6) * np.sqrt(covariance[1, 1]))
    spent = [law.spent(each) for each in np.exp(found[0] + found[1] * np.log(x))]
    assert spent == pytest.approx(x)
    assert law.sentence("A family").startswith("A family: error = ")
    assert "(95%, 8 points)." in law.sentence("A family")


def test_the_interval_holds_the_exponent_as_often_as_it_says() -> None:
    generator, x, inside = np.random.default_rng(1), np.geomspace(1, 100, 5), 0
    for _ in range(1000):
        error = 0.4 * x**-0.1 * np.exp(generator.normal(0, 0.1, 5))
        law = fitted(list(zip(x, error, strict=True)))
        inside += abs(law.exponent + 0.1) < law.reach
    assert inside == pytest.approx(950, abs=25)


@pytest.mark.parametrize(
    ("points", "says"),
    [
        ([(1, 0.5), (2, 0.4)], "needs 3 different points"),
        ([(1, 0.5), (2, 0.4), (2, 0.3)], "needs 3 different points"),
        ([(1, 0.5), (2, 0.4), (3, 0.0)], "above 0"),
        ([(0, 0.5), (2, 0.4), (3, 0.1)], "above 0"),
    ],
)
def test_what_has_no_law_is_refused(points: list[tuple[float, float]], says: str) -> None:
    with pytest.raises(DataError, match=says):
        fitted(points)
