"""The statistics of few seeds against SciPy's t-tests, and against simulations of its power."""

import numpy as np
import pytest
from scipy import stats

from vitlab.evaluation.multiple_tests import holm
from vitlab.evaluation.statistics import (
    detectable,
    paired,
    power,
    seeds_to_see,
    t_quantile,
    welch,
)

HIGH, LOW = [0.83, 0.85, 0.84, 0.86], [0.80, 0.87, 0.83]
TWO = {"a": 1.0, "b": -1.0}


def test_two_arms_have_the_interval_of_welchs_t_test() -> None:
    found = welch(TWO, {"a": HIGH, "b": LOW})
    expected = stats.ttest_ind(HIGH, LOW, equal_var=False)
    interval = expected.confidence_interval(0.95)
    assert found.reach is not None
    assert [found.mean - found.reach, found.mean + found.reach] == pytest.approx(list(interval))
    assert found.freedom == pytest.approx(expected.df)
    assert 2 * min(found.p_above, found.p_below) == pytest.approx(expected.pvalue)
    above = stats.ttest_ind(HIGH, LOW, equal_var=False, alternative="greater").pvalue
    assert found.p_above == pytest.approx(above)
    assert found.p_below == pytest.approx(1 - above)


def test_pairs_have_the_interval_of_the_paired_t_test() -> None:
    found = paired(TWO, {"a": HIGH[:3], "b": LOW})
    expected = stats.ttest_rel(HIGH[:3], LOW)
    interval = expected.confidence_interval(0.95)
    assert found.reach is not None
    assert [found.mean - found.reach, found.mean + found.reach] == pytest.approx(list(interval))
    assert found.p_above == pytest.approx(stats.ttest_rel(HIGH[:3], LOW, alternative="greater")[1])


def test_groups_of_arms_are_one_paired_test_of_their_means() -> None:
    values = {
        name: np.random.default_rng(n).normal(size=5).tolist() for n, name in enumerate("abc")
    }
    found = paired({"a": 0.5, "b": 0.5, "c": -1.0}, values)
    means = (np.array(values["a"]) + np.array(values["b"])) / 2
    expected = stats.ttest_rel(means, values["c"])
    assert found.p_above == pytest.approx(
        expected.pvalue / 2 if found.mean > 0 else 1 - expected.pvalue / 2
    )


def test_a_small_noisy_arm_does_not_lend_its_deviation_to_the_others() -> None:
    """The pooled variance did: four arms' interval was that of the unstable one."""
    quiet, loud = [0.50, 0.51, 0.52], [0.3, 0.5, 0.7]
    values = {"a": quiet, "b": quiet, "c": loud}
    assert welch(TWO, values).error == pytest.approx(0.01 * np.sqrt(2 / 3))


def test_one_seed_leaves_an_interval_unknown_and_equal_runs_leave_no_doubt() -> None:
    single = welch(TWO, {"a": [0.9], "b": [0.1]})
    assert (single.mean, single.reach, single.p_above) == (0.8, None, 1.0)
    assert paired(TWO, {"a": [0.9], "b": [0.1]}).reach is None
    same = welch(TWO, {"a": [2.0] * 3, "b": [1.0] * 3})
    assert (same.reach, same.p_above, same.p_below) == (0.0, 0.0, 1.0)
    assert same.plus(-1.0).p_above == 1.0
    odd = {"a": [1.9472316] * 10, "b": [0.1] * 10}  # whose means are rounded
    for of in (welch, paired):
        assert of(TWO, odd).reach == 0


def test_holm_is_the_step_down_procedure() -> None:
    """By its definition: the largest of the smaller p-values, each times how many are left."""
    p_values = np.random.default_rng(0).uniform(size=9) ** 3
    order = np.sort(p_values)
    stepped = np.minimum(np.maximum.accumulate(order * np.arange(9, 0, -1)), 1)
    assert np.sort(holm(p_values.tolist())) == pytest.approx(stepped)
    assert holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert holm([]) == []


def test_power_is_that_of_simulated_studies() -> None:
    generator = np.random.default_rng(0)
    a, b = generator.normal(1.5, 1, (20_000, 4)), generator.normal(0, 1, (20_000, 4))
    seen = (stats.ttest_ind(a, b, axis=1).pvalue < 0.05).mean()
    assert power(1.5, 1.0, 4) == pytest.approx(seen, abs=0.01)
    a = generator.normal(2.5, 1, (20_000, 4))
    seen = (stats.ttest_ind(a, b, axis=1).pvalue < 0.05 / 8).mean()
    assert power(2.5, 1.0, 4, tests=8) == pytest.approx(seen, abs=0.01)


def test_what_seeds_see_and_the_seeds_that_see_it() -> None:
    assert power(detectable(0.005, 3), 0.005, 3) == pytest.approx(0.8, abs=1e-4)
    assert detectable(0.01, 3) == pytest.approx(2 * detectable(0.005, 3))
    assert detectable(0.005, 1) == float("inf")
    for difference in (0.02, 0.01, 0.005):
        seeds = seeds_to_see(difference, 0.005, tests=4)
        assert detectable(0.005, seeds, 4) <= difference < detectable(0.005, seeds - 1, 4)
    assert seeds_to_see(1.0, 0.005) == 2
    assert seeds_to_see(0.01, 0.005) == seeds_to_see(0.01, 0.005, 1) < seeds_to_see(0.01, 0.005, 2)
    most = [detectable(0.005, 2, tests) for tests in (1, 5, 20)]
    assert most == sorted(most)
    assert most[-1] < 1
    assert seeds_to_see(1e-6, 0.005) == 200  # the most


def test_the_quantile_is_students() -> None:
    for freedom in (1, 2, 4, 30, 1000):
        assert t_quantile(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=1e-6)
