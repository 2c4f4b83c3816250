"""What a budget measures, what it refuses, and a step that there is no time for."""

import re
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import vitlab
from conftest import TINY
from steps import each_step
from vitlab.data.learning import open_to_learn
from vitlab.data.loading.batches import Batch, TrainingBatches
from vitlab.data.settings import Augment
from vitlab.distributed.shares import counted
from vitlab.distributed.world import ALONE
from vitlab.errors import OptionError
from vitlab.files import sha256
from vitlab.optim.optimizers import build
from vitlab.runs.run_folder import RunFolder
from vitlab.training import budget, session
from vitlab.training.budget import Pacer, enough, seconds_per_step
from vitlab.training.guard import HalfwayError, given_up_when
from vitlab.training.state import State
from vitlab.training.step import Trainer
from vitlab.training.stop import Interrupted, Stop

Ready = tuple[Trainer, State, Batch]
NORMS = {"stem": "hmlp", "stem_norm": "batch"}


def network() -> Any:
    generator = torch.Generator().manual_seed(1)
    model = "ViT(width=32,depth=1,heads=2,mlp=32)/16"
    return vitlab.create(model, 10, 16, channels=1, generator=generator, **NORMS)


@pytest.fixture
def ready() -> Ready:
    """A trainer of a model with batch norms, the state it starts from, and a batch of 32."""
    recipe = vitlab.recipe("digits", **TINY | {"batch": 32})
    train = open_to_learn("digits").train
    model = network()
    state = State(model, None, build(model, recipe.optimizer))
    batch = TrainingBatches(train, model.config, Augment(), 0, 32)[0]
    return Trainer(model, recipe), state, counted(batch, ALONE)


def test_a_step_that_is_given_up_leaves_everything_as_it_was(ready: Ready) -> None:
    trainer, state, batch = ready
    trainer.step(state, batch, 0.1, 1)
    looks = 0

    def wanted() -> bool:
        nonlocal looks
        looks += 1
        return False

    with given_up_when(wanted, trainer.engine):
        trainer.accumulate(batch, 2)
    assert looks > 20  # forward and backward
    before = {name: tensor.clone() for name, tensor in state.checkpoint().tensors.items()}
    for after in (1, looks // 3, looks - 1):
        seen = 0

        def unwanted(limit: int = after) -> bool:
            nonlocal seen
            seen += 1
            return seen > limit

        with pytest.raises(HalfwayError), given_up_when(unwanted, trainer.engine):
            trainer.step(state, batch, 0.1, 2)
        assert seen == after + 1
        now = state.checkpoint()
        assert now.state["step"] == 1
        assert all(torch.equal(now.tensors[name], before[name]) for name in before)


def test_looking_does_not_change_a_step(ready: Ready) -> None:
    trainer, state, batch = ready
    other = network()
    plain = State(other, None, build(other, trainer.recipe.optimizer))
    Trainer(other, trainer.recipe).step(plain, batch, 0.1, 1)
    with given_up_when(lambda: False, trainer.engine):
        trainer.step(state, batch, 0.1, 1)
    mine, theirs = state.checkpoint().tensors, plain.checkpoint().tensors
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)


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


def weights(folder: Path) -> str:
    return sha256(folder / "model" / "model.safetensors")


def test_a_budget_that_holds_no_useful_run_is_refused_with_what_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(trainer: Trainer, *_: Any) -> float:
        return 30.0 * trainer.recipe.batch / 128

    monkeypatch.setattr(budget, "seconds_per_step", slow)
    monkeypatch.setattr(budget, "REPORT", 0.0)
    monkeypatch.setattr(Pacer, "check", lambda self, total, done, every: total)
    recipe = vitlab.recipe("digits", **TINY | {"batch": 128, "budget": "60s"})
    with pytest.raises(OptionError, match=r"^--budget 60s has room for 1 step, fewer") as error:
        vitlab.train(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    advice = re.search(r"try --budget (\w+), or --batch (\d+)$", str(error.value))
    assert advice is not None
    run = vitlab.train(recipe.changed(batch=int(advice[2])), tmp_path / "run")
    assert RunFolder(run.folder).decisions.plan[0][1] >= 10
    monkeypatch.setattr(session.Session, "run", lambda self: None)
    monkeypatch.setattr("vitlab.training.run.conclude", lambda observer, stop: run)
    vitlab.train(recipe.changed(budget=advice[1]), tmp_path / "longer")
    assert RunFolder(tmp_path / "longer").decisions.plan[0][1] >= 10


def test_the_clock_starts_with_the_command(tmp_path: Path) -> None:
    recipe = vitlab.recipe("digits", **TINY | {"budget": "60s"})
    with pytest.raises(OptionError, match=r"--budget 60s (has room|is over)"):
        vitlab.train(recipe, tmp_path / "run", began=time.monotonic() - 59)


@pytest.mark.parametrize(
    ("needed", "text"),
    [(3, "10s"), (61, "70s"), (120, "120s"), (121, "3m"), (7200, "120m"), (7201, "3h")],
)
def test_recommended_times_are_round(needed: float, text: str) -> None:
    assert enough(needed) == text
    assert vitlab.recipe("small", budget=text).budget == text


def test_a_step_without_time_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    late = [False]
    monkeypatch.setattr(session, "SOON", 0.0)
    monkeypatch.setattr(Pacer, "late", property(lambda self: late[0]))
    monkeypatch.setattr(Pacer, "check", lambda self, total, done, every: total)
    recipe = vitlab.recipe("digits", **TINY | {"batch": 256, "budget": "60s"})

    def before(trainer: Trainer, state: State, batch: Batch) -> None:
        late[0] = state.step == 5

    with each_step(before):
        run = vitlab.train(recipe, tmp_path / "run")
    plan = RunFolder(run.folder).decisions.plan
    assert plan[-1] == (5, 5)
    assert run.metrics["images"] == 359
    lines = RunFolder(run.folder).journal.read()
    assert all(line["step"] <= 5 for line in lines if line["kind"] == "train")
    assert vitlab.train(recipe, tmp_path / "run", resume=True).metrics["nll"] == run.metrics["nll"]


def test_a_stop_does_not_wait_for_a_slow_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "SOON", 0.0)  # all of them are slow
    recipe = vitlab.recipe("digits", **TINY | {"batch": 256, "steps": 4})
    whole = vitlab.train(recipe, tmp_path / "whole")
    asked: list[Stop] = []
    real = Stop.__enter__
    monkeypatch.setattr(Stop, "__enter__", lambda self: (asked.append(self), real(self))[1])

    def stop(trainer: Trainer, state: State, batch: Batch) -> None:
        asked[0].asked = state.step == 2

    with each_step(stop), pytest.raises(KeyboardInterrupt, match="stopped after step 2 of 4"):
        vitlab.train(recipe, tmp_path / "run")
    run = vitlab.train(recipe, tmp_path / "run", resume=True)
    assert weights(run.folder) == weights(whole.folder)
