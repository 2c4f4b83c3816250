"""The learning-rate range test: what it measures, what it suggests, that it leaves nothing else."""

import json
import math
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
import torch

import vitlab
from conftest import call
from steps import asked_to_stop
from vitlab.errors import DivergedError, OptionError, RunError
from vitlab.recipes.recipe import Host, Recipe
from vitlab.studies.lr_range import SMOOTHING, Reading, study

NAME = "ViT(width=16,depth=1,heads=2,mlp=32)/4"
HOST = Host(workers=0)


def recipe(**more: object) -> Recipe:
    return vitlab.recipe("digits", **{"model": NAME, "batch": 64} | more)


def reading(smoothed: list[float]) -> Reading:
    rates = np.geomspace(1e-5, 1, len(smoothed)).tolist()
    return Reading(rates, smoothed, smoothed)


def test_it_suggests_a_tenth_of_the_lowest_and_names_the_steepest_fall() -> None:
    falling = reading([2.0, 1.99, 1.9, 1.3, 1.2, 5.0])
    assert falling.suggestion == pytest.approx(falling.rates[4] / 10)
    assert falling.steepest == falling.rates[3]  # the steepest around it, from 1.9 to 1.2
    rising = reading([2.0, 2.1, 2.2])
    assert (rising.suggestion, rising.steepest) == (None, None)


def test_the_rate_rises_the_loss_is_smoothed_and_nothing_else_is_left(tmp_path: Path) -> None:
    torch.manual_seed(7)
    before = torch.random.get_rng_state()
    out = tmp_path / "study"
    result = study(recipe(clip=0.0), out, HOST, lr_low=1e-4, lr_high=1e3, lr_steps=60)
    assert torch.equal(torch.random.get_rng_state(), before)
    ratios = [after / now for now, after in pairwise(result["rates"])]
    assert ratios == pytest.approx([(1e7) ** (1 / 59)] * len(ratios))
    series = pd.Series(result["losses"])
    assert result["smoothed"] == pytest.approx(
        series.ewm(alpha=1 - SMOOTHING, adjust=True).mean().tolist()
    )
    assert result["losses"][0] == pytest.approx(math.log(10), rel=0.3)
    assert result["steps"] < 60  # it ended when the loss had blown up
    assert 1e-4 < result["lr"] < result["lowest"] < 1e3
    assert {each.name for each in out.iterdir()} == {"result.json", "rates.svg", "report.html"}
    assert json.loads((out / "result.json").read_text())["lr"] == result["lr"]
    assert ElementTree.parse(out / "rates.svg").getroot().tag.endswith("svg")
    assert "var(--" not in (out / "rates.svg").read_text()
    assert "Suggested with adamw" in (out / "report.html").read_text()
    again = study(recipe(clip=0.0), out, HOST, lr_low=1e-4, lr_high=1e3, lr_steps=60)
    assert again["losses"] == result["losses"]  # the same bits


def test_the_first_losses_are_those_of_training(tmp_path: Path) -> None:
    """At a rate so low that weights hardly move, each loss is that of the run's own batch."""
    low = recipe(lr=1e-12, steps=4, warmup=0.0, schedule="constant", ema=0.0)
    run = vitlab.train(low, tmp_path / "run", host=HOST)
    lines = (run.folder / "metrics.jsonl").read_text().splitlines()
    losses = [json.loads(line)["loss"] for line in lines if '"train"' in line]
    result = study(low, tmp_path / "s", HOST, lr_low=1e-12, lr_high=1e-11, lr_steps=20)
    assert result["losses"][:4] == pytest.approx(losses, abs=1e-6)


def test_on_the_command_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["study", "lr", "digits", "--model", NAME, "--batch", "64", "--workers", "0"]
    words += ["--lr-steps", "20", "--out", str(tmp_path / "s")]
    code, out, err = call(capsys, *words, "--json")
    assert code == 0, err
    assert json.loads(out)["study"] == "lr"
    assert "vitlab study lr digits" in (tmp_path / "s" / "report.html").read_text()
    code, out, _ = call(capsys, *words)
    assert (code, "steepest" in out) == (0, True)
    for more, says in (
        (["--lr", "0.1"], "the study lr chooses lr itself: leave it out"),
        (["--lr-low", "10"], "lr_low=10 must be below lr_high=10"),
        (["--lr-steps", "2"], "lr_steps must be at least 20, not 2"),
        (["--only", "sgd"], "only=('sgd',) applies only with name="),
    ):
        code, out, err = call(capsys, *words, *more)
        assert (code, out) == (2, "")
        assert says in err
        assert len(err.splitlines()) == 1
    code, _, err = call(capsys, "study", "x")
    assert "name must be one of " in err


def test_refusals(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(RunError, match="contains something else than a study"):
        study(recipe(), tmp_path, HOST)
    with pytest.raises(OptionError, match="must be below"):
        study(recipe(), tmp_path / "a", HOST, lr_low=1.0, lr_high=0.1)
    with pytest.raises(KeyboardInterrupt, match="nothing of the test is kept"), asked_to_stop(2):
        study(recipe(), tmp_path / "a", HOST)
    assert not (tmp_path / "a").exists()
    with pytest.raises(DivergedError, match="not finite before the first step"):
        study(recipe(mean=(0.0,), std=(1e-45,)), tmp_path / "a", HOST)
