"""A schedule that fits into a time: how it is measured, decided once, cut, and refused."""

import re
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import vitlab
from conftest import LIGHT, TINY
from slow_clock import SlowClock, slowed
from steps import each_step
from training.kept import EACH, journal, killed, resumed, weights
from vitlab.data.loading.batch import Batch
from vitlab.data.loading.training_batches import TrainingBatches
from vitlab.data.open_splits import open_to_learn
from vitlab.data.settings import Augment
from vitlab.distributed.shares import counted
from vitlab.distributed.world import ALONE
from vitlab.errors import OptionError
from vitlab.optim.optimizers import build
from vitlab.recipes.recipe import Decisions
from vitlab.runs.run_folder import RunFolder
from vitlab.training import budget, checkpoints, trial_steps
from vitlab.training.budget import Pacer, seconds_per_image, seconds_per_step
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
    monkeypatch.setattr(Pacer, "fits", lambda self, every: 10)
    monkeypatch.setattr(Pacer, "check", unhurried)


@pytest.mark.usefixtures("steady")
def test_a_run_with_a_budget_is_the_run_of_the_epochs_it_decided_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = vitlab.train(
        vitlab.recipe("digits", **QUICK | {"budget": "100s"}), tmp_path / "a", host=LIGHT
    )
    assert RunFolder(run.folder).decisions.plan == ((0, 10),)
    err = capsys.readouterr().err
    assert err.index("timing a few small steps") < err.index("plan: about 10 steps (1.11 epochs)")
    assert err.index("plan: about") < err.index("digits: 287 training and 73 test images")
    assert "measuring the pace, for up to about 6.0 s" in err
    assert "as many steps as fit into 100s on cpu in fp32" in err
    epochs = 10 * 32 / 287
    alike = vitlab.recipe("digits", **QUICK | {"epochs": epochs, "warmup": 3 * epochs / 30})
    assert weights(run) == weights(vitlab.train(alike, tmp_path / "b", host=LIGHT))
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
    early = vitlab.train(
        recipe, tmp_path / "early", host=LIGHT
    )  # a cut holds for a run resumed before it
    rates = [line["lr"] for line in journal(early, "train")]
    assert (len(rates), rates[-1]) == (6, 0.0)


def test_a_budget_that_holds_no_useful_run_is_refused_with_what_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a few images, however large the batch is; a shorter one, and a longer time, work."""
    clock = SlowClock(monkeypatch, 0.25)
    recipe = vitlab.recipe("digits", **TINY | {"batch": 128, "budget": "60s"})

    def trained(name: str, **options: Any) -> vitlab.Run:
        own = recipe.changed(**options)
        return vitlab.train(own, tmp_path / name, transform=slowed, host=LIGHT)

    with pytest.raises(OptionError, match=r'^budget="60s" has room for [01] steps?, few') as error:
        trained("run")
    assert clock.images <= 24  # some of which only try the function
    assert list(tmp_path.iterdir()) == []
    said = re.search(r'try budget="(\d+)m", or a smaller batch=$', str(error.value))
    assert said is not None
    assert 320 * 1.3 / 60 < int(said[1]) < 320 * 1.3 / 60 + 3  # for ten steps of 32 seconds
    clock.seconds = 0.01
    with pytest.raises(OptionError, match=r'^budget="1s" has room for 0 steps, few') as error:
        trained("short", budget="1s")
    assert re.search(r'try budget="30s", or a smaller batch=$', str(error.value))
    clock.seconds = 0.25
    for name, options in (("run", {"batch": 8}), ("longer", {"budget": f"{said[1]}m"})):
        trained(name, **options)
        assert RunFolder(tmp_path / name).decisions.plan[0][1] >= 10


def test_the_head_alone_is_the_result_where_there_is_no_time_for_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is planned before anything is fitted, and has the figures of the head of a longer run."""
    base = vitlab.create(TINY["model"], 0, 8, channels=1, generator=torch.Generator())
    SlowClock(monkeypatch, 0.25)
    how: dict[str, Any] = {"batch": 32, "precision": "fp32"}
    how |= {"transform": slowed, "head_start": "probe"}
    with pytest.raises(
        OptionError, match=r'try budget="\d+s" for the fitted head alone, budget='
    ) as e:
        vitlab.finetune("digits", base, tmp_path / "short", budget="1s", **how, host=LIGHT)
    assert list(tmp_path.iterdir()) == []
    alone, longer = re.findall(r'try budget="(\w+)" .*, budget="(\w+)" to', str(e.value))[0]
    run = vitlab.finetune("digits", base, tmp_path / "head", budget=alone, **how, host=LIGHT)
    said = capsys.readouterr().err
    assert "and is the result: training further takes a budget of " in said
    assert said.index("plan: ") < said.index("the classifier starts as a logistic regression")
    assert RunFolder(run.folder).decisions.plan == ((0, 0),)
    assert journal(run, "train") == []
    assert (run.folder / "report.html").is_file() == (run.metrics.get("report") is not None)
    again = vitlab.finetune(
        "digits", base, tmp_path / "head", budget=alone, resume=True, **how, host=LIGHT
    )
    assert again.metrics["nll"] == run.metrics["nll"]
    trained = vitlab.finetune("digits", base, tmp_path / "longer", budget=longer, **how, host=LIGHT)
    assert RunFolder(trained.folder).decisions.plan[0][1] >= 10
    start = trained.metrics["head_start"]
    assert run.metrics["head_start"]["accuracy"] == run.metrics["accuracy"] == start["accuracy"]


def test_a_run_that_turns_slow_before_ten_steps_leaves_the_head(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    base = vitlab.create(TINY["model"], 0, 8, channels=1, generator=torch.Generator())
    clock = SlowClock(monkeypatch, 0.02)

    def slower(line: dict[str, Any]) -> None:
        if line["kind"] == "train":
            clock.seconds = 0.4

    how: dict[str, Any] = {"batch": 32, "transform": slowed, "head_start": "probe"}
    run = vitlab.finetune(
        "digits", base, tmp_path / "run", budget="60s", on_line=slower, **how, host=LIGHT
    )
    steps = len(journal(run, "train"))
    assert 1 <= steps < 10
    said = capsys.readouterr().err
    assert "steps taken, fewer than 10: the head as it was fitted is the result" in said
    assert run.metrics["accuracy"] == run.metrics["head_start"]["accuracy"]
    assert "gain" not in run.metrics["head_start"]
    kept = vitlab.load(run.folder)
    start = vitlab.load(run.folder / "head-start.safetensors", base=base)
    assert all(
        torch.equal(own, kept.state_dict()[name]) for name, own in start.state_dict().items()
    )


def test_how_long_a_run_takes_is_said_after_its_first_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first step, which warms up, is not counted; of a short run nothing is said."""
    for seconds, expected in ((0.1, 29 * 3.2), (0.005, 0.0)):
        SlowClock(monkeypatch, seconds)
        recipe = vitlab.recipe("digits", **TINY | {"batch": 32, "steps": 30})
        vitlab.train(recipe, tmp_path / str(seconds), transform=slowed, host=LIGHT)
        said = re.findall(r"about (\d+) min (\d+) s to the end\n", capsys.readouterr().err)
        assert len(said) == (expected > 0)
        for minutes, rest in said:
            assert expected * 0.9 < 60 * int(minutes) + int(rest) < expected * 1.3 + 3


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
        run = vitlab.train(recipe, tmp_path / "run", host=LIGHT)
    assert RunFolder(run.folder).decisions.plan[-1] == (5, 5)
    found, _ = checkpoints.load(run.folder / "checkpoints")
    assert found is not None
    assert found.state["best"]["step"] == 5  # measured, though no evaluation was due
    assert run.metrics["images"] == 73
    assert all(line["step"] <= 5 for line in journal(run, "train"))
    assert (
        vitlab.train(recipe, tmp_path / "run", resume=True, host=LIGHT).metrics["nll"]
        == run.metrics["nll"]
    )


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
        (0.0, 1.0, [2, 2, 8, 32]),  # quick: up to a whole batch
        (0.01, 1.0, [2, 2, 8, 32]),  # 0.02 twice, 0.08, 0.32
        (0.1, 1.6, [2, 2, 8]),  # 0.2 twice, 0.8
        (1.0, 1.0, [2, 2]),
    ],
)
def test_steps_of_few_images_say_what_a_batch_takes(
    ready: Ready, monkeypatch: pytest.MonkeyPatch, cost: float, span: float, pieces: list[int]
) -> None:
    trainer, state, batch = ready
    SlowClock(monkeypatch, cost)
    trainer.transform = slowed
    seen: list[int] = []

    def batch_of(size: int) -> Batch:
        seen.append(size)
        return counted(next(batch.pieces(size)), ALONE)

    load, learn, timed = seconds_per_image(trainer, state, batch_of, span)
    assert (seen, timed) == (pieces, pieces[-1])
    assert learn >= 0.99 * cost
    assert learn == pytest.approx(cost, abs=0.05)
    assert 0 <= load < 0.05


def test_whole_steps_are_timed_until_a_stop(ready: Ready, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, state, batch = ready
    clock = SlowClock(monkeypatch, 0.05)
    trainer.transform = slowed
    found = seconds_per_step(trainer, state, iter([batch] * 9), batch, 4.0, Stop())
    assert found == pytest.approx(1.6, abs=0.3)
    assert clock.images == 4 * 32
    stop = Stop()
    stop.asked = True
    with pytest.raises(Interrupted):
        seconds_per_step(trainer, state, iter([batch] * 9), batch, 4.0, stop)
