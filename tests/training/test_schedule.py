"""Learning rates, weight decay's reach and the weight average."""

import math
from itertools import pairwise

import pytest
import torch

import vitlab
from vitlab.training.averaging import WeightAverage
from vitlab.training.loop import step_seed, test_steps
from vitlab.training.optimisers import build, decays
from vitlab.training.recipe import Optimiser, Schedule
from vitlab.training.schedule import learning_rate

points_of_test = test_steps  # pytest would take the function itself for a test
del test_steps


def rates(total: int, warmup: float, **how: object) -> list[float]:
    return [learning_rate(s, total, 1.0, 2.0, Schedule(warmup=warmup, **how)) for s in range(total)]


def test_cosine_agrees_with_torch() -> None:
    weight = torch.nn.Parameter(torch.zeros(1))
    optimiser = torch.optim.SGD([weight], lr=2.0)
    torchs = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, T_max=49, eta_min=0.2)
    for ours in rates(50, 0, schedule="cosine", final_lr=0.1):
        assert ours == pytest.approx(optimiser.param_groups[0]["lr"], abs=1e-6)
        optimiser.step()
        torchs.step()


def test_warmup_reaches_the_peak_and_the_end_is_reached() -> None:
    up = rates(100, 10, schedule="linear")
    assert up[:10] == pytest.approx([2.0 * (s + 1) / 10 for s in range(10)])
    assert up[10] == 2.0
    assert up[-1] == 0.0
    assert all(a >= b for a, b in pairwise(up[10:]))
    assert rates(20, 5, schedule="constant")[5:] == [2.0] * 15
    assert rates(1, 0) == [0.0] or rates(1, 0) == [2.0]
    assert all(math.isfinite(rate) for rate in rates(5, 50))


def test_only_kernels_are_decayed() -> None:
    model = vitlab.create("ViT-Ti/8", 5, 16, depth=1, pre_logits=8)
    kernels = {name for name, weight in model.named_parameters() if decays(name, weight)}
    assert kernels == {
        "stem.layers.0.weight",
        "blocks.0.attention.0.body.qkv.weight",
        "blocks.0.attention.0.body.project.weight",
        "blocks.0.mlp.0.body.expand.weight",
        "blocks.0.mlp.0.body.contract.weight",
        "head.pre_logits.weight",
        "head.classify.weight",
    }
    model.stem.requires_grad_(False)
    groups = build(model, Optimiser(weight_decay=0.3)).param_groups
    assert [group["weight_decay"] for group in groups] == [0.3, 0.0]
    total = sum(len(group["params"]) for group in groups)
    assert total == len(list(model.parameters())) - 2


def test_the_average_is_the_sum_written_out() -> None:
    model = torch.nn.Linear(2, 1)
    average = WeightAverage(model, 0.9)
    want = model.weight.detach().clone().double()
    for updates in range(40):
        with torch.no_grad():
            model.weight.add_(torch.randn(1, 2))
        average.update(model, updates)
        decay = min(0.9, (1 + updates) / (10 + updates))
        want = decay * want + (1 - decay) * model.weight.detach().double()
    torch.testing.assert_close(average.model.weight.double(), want, rtol=0, atol=1e-5)
    assert not average.model.weight.requires_grad


def test_looks_at_the_test_images() -> None:
    assert points_of_test(10, 3) == {3, 6, 10}
    assert points_of_test(12, 3) == {3, 6, 9, 12}
    assert points_of_test(782, 97.65625) == {98, 195, 293, 391, 488, 586, 684, 782}
    assert points_of_test(10, 100) == {10}
    assert points_of_test(3, 0.1) == {1, 2, 3}


def test_steps_have_seeds_of_their_own() -> None:
    seeds = {step_seed(seed, step) for seed in range(5) for step in range(100)}
    assert len(seeds) == 500
    assert all(0 <= seed < 2**63 for seed in seeds)
