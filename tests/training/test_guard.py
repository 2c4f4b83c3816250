"""What is not finite stays out of the weights, the moments and the average."""

import math
from pathlib import Path

import pytest
import torch
from torch import nn

import vitlab
from conftest import TINY
from vitlab.recipes.recipe import Host
from vitlab.training import checkpoint
from vitlab.training.loop import Loop
from vitlab.training.step.guard import Guard
from vitlab.training.step.learner import Learner

QUICK = TINY | {"epochs": 4, "batch": 128}
CPU = torch.device("cpu")


def adamw(model: nn.Module) -> torch.optim.AdamW:
    return torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_step_that_is_not_finite_changes_nothing(late: bool, bad: float) -> None:
    model = nn.Linear(3, 2)
    optimizer = adamw(model)
    guard, figures = Guard(optimizer, CPU, late), torch.ones(3, dtype=torch.float64)
    for weight in model.parameters():
        weight.grad = torch.ones_like(weight)
    known = [*guard.step(1, 8, figures), *guard.settle()]
    assert [(each.step, each.images, each.fault) for each in known] == [(1, 8, "")]
    before = [t.clone() for t in model.parameters()]
    moments = [t.clone() for s in optimizer.state.values() for t in s.values()]
    for weight in model.parameters():
        weight.grad = torch.full_like(weight, bad)
    known = [*guard.step(2, 8, torch.tensor([1.0, 1.0, bad], dtype=torch.float64)), *guard.settle()]
    assert [(each.step, each.fault) for each in known] == [(2, "gradient")]
    after = [t for s in optimizer.state.values() for t in s.values()]
    assert all(map(torch.equal, before, model.parameters()))
    assert all(map(torch.equal, moments, after))


def test_read_late_the_figures_come_one_step_later_and_the_weights_are_the_same() -> None:
    models = [nn.Linear(3, 2) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    known: list[list[int]] = []
    for model, late in zip(models, (False, True), strict=True):
        guard = Guard(adamw(model), CPU, late)
        for number in range(1, 5):
            for weight in model.parameters():
                weight.grad = weight.detach() * number
            figures = torch.full((3,), float(number), dtype=torch.float64)
            known.append([each.step for each in guard.step(number, 1, figures)])
        known.append([each.step for each in guard.settle()])
    assert known == [[1], [2], [3], [4], [], [], [1], [2], [3], [4]]
    assert all(map(torch.equal, models[0].parameters(), models[1].parameters()))


def following(monkeypatch: pytest.MonkeyPatch) -> list[Loop]:
    """The loops that are made from now on."""
    loops: list[Loop] = []
    ready = Loop.__post_init__
    monkeypatch.setattr(Loop, "__post_init__", lambda self: (loops.append(self), ready(self)))
    return loops


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("kind", ["nan", "inf", "overflow"])
@pytest.mark.parametrize("at", [1, 5, 9])
def test_injected_faults_are_caught_within_a_step_and_poison_nothing(
    late: bool, kind: str, at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = {"nan": math.nan, "inf": math.inf, "overflow": 3e38}[kind]
    real, states, loops = Learner._clip, [], following(monkeypatch)

    def poisoned(self: Learner) -> torch.Tensor:
        states.append(loops[-1].state)
        loops[-1].guard.late = late
        if states[-1].step == at:
            grad = next(w.grad for w in self.model.parameters() if w.grad is not None)
            grad.view(-1)[3] = value
            if kind == "overflow":
                grad.view(-1)[:9] = value
        return real(self)

    monkeypatch.setattr(Learner, "_clip", poisoned)
    with pytest.raises(ValueError, match=f"gradient is not finite at step {at + 1} "):
        host = Host(checkpoint_every=0)
        vitlab.train(vitlab.recipe("digits", **QUICK), tmp_path / "run", host=host)
    state = states[-1]
    assert len(states) <= at + 2
    assert state.average is not None
    for model in (state.model, state.average.model):
        assert all(torch.isfinite(t).all() for t in model.state_dict().values())
    found, remarks = checkpoint.load(tmp_path / "run" / "checkpoints")
    assert not remarks
    assert found is not None
    assert found.state["step"] == at
    assert all(torch.isfinite(t).all() for t in found.tensors.values())


def test_a_spike_is_clipped_to_an_ordinary_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, moves, loops = Learner._clip, [], following(monkeypatch)

    def spiked(self: Learner) -> torch.Tensor:
        with torch.no_grad():
            if loops[-1].state.step == 12:
                for weight in self.model.parameters():
                    if weight.grad is not None:
                        weight.grad *= 1e12
        norm = real(self)
        grads = [w.grad for w in self.model.parameters() if w.grad is not None]
        moves.append((norm.item(), torch.nn.utils.get_total_norm(grads).item()))
        return norm

    monkeypatch.setattr(Learner, "_clip", spiked)
    vitlab.train(vitlab.recipe("digits", **QUICK), tmp_path / "run")
    assert moves[12][0] > 1e9
    assert max(after for _, after in moves) <= 1.0 + 1e-4


def test_on_a_cpu_and_with_optimizers_that_cannot_the_host_looks_first() -> None:
    model = nn.Linear(2, 2)
    assert not Guard(adamw(model), CPU).late
    assert Guard(adamw(model), torch.device("cuda")).late
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    assert not Guard(plain, torch.device("cuda")).late
