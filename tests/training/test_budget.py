"""A schedule that fits into a time: how it is measured, decided once, cut, and refused."""

import re
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import vitlab
from conftest import TINY
from steps import each_step
from training.kept import EACH, journal, killed, resumed, weights
from vitlab.data.learning import open_to_learn
from vitlab.data.loading.batches import Batch, TrainingBatches
from vitlab.data.settings import Augment
from vitlab.distributed.shares import counted
from vitlab.distributed.world import ALONE
from vitlab.errors import OptionError
from vitlab.optim.optimizers import build
from vitlab.recipes.recipe import Decisions
from vitlab.runs.run_folder import RunFolder
from vitlab.training import budget, checkpoints, session, trial_steps
from vitlab.training.budget import Pacer, seconds_per_step
from vitlab.training.observer import Observer
from vitlab.training.state import RunState
from vitlab.training.step import Trainer
from vitlab.training.stop import Interrupted, Stop

QUICK = TINY | {"epochs": 30, "batch": 32, "warmup": 3, "dropout": 0.1}
Ready = tuple[Trainer, RunState, Batch]


def unhurried(self: Pacer, total: int, done: int, every: float) -> int:
    """In place of `Pacer.check`: nothing is ever cut."""
    return total


# The pace


@pytest.fixture
def still(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that stands still, and a report that takes no time."""
    monkeypatch.setattr(time, "monotonic", lambda: 0.0)
    monkeypatch.setattr(budget, "REPORT", 0.0)


def paced(left: float, step: float, evaluation: float = 0.0) -> Pacer:
    """The clock of a budget of 100 seconds with so many left."""
    pacer = Pacer(100.0, spent=100.0 - left)
    pacer.step, pacer.evaluation = step, evaluation
    return pacer


@pytest.mark.usefixtures("still")
def test_the_most_steps_that_fit_are_taken() -> None:
    for left in (18.0, 100.0, 1234.5):
        pacer = paced(left, step=0.5, evaluation=10.0)
        steps = pacer.fits(20)
        usable = left * (1 - budget.RESERVE)
        assert pacer.takes(steps, 20) <= usable < pacer.takes(steps + 1, 20)
    assert paced(1.0, step=0.5, evaluation=10.0).fits(20) == 0


@pytest.mark.usefixtures("still")
def test_a_plan_is_cut_where_it_would_overrun_and_never_grown() -> None:
    for step, left, total in (
        (2.0, 50.0, 50 + 24),
        (2.0, 99.0, 100),  # within two percent
        (0.5, 50.0, 100),
        (2.0, -5.0, 50),
    ):
        pacer = paced(left, step)
        pacer.mark = 0, -50 * step  # as it was measured
        assert pacer.check(100, 50, every=1) == total


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
    pacer = Pacer(100.0, spent=0.0, tested=3.0)
    pacer.evaluated(2.0)
    assert pacer.last == 3 * 2.0 + budget.REPORT


# Runs


@pytest.fixture
def steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of constant speed, whatever it really does: 10 steps fit."""
    monkeypatch.setattr(budget, "seconds_per_step", lambda *_: 1.0)
    monkeypatch.setattr(Pacer, "fits", lambda self, every: 10)
    monkeypatch.setattr(Pacer, "check", unhurried)


@pytest.mark.usefixtures("steady")
def test_a_run_with_a_budget_is_the_run_of_the_epochs_it_decided_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = vitlab.train(vitlab.recipe("digits", **QUICK | {"budget": "100s"}), tmp_path / "a")
    assert RunFolder(run.folder).decisions.plan == ((0, 10),)
    err = capsys.readouterr().err
    assert "measuring the pace, for up to about 8.0 s" in err
    assert "as many steps as fit into 100s on cpu in fp32" in err
    epochs = 10 * 32 / 287
    alike = vitlab.recipe("digits", **QUICK | {"epochs": epochs, "warmup": 3 * epochs / 30})
    assert weights(run) == weights(vitlab.train(alike, tmp_path / "b"))
    assert [line["step"] for line in journal(run, "train")] == list(range(1, 11))


@pytest.mark.usefixtures("steady")
def test_a_resumed_run_keeps_its_plan_and_every_cut_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = vitlab.recipe("digits", **QUICK | {"budget": "100s"})

    def slow(self: Pacer, total: int, done: int, every: float) -> int:
        return 6 if done >= 4 else total

    with monkeypatch.context() as patch:
        patch.setattr(Pacer, "check", slow)
        whole = vitlab.train(recipe, tmp_path / "whole", host=EACH)
        killed(5, recipe, tmp_path / "run")
    assert capsys.readouterr().err.count("measured: plan cut from 10 to 6 steps\n") == 2
    run = resumed(recipe, tmp_path / "run")  # on a machine that is not slow
    assert RunFolder(run.folder).decisions.plan == ((0, 10), (4, 6))
    assert weights(run) == weights(whole)
    found, _ = checkpoints.load(run.folder / "checkpoints")
    assert found is not None
    assert found.state["step"] == 6
    monkeypatch.setattr(trial_steps, "try_steps", lambda *_: None)
    monkeypatch.setattr(RunFolder, "decisions", Decisions(plan=((0, 10), (4, 6))))
    early = vitlab.train(recipe, tmp_path / "early")  # a cut holds for a run resumed before it
    rates = [line["lr"] for line in journal(early, "train")]
    assert (len(rates), rates[-1]) == (6, 0.0)


def test_a_budget_that_holds_no_useful_run_is_refused_with_what_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(trainer: Trainer, *_: Any) -> float:
        return 30.0 * trainer.recipe.batch / 128

    monkeypatch.setattr(trial_steps, "LEAST", 0.1)
    recipe = vitlab.recipe("digits", **TINY | {"batch": 128, "budget": "60s"})
    with pytest.raises(OptionError, match="--budget 60s has room for 0 steps"):
        vitlab.train(recipe, tmp_path / "run", began=time.monotonic() - 59)  # as the command did
    monkeypatch.setattr(budget, "seconds_per_step", slow)
    monkeypatch.setattr(budget, "REPORT", 0.0)
    monkeypatch.setattr(Pacer, "check", unhurried)
    with pytest.raises(OptionError, match=r"^--budget 60s has room for 1 step, fewer") as error:
        vitlab.train(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    advice = re.search(r"try --budget (\w+), or a smaller --batch$", str(error.value))
    assert advice is not None
    run = vitlab.train(recipe.changed(batch=8), tmp_path / "run")
    monkeypatch.setattr(session.Session, "run", lambda self: None)
    monkeypatch.setattr("vitlab.training.run.conclude", lambda observer, stop: run)
    vitlab.train(recipe.changed(budget=advice[1]), tmp_path / "longer")
    for name in ("run", "longer"):
        assert RunFolder(tmp_path / name).decisions.plan[0][1] >= 10


@pytest.mark.usefixtures("steady")
def test_a_slow_evaluation_without_labels_is_estimated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial_steps, "OF_BUDGET", 0.0)
    monkeypatch.setattr(trial_steps, "LEAST", 0.1)  # seconds, and a test seems to take more
    recipe = vitlab.recipe("lejepa", "digits", **QUICK | {"budget": "100s", "local_crops": 0})
    seen: list[int] = []
    real = Observer.figures

    def note(self: Observer) -> dict[str, float]:
        seen.append(len(self.held_out))
        return real(self)

    monkeypatch.setattr(Observer, "figures", note)
    vitlab.train(recipe, tmp_path / "run", host=EACH)
    assert seen[0] < 73 == seen[-1]


def test_a_step_that_leaves_no_time_is_the_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = [False]
    monkeypatch.setattr(Pacer, "late", property(lambda self: late[0]))
    monkeypatch.setattr(trial_steps, "LEAST", 0.1)
    how = {"batch": 64, "budget": "60s", "patience": 9}
    recipe = vitlab.recipe("digits", **TINY | how)

    def before(trainer: Trainer, state: RunState, batch: Batch) -> None:
        late[0] = state.step == 4

    with each_step(before):
        run = vitlab.train(recipe, tmp_path / "run")
    assert RunFolder(run.folder).decisions.plan[-1] == (5, 5)
    found, _ = checkpoints.load(run.folder / "checkpoints")
    assert found is not None
    assert found.state["best"]["step"] == 5  # measured, though no evaluation was due
    assert run.metrics["images"] == 73
    assert all(line["step"] <= 5 for line in journal(run, "train"))
    assert vitlab.train(recipe, tmp_path / "run", resume=True).metrics["nll"] == run.metrics["nll"]


# Steps that are measured


def network() -> Any:
    """A model with batch norms."""
    generator = torch.Generator().manual_seed(1)
    model = "ViT(width=32,depth=1,heads=2,mlp=32)/16"
    norms = {"stem": "hmlp", "stem_norm": "batch"}
    return vitlab.create(model, 10, 16, channels=1, generator=generator, **norms)


@pytest.fixture
def ready() -> Ready:
    """A trainer, the state it starts from, and a batch of 32."""
    recipe = vitlab.recipe("digits", **TINY | {"batch": 32})
    model = network()
    state = RunState(model, None, build(model, recipe.optimizer))
    batch = TrainingBatches(open_to_learn("digits").train, model.config, Augment(), 0, 32)[0]
    return Trainer(model, recipe), state, counted(batch, ALONE)


@pytest.mark.parametrize(
    ("cost", "span", "pieces"),
    [
        (0.0, 1.0, [2, 2, 8, 32, 32]),  # quick: pieces, then whole steps
        (0.01, 1.0, [2, 2, 8, 32, 32]),  # 0.02 twice, 0.08, 0.32 twice; no time for another
        (0.1, 1.3, [2, 2, 8]),  # 0.2 twice, 0.8
        (1.0, 1.0, [2, 2]),
    ],
)
def test_a_slow_machine_measures_pieces(
    ready: Ready, monkeypatch: pytest.MonkeyPatch, cost: float, span: float, pieces: list[int]
) -> None:
    trainer, state, batch = ready
    now, seen = 0.0, []
    real = Trainer.accumulate

    def accumulate(self: Trainer, piece: Batch, seed: int) -> Any:
        nonlocal now
        now += cost * len(piece) + (0.3 if not cost and len(seen) > 3 else 0)
        seen.append(len(piece))
        return real(self, piece, seed)

    monkeypatch.setattr(Trainer, "accumulate", accumulate)
    monkeypatch.setattr(budget.time, "monotonic", lambda: now)
    batches = iter([batch] * 9)
    found = seconds_per_step(trainer, state, batches, batch, span, Stop())
    assert seen[: len(pieces)] == pieces
    assert set(seen[len(pieces) :]) <= {32}
    assert found == pytest.approx(32 * cost if cost else 0.3)
    assert now <= span + 4 * cost + 0.3
    stop = Stop()
    stop.asked = True
    with pytest.raises(Interrupted):
        seconds_per_step(trainer, state, batches, batch, span, stop)
