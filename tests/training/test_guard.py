"""What is not finite stays out of the weights, the moments and the average."""

import math
from pathlib import Path

import pytest
import torch
from torch import nn

import vitlab
from conftest import TINY
from steps import each_step
from vitlab.recipes.recipe import Host
from vitlab.runs.run_folder import RunFolder
from vitlab.training import checkpoints, plan
from vitlab.training.guard import Figures, can_skip, take_step
from vitlab.training.state import State
from vitlab.training.step import Trainer

QUICK = TINY | {"steps": 14, "batch": 128}


def adamw(model: nn.Module) -> torch.optim.AdamW:
    return torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 2])
def test_a_step_that_is_not_finite_changes_nothing(late: bool, bad: float, place: int) -> None:
    model = nn.Linear(3, 2)
    optimizer = adamw(model)
    numbers = torch.ones(3, dtype=torch.float64)
    for weight in model.parameters():
        weight.grad = torch.ones_like(weight)
    start = [t.clone() for t in model.parameters()]
    assert take_step(optimizer, numbers, late)
    before = [t.clone() for t in model.parameters()]
    assert not any(map(torch.equal, before, start))
    moments = [t.clone() for s in optimizer.state.values() for t in s.values()]
    for weight in model.parameters():
        weight.grad = torch.full_like(weight, bad)
    numbers[place] = bad
    assert take_step(optimizer, numbers, late) is late  # the host does not know yet
    after = [t for s in optimizer.state.values() for t in s.values()]
    assert all(map(torch.equal, before, model.parameters()))
    assert all(map(torch.equal, moments, after))


def test_figures_name_what_is_not_finite() -> None:
    numbers = torch.tensor([3.0, 2.0, 0.5], dtype=torch.float64)
    figures = Figures(4, 8, numbers)
    assert figures.sums == {"loss": 3.0, "correct": 2.0, "images": 8.0}
    assert (figures.loss, figures.norm, figures.fault) == (3.0, 0.5, "")
    for place, fault in ((0, "loss"), (1, "correct"), (2, "gradient")):
        for bad in (math.nan, math.inf, -math.inf):
            broken = numbers.clone()
            broken[place] = bad
            assert Figures(4, 8, broken, late=True).fault == fault


def test_only_optimizers_that_can_check_by_themselves_do() -> None:
    model = nn.Linear(2, 2)
    assert can_skip(adamw(model))
    assert not can_skip(torch.optim.SGD(model.parameters(), lr=0.1))


def test_read_late_a_run_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "LINES", 6)
    reads: dict[bool, list[int]] = {False: [], True: []}
    runs = []
    for late in (False, True):

        def read_late(trainer: Trainer, state: State, batch: object, late: bool = late) -> None:
            trainer.late = late
            reads[late].append(state.tally.seen)

        with each_step(before=read_late):
            recipe = vitlab.recipe("digits", **TINY | {"steps": 12, "batch": 8})
            runs.append(vitlab.train(recipe, tmp_path / str(late)))
    # of the two steps between lines, the first is counted while the second runs
    assert reads[False][:5] == [0, 8, 16, 24, 32]
    assert reads[True][:5] == [0, 0, 16, 16, 32]
    weights = [run.model.state_dict() for run in runs]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    lines = [
        [(line.get("step"), line.get("loss")) for line in RunFolder(run.folder).journal.read()]
        for run in runs
    ]
    assert lines[0] == lines[1]


@pytest.mark.parametrize(
    ("late", "kind", "at"),
    [
        (False, "nan", 1), (True, "nan", 9), (False, "inf", 5), (True, "inf", 1),
        (False, "overflow", 9), (True, "overflow", 5),
    ],
)  # fmt: skip
def test_injected_faults_are_caught_within_a_step_and_poison_nothing(
    late: bool, kind: str, at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = {"nan": math.nan, "inf": math.inf, "overflow": 3e38}[kind]
    real, states = Trainer.clip, []

    def remember(trainer: Trainer, state: State, batch: object) -> None:
        trainer.late = late
        states.append(state)

    def poisoned(self: Trainer) -> torch.Tensor:
        if states[-1].step == at:
            grad = next(w.grad for w in self.model.parameters() if w.grad is not None)
            grad.view(-1)[3] = value
            if kind == "overflow":
                grad.view(-1)[:9] = value
        return real(self)

    monkeypatch.setattr(Trainer, "clip", poisoned)
    with each_step(before=remember):
        host = Host(checkpoint_every=0)
        done = vitlab.train(vitlab.recipe("digits", **QUICK), tmp_path / "run", host=host)
    (line,) = (each for each in RunFolder(done.folder).journal.read() if each["kind"] == "skipped")
    assert (line["step"], line["fault"]) == (at + 1, "gradient")
    assert done.metrics["skipped_steps"] == 1
    state = states[-1]
    assert state.average is not None
    for model in (state.model, state.average.model):
        assert all(torch.isfinite(t).all() for t in model.state_dict().values())
    found, remarks = checkpoints.load(tmp_path / "run" / "checkpoints")
    assert not remarks
    assert found is not None
    assert all(torch.isfinite(t).all() for t in found.tensors.values())


def test_a_spike_is_clipped_to_an_ordinary_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, moves = Trainer.clip, []

    def spiked(self: Trainer) -> torch.Tensor:
        with torch.no_grad():
            if len(moves) == 12:
                for weight in self.model.parameters():
                    if weight.grad is not None:
                        weight.grad *= 1e12
        norm = real(self)
        grads = [w.grad for w in self.model.parameters() if w.grad is not None]
        moves.append((norm.item(), torch.nn.utils.get_total_norm(grads).item()))
        return norm

    monkeypatch.setattr(Trainer, "clip", spiked)
    vitlab.train(vitlab.recipe("digits", **QUICK), tmp_path / "run")
    assert moves[12][0] > 1e9
    assert max(after for _, after in moves) <= 1.0 + 1e-4
