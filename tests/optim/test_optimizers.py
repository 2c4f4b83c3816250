"""Every optimizer against another implementation or its formulas, its groups, and its resuming."""

import copy
import importlib
import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import torch
from torch import Tensor, nn

import vitlab
from conftest import LIGHT, fewer_digits
from oracles.peers import timm
from steps import asked_to_stop
from vitlab.optim.averaging import WeightAverage
from vitlab.optim.moments import pack, unpack
from vitlab.optim.optimizers import OptimizerPair, build, evaluation_weights, set_rate
from vitlab.optim.sam import statistics_kept, uphill
from vitlab.optim.shampoo import inverse_root
from vitlab.optim.table import OPTIMIZERS, about, users
from vitlab.options import applies
from vitlab.recipes.optimization import Optimization
from vitlab.recipes.start import Start
from vitlab.training import checkpoints
from vitlab.training.guard import can_skip
from vitlab.training.state import RunState
from vitlab.training.step import Trainer
from vitlab.tuning.free import begin_tuning, free_names

NAMES = tuple(OPTIMIZERS)
STEPS = 12


def timm_optim() -> Any:
    timm()
    return importlib.import_module("timm.optim")


def settings(**choices: Any) -> Optimization:
    """Those of `HOW` and the choices that this optimizer has."""
    values = HOW | choices
    every = Optimization().as_dict() | values
    return Optimization(**{k: v for k, v in values.items() if applies(Optimization, k, every)})


def tiny(seed: int = 0, **choices: Any) -> Any:
    """A ViT with one of everything, in double precision so that formulas can be met closely."""
    generator = torch.Generator().manual_seed(seed)
    shape = {"depth": 2, "width": 12, "heads": 2, "mlp": 20, "registers": 1, "layer_scale": 0.5}
    name = "ViT(width=12,depth=2,heads=2,mlp=20)/4"
    return vitlab.create(name, 5, 8, generator=generator, **shape | choices).double()


def learn(model: nn.Module, step: Callable[[], None], steps: int = STEPS, first: int = 0) -> None:
    """Some steps, each on a batch of its own."""
    for number in range(first, first + steps):
        generator = torch.Generator().manual_seed(number)
        images = torch.randn(6, 3, 8, 8, generator=generator, dtype=torch.float64)
        labels = torch.randint(5, (6,), generator=generator)
        dtype = next(model.parameters()).dtype
        model.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(model(images.to(dtype)), labels).backward()
        step()


def both(how: Optimization, oracle: Callable[[Any], Callable[[], None]]) -> tuple[Any, Any]:
    """Two equal models, one trained by us and one by the oracle."""
    ours, theirs = tiny(), tiny()
    optimizer = build(ours, how)
    set_rate(optimizer, how.lr)
    learn(ours, optimizer.step)
    learn(theirs, oracle(theirs))
    return evaluation_weights(ours, optimizer), theirs


def same(ours: nn.Module, theirs: nn.Module, tolerance: float = 1e-9) -> None:
    start = tiny().state_dict()
    for name, tensor in theirs.state_dict().items():
        assert not torch.equal(tensor, start[name]), f"{name} has not moved"
        torch.testing.assert_close(
            ours.state_dict()[name],
            tensor,
            rtol=0,
            atol=tolerance,
            msg=lambda said, name=name: f"{name}: {said}",
        )


def decays(name: str, weight: Tensor) -> bool:
    """The official code's mask, written out for these models."""
    added = ("token", "registers", "positions.0.table", "head.attend.queries")
    return weight.ndim > 1 and name not in added


def parts(model: nn.Module) -> tuple[list[Tensor], list[Tensor]]:
    """Kernels, and all the rest."""
    named = list(model.named_parameters())
    return [w for n, w in named if decays(n, w)], [w for n, w in named if not decays(n, w)]


def by_formula(model: nn.Module, rule: Callable[..., Tensor]) -> Callable[[], None]:
    """Steps of one rule for each parameter: rule(weight, gradient, state, step, decays)."""
    states: dict[str, dict[str, Any]] = {}

    @torch.no_grad()
    def step() -> None:
        for name, weight in model.named_parameters():
            state = states.setdefault(name, {"t": 0})
            state["t"] += 1
            kernel = decays(name, weight)
            weight.copy_(rule(weight.clone(), weight.grad, state, state["t"], kernel))

    return step


def moments(gradient: Tensor, state: dict[str, Any], t: int) -> tuple[Tensor, Tensor]:
    """Adam's two, with the bias corrected."""
    state["m"] = 0.9 * state.get("m", 0) + 0.1 * gradient
    state["v"] = 0.99 * state.get("v", 0) + 0.01 * gradient**2
    return state["m"] / (1 - 0.9**t), state["v"] / (1 - 0.99**t)


def adamw_rule(w: Tensor, g: Tensor, state: dict[str, Any], t: int, kernel: bool) -> Tensor:
    m, v = moments(g, state, t)
    return w - 0.01 * (m / (v.sqrt() + 1e-6) + 0.1 * kernel * w)


def shampoo_rule(w: Tensor, g: Tensor, state: dict[str, Any], t: int, kernel: bool) -> Tensor:
    """Gupta et al. (2018), with moving averages and the length of Adam's step."""
    if not kernel:
        return adamw_rule(w, g, state, t, kernel)
    m, v = moments(g, state, t)
    flat = g.flatten(1).numpy()
    state["L"] = 0.99 * state.get("L", 0) + 0.01 * flat @ flat.T
    state["R"] = 0.99 * state.get("R", 0) + 0.01 * flat.T @ flat
    if (t - 1) % 3 == 0:
        for key in "LR":
            whole = state[key] / (1 - 0.99**t)
            ridge = 1e-6 * np.linalg.eigvalsh(whole)[-1] or 1.0
            whole = whole + ridge * np.eye(len(whole))
            state["root" + key] = scipy.linalg.fractional_matrix_power(whole, -0.25).real
    shampoo = torch.tensor(state["rootL"] @ m.flatten(1).numpy() @ state["rootR"])
    adam = m / (v.sqrt() + 1e-6)
    length = adam.norm() / shampoo.norm() if shampoo.norm() > 0 else 0.0
    return w * (1 - 0.01 * 0.1) - 0.01 * shampoo.view_as(w) * length


def schedule_free_rule(w: Tensor, g: Tensor, state: dict[str, Any], t: int, kernel: bool) -> Tensor:
    """Defazio et al. (2024), with x and z as in the paper; the model is at y."""
    x, z = state.get("x", w), state.get("z", w)
    state["v"] = 0.99 * state.get("v", 0) + 0.01 * g**2
    step = g / ((state["v"] / (1 - 0.99**t)).sqrt() + 1e-6) + 0.1 * kernel * w
    z = z - 0.01 * step
    x = (1 - 1 / t) * x + z / t
    state |= {"x": x, "z": z}
    return 0.1 * z + 0.9 * x


HOW: dict[str, Any] = {
    "lr": 0.01,
    "weight_decay": 0.1,
    "betas": (0.9, 0.99),
    "eps": 1e-6,
    "momentum": 0.8,
    "precondition_every": 3,
}


def grouped(model: nn.Module) -> list[dict[str, Any]]:
    kernels, rest = parts(model)
    return [{"params": kernels, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]


ADAM = {"betas": (0.9, 0.99), "eps": 1e-6}
PEERS: dict[str, Callable[[Any], Any]] = {
    "sgd": lambda model: torch.optim.SGD(grouped(model), 0.01, momentum=0.8),
    "adam": lambda model: torch.optim.Adam(grouped(model), 0.01, **ADAM),
    "adamw": lambda model: torch.optim.AdamW(grouped(model), 0.01, **ADAM),
    "adafactor": lambda model: torch.optim.Adafactor(grouped(model), 0.01),
    "lamb": lambda model: timm_optim().Lamb(grouped(model), 0.01, max_grad_norm=None, **ADAM),
    "lars": lambda model: timm_optim().Lars(
        grouped(model), 0.01, momentum=0.8, trust_coeff=0.001, eps=0.0
    ),
}


@pytest.mark.parametrize("name", PEERS)
def test_as_others_on_the_same_groups(name: str) -> None:
    tolerance = 2e-6 if name == "adafactor" else 1e-7  # of gradients that are rounding alone
    same(*both(settings(optimizer=name), lambda model: PEERS[name](model).step), tolerance)


def test_shampoo_by_its_formulas() -> None:
    how = settings(optimizer="shampoo")
    same(*both(how, lambda model: by_formula(model, shampoo_rule)), 1e-7)


def test_schedule_free_by_its_formulas() -> None:
    ours, theirs = tiny(), tiny()
    optimizer = build(ours, settings(optimizer="schedule-free"))
    learn(ours, optimizer.step)
    states: dict[str, dict[str, Any]] = {}

    def rule(w: Tensor, g: Tensor, state: dict[str, Any], t: int, kernel: bool) -> Tensor:
        states[str(len(states))] = state
        return schedule_free_rule(w, g, state, t, kernel)

    learn(theirs, by_formula(theirs, rule))
    before = copy.deepcopy(ours.state_dict())  # theirs adds 1e-15 to the second moment
    average = evaluation_weights(ours, optimizer)
    averages = [state["x"] for state in list(states.values())[: len(list(theirs.parameters()))]]
    for mine, y, x, other in zip(
        average.parameters(), ours.parameters(), averages, theirs.parameters(), strict=True
    ):
        torch.testing.assert_close(y, other, rtol=0, atol=1e-5)
        torch.testing.assert_close(mine, x, rtol=0, atol=1e-5)
        assert not torch.equal(mine, y)
    assert all(torch.equal(before[name], tensor) for name, tensor in ours.state_dict().items())


def test_soap_gets_its_options() -> None:
    found = build(tiny(), settings(optimizer="soap")).param_groups[0]
    assert (found["betas"], found["eps"], found["weight_decay"]) == ((0.9, 0.99), 1e-6, 0.1)
    assert found["precondition_frequency"] == 3


def test_muon_as_timm() -> None:
    def peer(model: Any) -> Callable[[], None]:
        named = dict(model.named_parameters())
        inner = [n for n, w in named.items() if n.startswith("blocks.") and decays(n, w)]
        assert {named[name].ndim for name in inner} == {2}
        other = [w for n, w in named.items() if n not in inner]
        kernels = [w for n, w in named.items() if n not in inner and decays(n, w)]
        rest = [w for w in other if all(w is not kernel for kernel in kernels)]
        both_ = [{"params": kernels, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
        second = torch.optim.AdamW(both_, 0.01, betas=(0.9, 0.99), eps=1e-6, foreach=False)
        first = timm_optim().Muon(
            [{"params": [named[n] for n in inner], "use_fallback": False}],
            lr=0.01,
            momentum=0.8,
            nesterov=True,
            weight_decay=0.1,
            adjust_lr_fn="match_rms_adamw",
            ns_coefficients="original",
        )

        def step() -> None:
            first.step()
            second.step()

        return step

    # its iterations are in bfloat16, which keeps two or three digits
    same(*both(settings(optimizer="muon"), peer), tolerance=1e-4)


def test_sam_as_pytorch_optimizer() -> None:
    import pytorch_optimizer as more

    ours, theirs = tiny(), tiny()
    optimizer = build(ours, settings(optimizer="sgd"))

    def step() -> None:
        number = len(numbers)
        numbers.append(number)
        with uphill(ours, 0.05):
            learn(ours, lambda: None, 1, number)
        optimizer.step()

    numbers: list[int] = []
    learn(ours, step)
    peer = more.SAM(grouped(theirs), torch.optim.SGD, rho=0.05, lr=0.01, momentum=0.8)

    def again() -> None:
        number = len(numbers)
        numbers.append(number)
        peer.step(lambda: learn(theirs, lambda: None, 1, number))

    numbers = []
    learn(theirs, again)
    same(ours, theirs, tolerance=1e-7)  # theirs takes the gradient's length in single precision


def test_sam_leaves_weights_and_running_statistics_as_they_were() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).train()
    model(torch.randn(8, 3)).square().sum().backward()
    before = copy.deepcopy(model.state_dict())
    with uphill(model, 0.3), statistics_kept(model):
        apart = [(mine.detach() - before[name]).norm() for name, mine in model.named_parameters()]
        assert float(torch.stack(apart).norm()) == pytest.approx(0.3, rel=1e-4)
        assert all(weight.grad is None for weight in model.parameters())
        model(torch.randn(8, 3)).square().sum().backward()
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    model(torch.randn(8, 3))
    assert not torch.equal(model.state_dict()["1.running_mean"], before["1.running_mean"])


def test_roots() -> None:
    generator = torch.Generator().manual_seed(0)
    square = torch.randn(7, 7, generator=generator, dtype=torch.float64)
    matrix = square @ square.T
    root = inverse_root(matrix, 4)
    ridge = 1e-6 * torch.linalg.eigvalsh(matrix)[-1] * torch.eye(7)
    torch.testing.assert_close(root @ root @ root @ root @ (matrix + ridge), torch.eye(7).double())
    assert torch.equal(inverse_root(torch.zeros(3, 3), 4), torch.eye(3))


def test_who_takes_what() -> None:
    model = tiny(pool="attention", pre_logits=6)
    names = {id(weight): name for name, weight in model.named_parameters()}
    muon = build(model, Optimization(optimizer="muon", weight_decay=0.3))
    assert isinstance(muon, OptimizerPair)
    inner = {names[id(w)] for group in muon.parts[0].param_groups for w in group["params"]}
    kinds = {"qkv.weight", "project.weight", "expand.weight", "contract.weight"}
    assert len(inner) == 8
    assert all(name.startswith("blocks.") for name in inner)
    assert {".".join(name.split(".")[-2:]) for name in inner} == kinds
    for kind in NAMES:
        optimizer = build(model, Optimization(optimizer=kind, weight_decay=0.3))
        taken = [names[id(w)] for group in optimizer.param_groups for w in group["params"]]
        assert sorted(taken) == sorted(names.values()), kind
        for group in optimizer.param_groups:
            for weight in group["params"]:
                want = 0.3 if decays(names[id(weight)], weight) else 0.0
                assert group["weight_decay"] == want


def test_layer_decay_by_beits_rule() -> None:
    model = vitlab.create("ViT-Ti3/8", 5, 16)
    optimizer = build(model, Optimization(layer_decay=0.5, lr=1.0))
    set_rate(optimizer, 0.2)
    rates = {id(w): g["lr"] for g in optimizer.param_groups for w in g["params"]}
    for name, weight in model.named_parameters():
        exponent = 4 - model.layer_of(name)
        assert rates[id(weight)] == pytest.approx(0.2 * 0.5**exponent)
        expected = {"stem": 4, "token": 4, "positions": 4, "norm": 0, "head": 0}
        first = name.split(".")[0]
        assert exponent == (3 - int(name.split(".")[1]) if first == "blocks" else expected[first])
    peer = timm().create_model("vit_tiny_patch16_224", depth=3, img_size=32)
    theirs = timm_optim().param_groups_layer_decay(peer, layer_decay=0.5)
    scales = {g["lr_scale"] for g in theirs}
    assert scales == {g["lr_scale"] for g in optimizer.param_groups}


@pytest.mark.parametrize(("number", "kind"), [*enumerate(NAMES)])
def test_the_classifier_has_its_own_rate(number: int, kind: str) -> None:
    model, layer_decay = tiny(pre_logits=6), (1.0, 0.5)[number % 2]
    names = {id(weight): name for name, weight in model.named_parameters()}
    rates, own = {}, {"head.classify.weight", "head.classify.bias"}
    for head_lr in (None, 0.7, 0.2):  # the last is that of all else
        how = Optimization(optimizer=kind, lr=0.2, head_lr=head_lr, layer_decay=layer_decay)
        optimizer = build(model, how)
        set_rate(optimizer, 0.1)  # half of the peak
        found = {names[id(w)]: g["lr"] for g in optimizer.param_groups for w in g["params"]}
        assert found.keys() == set(names.values())
        rates[head_lr] = found
        set_rate(optimizer, 0.1, head_only=True)
        moving = {names[id(w)] for g in optimizer.param_groups if g["lr"] for w in g["params"]}
        assert moving == (own if head_lr else set())
    assert rates[0.2] == pytest.approx(rates[None])
    for name, rate in rates[0.7].items():
        assert rate == pytest.approx(0.35 if name in own else rates[None][name]), name


@pytest.mark.parametrize("tune", ["lora", "head"])
def test_the_classifier_has_its_own_rate_beside_what_is_frozen(tune: Any) -> None:
    model = vitlab.create("ViT(width=12,depth=2,heads=2,mlp=20)/4", 5, 8)
    begin_tuning(model, Start(tune=tune), torch.Generator().manual_seed(0))
    optimizer = build(model, Optimization(lr=0.1, head_lr=0.3, layer_decay=0.9))
    set_rate(optimizer, 0.1)
    head = {id(weight) for weight in model.head.classify.parameters()}
    for group in optimizer.param_groups:
        for weight in group["params"]:
            assert weight.requires_grad
            assert (group["lr"] == pytest.approx(0.3)) == (id(weight) in head)
            assert group["lr"] < 0.31


def test_another_rate_within_a_run_leaves_that_of_the_classifier() -> None:
    model, how = tiny(), Optimization(lr=0.1, head_lr=0.3)
    optimizer = build(model, how)
    learn(model, optimizer.step, 1)
    tensors, rest = pack(optimizer)
    later = build(model, replace(how, lr=0.5))  # above that of the classifier
    unpack(later, tensors, rest)
    set_rate(later, 0.5)
    names = {id(weight): name for name, weight in model.named_parameters()}
    for group in later.param_groups:
        for weight in group["params"]:
            head = names[id(weight)].startswith("head.classify.")
            assert group["lr"] == pytest.approx(0.3 if head else 0.5)
            kept = optimizer.state[weight]["exp_avg"]
            assert torch.equal(later.state[weight]["exp_avg"], kept)


@pytest.mark.parametrize("positions", ["bias", "relative"])
def test_a_block_s_table_of_relative_positions_learns_as_its_block(positions: str) -> None:
    """As in BEiT's code; a table of all blocks counts as the first layer."""
    model = vitlab.create("ViT(width=16,depth=3,heads=1,mlp=16)/4", 5, 8, positions=positions)
    tables = [name for name, _ in model.named_parameters() if name.startswith("positions.")]
    assert {model.layer_of(name) - int(name.split(".")[1]) for name in tables} == {1}
    assert {"positions.1", "positions.2"} <= {
        ".".join(name.split(".")[:2]) for name in free_names(model, "last", 2) if name in tables
    }


def test_layer_decay_in_a_resnet_counts_its_units() -> None:
    model = vitlab.create("BiT-R(2-1)x1", 5, 32)
    depth = {
        "body.root.weight": 0,
        "body.stages.0.0.conv1.weight": 1,
        "body.stages.0.1.norm2.bias": 2,
        "body.stages.1.0.shortcut.weight": 3,
        "body.norm.weight": 4,
        "classify.bias": 4,
    }
    assert {name: model.layer_of(name) for name in depth} == depth
    assert set(depth) <= dict(model.named_parameters()).keys()
    assert model.layers == 4
    optimizer = build(model, Optimization(layer_decay=0.5))
    assert {g["lr_scale"] for g in optimizer.param_groups} == {1, 0.5, 0.25, 0.125, 0.0625}
    with pytest.raises(vitlab.UserError, match="needs a model of layers: set layer_decay=1"):
        build(nn.Linear(2, 2), Optimization(layer_decay=0.5))


def test_schedule_free_refuses_batch_norm() -> None:
    model = vitlab.create("ViT-Ti1/8", 5, 16, stem="hmlp", stem_norm="batch")
    with pytest.raises(vitlab.UserError, match="for which batch norm has no statistics"):
        build(model, Optimization(optimizer="schedule-free"))


def state_of(how: Optimization) -> RunState:
    model = tiny().float()
    average = None if how.optimizer == "schedule-free" else WeightAverage(model, 0.9)
    return RunState(model, average, build(model, how))


def go_on(state: RunState, how: Optimization, first: int, steps: int) -> None:
    numbers = iter(range(first, first + steps))

    def step() -> None:
        number = next(numbers)
        if how.rho:
            with uphill(state.model, how.rho):
                learn(state.model, lambda: None, 1, number)
        set_rate(state.optimizer, how.lr / (1 + number))
        state.optimizer.step()
        if state.average is not None:
            state.average.update(state.model, number)

    learn(state.model, step, steps, first)


@pytest.mark.parametrize(("number", "name"), [*enumerate(NAMES)])
def test_resumed_or_put_back_to_the_start_the_bits_are_the_same(
    number: int, name: str, tmp_path: Path
) -> None:
    """With SAM for every other one."""
    how = settings(optimizer=name, rho=0.1 * (number % 2), layer_decay=0.8)
    whole, first, second = (state_of(how) for _ in range(3))
    start = copy.deepcopy(second.checkpoint())
    go_on(whole, how, 0, 6)
    go_on(first, how, 0, 3)
    checkpoints.save(tmp_path, 3, first.checkpoint())
    found, remarks = checkpoints.load(tmp_path)
    assert found is not None
    assert not remarks
    for begin, done in ((found, 3), (start, 0)):
        second.restore(begin)
        go_on(second, how, done, 6 - done)
        for mine, other in ((second.model, whole.model), (second.evaluated, whole.evaluated)):
            for key, tensor in other.state_dict().items():
                assert torch.equal(mine.state_dict()[key], tensor), key
        ours, theirs = pack(second.optimizer), pack(whole.optimizer)
        assert ours[1] == theirs[1]
        assert all(torch.equal(ours[0][key], tensor) for key, tensor in theirs[0].items())


def test_the_first_checkpoints_still_load() -> None:
    how = settings()
    state = state_of(how)
    go_on(state, how, 0, 3)
    saved = copy.deepcopy(state.checkpoint())
    old = {key: value for key, value in saved.state.items() if key != "optimizer"}
    again = state_of(how)
    again.restore(checkpoints.Checkpoint(saved.tensors, old))
    go_on(state, how, 3, 2)
    go_on(again, how, 3, 2)
    for key, tensor in state.model.state_dict().items():
        assert torch.equal(again.model.state_dict()[key], tensor)


@pytest.fixture(autouse=True, scope="module")
def _few_digits() -> Iterator[None]:
    with fewer_digits():
        yield


def test_a_run_resumes_and_keeps_the_weights_it_evaluated(tmp_path: Path) -> None:
    how = {"optimizer": "schedule-free", "schedule": "constant", "ema": 0.0, "rho": 0.05}
    name = "ViT(width=16,depth=1,heads=2,mlp=32)/4"
    base = {"model": name, "batch": 48, "steps": 4, "dropout": 0.1, "micro_batch": 32}
    recipe = vitlab.recipe("digits", **base | how)
    whole = vitlab.train(recipe, tmp_path / "whole", host=LIGHT)
    with asked_to_stop(2), pytest.raises(KeyboardInterrupt):
        vitlab.train(recipe, tmp_path / "parts", host=LIGHT)
    again = vitlab.train(recipe, tmp_path / "parts", resume=True, host=LIGHT)
    for key, tensor in whole.model.state_dict().items():
        assert torch.equal(again.model.state_dict()[key], tensor), key
    figures = vitlab.evaluate(vitlab.load(again.folder), "digits")
    assert figures["nll"] == pytest.approx(whole.metrics["nll"])


def test_sam_accumulates(tmp_path: Path) -> None:
    base = {"model": "ViT(width=16,depth=2,heads=2,mlp=32)/4", "batch": 48, "steps": 2}
    base |= {"ema": 0.0, "optimizer": "sgd"}
    runs = [
        vitlab.train(
            vitlab.recipe("digits", **base | {"rho": 0.1, "micro_batch": micro}),
            tmp_path / str(micro),
            host=LIGHT,
        )
        for micro in (0, 20)
    ]
    without = vitlab.train(vitlab.recipe("digits", **base), tmp_path / "w", host=LIGHT)
    states = [run.model.state_dict() for run in (*runs, without)]
    for name, tensor in states[0].items():
        torch.testing.assert_close(states[1][name], tensor, rtol=0, atol=1e-5)
    assert any((states[2][n] - t).abs().max() > 1e-5 for n, t in states[0].items())


def test_a_gradient_that_sam_cannot_climb_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, passes, models = Trainer.forward, [], set()

    def poisoned(self: Trainer, *inputs: Any) -> Any:
        mean, metrics = real(self, *inputs)
        passes.append(mean)
        models.add(self.model)
        if len(passes) == 5:  # two in every step: the third's first
            mean.register_hook(lambda gradient: gradient * math.inf)
        return mean, metrics

    monkeypatch.setattr(Trainer, "forward", poisoned)
    name = "ViT(width=16,depth=1,heads=2,mlp=32)/4"
    recipe = vitlab.recipe("digits", model=name, steps=4, rho=0.1, batch=16)
    assert vitlab.train(recipe, tmp_path / "run", host=LIGHT).metrics["skipped_steps"] == 1
    assert len(passes) == 8
    assert all(torch.isfinite(weight).all() for weight in models.pop().parameters())


def test_the_table_says_which_options_an_optimizer_has() -> None:
    assert users("momentum") == ("sgd", "lars", "muon")
    assert users("precondition_every") == ("shampoo", "soap")
    assert set(OPTIMIZERS) - set(users("betas")) == {"sgd", "adafactor", "lars"}
    assert users("betas") == users("eps")
    assert "muon updates only matrices inside blocks, adamw the rest" in about()
    assert "lars updates only kernels, sgd the rest" in about()
    assert "lamb" not in about()
    assert {name for name, each in OPTIMIZERS.items() if each.slices} == {"sgd", "adam", "adamw"}
    assert [name for name, each in OPTIMIZERS.items() if each.own_schedule] == ["schedule-free"]
    fused = {name for name in NAMES if can_skip(build(tiny(), Optimization(optimizer=name)))}
    assert fused == {"adam", "adamw"}


def test_the_command_line_reads_the_table_without_pytorch() -> None:
    words = "import sys, vitlab.recipes.recipe; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", words], check=True)
