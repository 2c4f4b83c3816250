"""Accuracy against compute: the points, the fit of the paper's own, and what is shown of a fit."""

import json
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy import stats
from scipy.optimize import curve_fit

from conftest import call
from vitlab.errors import DataError, OptionError
from vitlab.models.config import ModelConfig, config_of
from vitlab.models.cost import exaflops
from vitlab.models.names import MODELS
from vitlab.studies.compute_card import (
    CORE_DAYS,
    PRINTED,
    card,
    family_of,
    fitted,
    pace,
    times_less,
    training_work,
)
from vitlab.studies.papers import study_named
from vitlab.studies.papers.pretraining import laws as findings
from vitlab.studies.results import drawn


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Costs as they are listed, which tests/commands compares with those of the models."""

    def of(config: ModelConfig) -> SimpleNamespace:
        return SimpleNamespace(macs=MODELS[config.name][1])

    monkeypatch.setattr("vitlab.models.cost.cost", of)


@pytest.mark.usefixtures("listed")
def test_printed_compute_is_that_of_the_models() -> None:
    for model, run in PRINTED:
        counted = exaflops(config_of(model, image_size=224), 303e6, run.epochs)
        assert counted == pytest.approx(run.exaflops, rel=0.1), model


def test_the_cards_two_to_four_times_are_those_of_the_table() -> None:
    """Two straight lines of logarithms, by SciPy, and the compute at which each has an accuracy."""
    lines = {}
    for family in ("ViT", "ResNet"):
        runs = [run for name, run in PRINTED if family_of(name) == family]
        errors = np.log([1 - run.average for run in runs])
        lines[family] = stats.linregress(np.log([run.exaflops for run in runs]), errors)
    assert lines["ViT"].slope == pytest.approx(-0.132, abs=5e-4)
    assert lines["ResNet"].slope == pytest.approx(-0.174, abs=5e-4)
    for accuracy, printed in ((0.94, 4.0), (0.95, 2.9)):
        spent = {
            family: math.exp((math.log(1 - accuracy) - line.intercept) / line.slope)
            for family, line in lines.items()
        }
        assert times_less(accuracy) == pytest.approx(spent["ResNet"] / spent["ViT"], rel=1e-4)
        assert times_less(accuracy) == pytest.approx(printed, abs=0.05)
    assert "4.0 times at 94% and 2.9 times at 95%" in card()[-1]
    assert "ViT-L/16 on ImageNet-21k 230, which is 29 days on 8 cores" in card()[-1]


def test_five_sets_have_the_means_of_table_7() -> None:
    """Two ResNets are in both tables, whose means the paper prints."""
    averages = {(name, run.epochs): run.average for name, run in PRINTED}
    assert averages["BiT-R50x1", 7] == pytest.approx(0.8933, abs=5e-5)
    assert averages["BiT-R152x2", 7] == pytest.approx(0.9401, abs=5e-5)


@pytest.mark.usefixtures("listed")
def test_core_days_at_the_papers_pace() -> None:
    for (model, epochs), days in CORE_DAYS.items():
        work = training_work(config_of(model, image_size=224), epochs=epochs)
        assert work["tpu_v3_core_days"] == pytest.approx(days, rel=0.17)
        assert work["exaflops"] / work["tpu_v3_core_days"] == pytest.approx(pace())


def some_rows(exponent: float) -> list[dict[str, Any]]:
    spent = [1e14, 2e14, 4e14, 5e14, 6e14, 7e14, 7.5e14, 7.7e14, 8e14]
    means = [{"flops": c, "accuracy": 1 - 0.4 * (c / 1e14) ** exponent} for c in spent]
    return [
        {"name": f"{n}", "line": "ViT", "mean": mean, "std": {}, "x": None}
        for n, mean in enumerate(means)
    ]


def test_fits_the_rows() -> None:
    assert "^-0.108, exponent" in findings([])[0]  # of the paper's ViTs
    rows = some_rows(-0.2)
    assert "^-0.200, exponent" in findings(rows)[0]
    picture = drawn(study_named("compute"), rows)
    assert picture is not None
    assert "operations of training" in picture
    assert "2e+14" in picture
    assert "mathdefault" not in picture  # text is not typeset
    alone = drawn(study_named("compute"), [row | {"values": {"accuracy": []}} for row in rows[:1]])
    assert alone is not None
    assert "operations of training" not in alone  # one place makes no line: a dot by its name


@pytest.mark.parametrize(
    ("printed", "ours"),
    {
        "R50x1": "BiT-R50x1",
        "R50x2": "BiT-R50x2",
        "ResNet50x1": "BiT-R50x1",
        "ResNet-152x2": "BiT-R152x2",
        "R50x1+ViT-B/32": "R50+ViT-B/32",
        "R50x1+ViT-L/16": "R50+ViT-L/16",
    }.items(),
)
def test_spellings_of_table_6_are_read(printed: str, ours: str) -> None:
    with pytest.raises(OptionError, match="unknown model"):
        config_of(printed.replace("50", "51").replace("152", "51"))
    assert config_of(printed) == config_of(ours)
    assert config_of(printed).name == ours


def test_measure_says_the_work_of_training(capsys: pytest.CaptureFixture[str]) -> None:
    code, text, err = call(capsys, "measure", "R50x1", "ViT-Ti/16", "--exaflops", "--json")
    assert code == 0, err
    rows = json.loads(text)["models"]
    assert rows[0]["exaflops"] == pytest.approx(50, rel=0.045)  # Table 6
    assert rows[0]["tpu_v3_core_days"] == pytest.approx(rows[0]["exaflops"] / pace())
    words = ["ViT-Ti/16", "--exaflops", "--images", "1e6", "--epochs", "300", "--image-size", "32"]
    code, text, err = call(capsys, "measure", *words, "--json")
    work = exaflops(config_of("ViT-Ti/16", image_size=32), 1e6, 300)
    assert json.loads(text)["exaflops"] == pytest.approx(work)


# Power laws


def test_a_law_is_found_with_its_interval() -> None:
    generator = np.random.default_rng(0)
    x = np.geomspace(1, 1e3, 8)
    error = 0.5 * x**-0.2 * np.exp(generator.normal(0, 0.03, 8))
    law = fitted(list(zip(x, error, strict=True)))
    found, covariance = curve_fit(lambda z, a, b: a + b * z, np.log(x), np.log(error))
    assert law.exponent == pytest.approx(found[1])
    assert law.reach == pytest.approx(stats.t.ppf(0.975, 6) * np.sqrt(covariance[1, 1]))
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
