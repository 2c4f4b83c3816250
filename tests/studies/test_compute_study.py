"""Accuracy against compute: the points, the fit of the paper's own, and what is shown of a fit."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

import vitlab
from conftest import call
from vitlab.errors import OptionError
from vitlab.models.config import config_of
from vitlab.models.cost import cost, exaflops
from vitlab.recipes.recipe import Host
from vitlab.studies.base import Base, small
from vitlab.studies.compute_card import (
    CORE_DAYS,
    FAMILIES,
    PRINTED,
    card,
    family_of,
    pace,
    times_less,
    training_work,
)
from vitlab.studies.papers import study_named
from vitlab.studies.papers.pretraining import compute_arms as arms
from vitlab.studies.papers.pretraining import laws as findings
from vitlab.studies.results import drawn


@pytest.mark.parametrize("family", FAMILIES)
def test_printed_compute_is_that_of_the_models(family: str) -> None:
    """Of the quick ones; tests/measure has the others."""
    model, run = next(each for each in PRINTED if family_of(each[0]) == family)
    counted = exaflops(config_of(model, image_size=224), 303e6, run.epochs)
    assert counted == pytest.approx(run.exaflops, rel=0.045), model


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


def test_core_days_at_the_papers_pace() -> None:
    for (model, epochs), days in CORE_DAYS.items():
        work = training_work(config_of(model, image_size=224), epochs=epochs)
        assert work["tpu_v3_core_days"] == pytest.approx(days, rel=0.17)
        assert work["exaflops"] / work["tpu_v3_core_days"] == pytest.approx(pace())


def test_small_arms_span_the_same_compute_in_each_family() -> None:
    spans = {}
    for arm in arms(Base(small("given"))):
        macs = cost(arm.recipe.model.config(classes=10)).macs * arm.recipe.epochs
        spans.setdefault(arm.line, []).append(macs)
        warmup = arm.recipe.schedule.warmup / arm.recipe.epochs
        assert warmup == pytest.approx(0.1)  # a tenth of every run
    for found in spans.values():
        assert len(found) == 5
        assert max(found) / min(found) > 5
    assert max(spans["ResNet"]) == pytest.approx(max(spans["ViT"]), rel=0.2)


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


def test_runs_to_its_end(tmp_path: Path) -> None:
    how = {"epochs": 0.1, "seeds": 1, "only": ("vit-small", "vit-small-half"), "at_once": 1}
    host = Host(device="cpu", workers=0)
    base = Base(small("digits", "ViT(width=32,depth=2,heads=2,mlp=32)/2"))
    result = vitlab.study("compute", out=tmp_path, recipe=base.recipe, host=host, **how)
    half, whole = (row["mean"]["flops"] for row in result["rows"])
    assert whole == pytest.approx(2 * half, rel=0.5)  # 1 or 2 steps
    model = base.shape.changed(depth=1).name
    macs = cost(config_of(model, image_size=8, channels=1, classes=10)).macs
    assert whole in {6.0 * macs * 64 * steps for steps in (2, 3)}
    assert any(each.startswith("ViT, paper") for each in result["findings"])
    assert "ViT, paper, ImageNet: error" in (tmp_path / "results.md").read_text(encoding="utf-8")


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
    assert call(capsys, "measure", "ViT-Ti/16", "--epochs", "300")[0] == 2
