"""A schedule that fits into a time, decided once, and what it is then the same as."""

import json
import time
from pathlib import Path

import pytest

import vitlab
from conftest import TINY
from steps import killed_before
from vitlab.files import sha256
from vitlab.recipes.decisions import Decisions
from vitlab.recipes.recipe import Host
from vitlab.runs.run_folder import RunFolder
from vitlab.training import budget, checkpoints, trial_steps
from vitlab.training.budget import Pace, Pacer
from vitlab.units import seconds

QUICK = TINY | {"epochs": 30, "batch": 128, "warmup": 3, "dropout": 0.1}


def weights(run: vitlab.Run) -> str:
    return sha256(run.folder / "model" / "model.safetensors")


@pytest.mark.parametrize(
    ("text", "want"), [("", 0), ("90s", 90), ("20m", 1200), ("1.5 h", 5400), ("2h", 7200)]
)
def test_times_are_read(text: str, want: float) -> None:
    assert seconds(text) == want


@pytest.mark.parametrize("text", ["20", "m", "-3m", "0s", "20 minutes", "1e3s"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="budget must be a time such as 90s, 20m or 2h"):
        vitlab.recipe("small", budget=text)


def test_the_most_steps_that_fit_are_taken() -> None:
    pace = Pace(step=0.5, evaluation=10.0, every=20, last=7.0)
    for left in (12.0, 100.0, 1234.5):
        steps = pace.fits(left)
        assert pace.takes(steps) <= left * (1 - budget.RESERVE) < pace.takes(steps + 1)
    assert pace.fits(1.0) == 0


def test_a_plan_is_cut_where_it_would_overrun_and_never_grown() -> None:
    slow, fast = Pace(2.0, 0, 1, 0), Pace(0.5, 0, 1, 0)
    assert slow.cut(100, 50, left=50, budget=100) == 50 + 24
    assert slow.cut(100, 50, left=99, budget=100) == 100  # within two percent
    assert fast.cut(100, 50, left=50, budget=100) == 100
    assert slow.cut(100, 50, left=-5, budget=100) == 50


def test_a_clock_that_turns_slow_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    pacer, total, done = Pacer(100.0, spent=0.0), 100, 0
    while done < total:
        now += 1.0 if done < 40 else 2.5
        done += 1
        if done % 25 == 0:
            now += 0.2
            pacer.evaluated(0.2)
        total = pacer.check(total, done, every=25)
    assert 95 < now < 104
    assert total < 75


def test_plans_are_in_force_from_their_step_on(tmp_path: Path) -> None:
    plans = Decisions(micro_batch=8, plan=((0, 100), (60, 90), (70, 80)))
    assert [plans.total_steps(at) for at in (0, 59, 60, 69, 70, 79)] == [100, 100, 90, 90, 80, 80]
    (tmp_path / "run.toml").write_text("[run]\nstarted = 'now'\n")
    RunFolder(tmp_path).decide(plans)
    assert RunFolder(tmp_path).decisions == plans
    assert "started" in (tmp_path / "run.toml").read_text()


@pytest.fixture
def steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of constant speed, whatever it really does: 40 steps fit."""
    monkeypatch.setattr(budget, "seconds_per_step", lambda *_: 1.0)
    monkeypatch.setattr(Pace, "fits", lambda self, left: 40)
    monkeypatch.setattr(Pacer, "check", lambda self, total, done, every: total)


@pytest.mark.usefixtures("steady")
def test_a_run_with_a_budget_is_the_run_of_the_epochs_it_decided_on(tmp_path: Path) -> None:
    run = vitlab.train(vitlab.recipe("digits", **QUICK | {"budget": "100s"}), tmp_path / "a")
    assert RunFolder(run.folder).decisions.plan == ((0, 40),)
    epochs = 40 * 128 / 1438
    alike = QUICK | {"epochs": epochs, "warmup": 3 * epochs / 30}
    assert weights(run) == weights(vitlab.train(vitlab.recipe("digits", **alike), tmp_path / "b"))
    lines = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if line["kind"] == "train"] == list(range(1, 41))


@pytest.mark.usefixtures("steady")
def test_a_resumed_run_keeps_its_plan_and_every_cut_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = vitlab.recipe("digits", **QUICK | {"budget": "100s"})

    def slow(self: Pacer, total: int, done: int, every: float) -> int:
        return 30 if done >= 20 else total

    with monkeypatch.context() as patch:
        patch.setattr(Pacer, "check", slow)
        whole = vitlab.train(recipe, tmp_path / "whole")
        with killed_before(23), pytest.raises(KeyboardInterrupt):
            vitlab.train(recipe, tmp_path / "run", host=Host(checkpoint_every=0))
    for step in (22, 23):  # the newest checkpoints: go back to before the cut
        assert (tmp_path / "run" / "checkpoints" / f"step-{step:09d}").exists()
    run = vitlab.train(recipe, tmp_path / "run", resume=True)  # on a machine that is not slow
    assert RunFolder(run.folder).decisions.plan == ((0, 40), (20, 30))
    assert weights(run) == weights(whole)
    found, _ = checkpoints.load(run.folder / "checkpoints")
    assert found is not None
    assert found.state["step"] == 30


def test_a_cut_holds_for_a_run_resumed_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = vitlab.recipe("digits", **QUICK | {"budget": "100s"})
    monkeypatch.setattr(trial_steps, "try_steps", lambda *_: None)
    monkeypatch.setattr(Pacer, "check", lambda self, total, done, every: total)
    plan = Decisions(plan=((0, 20), (8, 12)))
    monkeypatch.setattr(RunFolder, "decisions", plan)
    run = vitlab.train(recipe, tmp_path / "run")
    lines = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    rates = [line["lr"] for line in lines if line["kind"] == "train"]
    assert len(rates) == 12
    assert rates[-1] == 0.0


def test_a_real_budget_is_about_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "REPORT", 0.0)
    monkeypatch.setattr(budget, "USEFUL", 2)
    run = vitlab.train(vitlab.recipe("digits", **QUICK | {"budget": "4s"}), tmp_path / "run")
    found, _ = checkpoints.load(run.folder / "checkpoints")
    assert found is not None
    assert found.state["spent"] < 8  # a busy machine is no failure; the figures are in the docs
    assert RunFolder(run.folder).decisions.plan[0][1] > 1


def test_checkpoints_take_their_share_of_the_pace() -> None:
    pace = Pace(step=0.5, evaluation=10.0, every=20, last=7.0)
    rare = pace.with_saves(2.0, every=60.0)
    assert (rare.step, rare.last) == (pytest.approx(0.5 + 2.0 * 0.5 / 60), 9.0)
    assert pace.with_saves(2.0, every=0.0).step == 2.5  # one after each step, never more
    assert (rare.evaluation, rare.every) == (10.0, 20)
