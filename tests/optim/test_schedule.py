"""Learning rates, weight decay's reach and the weight average."""

import importlib
import math
from itertools import pairwise
from typing import Any

import pytest
import torch

import vitlab
from oracles.peers import timm
from vitlab.optim.averaging import WeightAverage
from vitlab.optim.optimizers import build, decayed
from vitlab.optim.schedule import learning_rate
from vitlab.recipes.optimization import Optimization
from vitlab.recipes.schedule import Schedule
from vitlab.training.plan import evaluation_steps
from vitlab.training.step import step_seed


def rates(total: int, warmup: float, **how: object) -> list[float]:
    return [learning_rate(s, total, 1.0, 2.0, Schedule(warmup=warmup, **how)) for s in range(total)]


def test_warmup_reaches_the_peak_and_the_end_is_reached() -> None:
    up = rates(100, 10, schedule="linear")
    assert up[:10] == pytest.approx([2.0 * (s + 1) / 10 for s in range(10)])
    assert up[10] == 2.0
    assert up[-1] == 0.0
    assert all(a >= b for a, b in pairwise(up[10:]))
    assert rates(20, 5, schedule="constant")[5:] == [2.0] * 15
    assert rates(1, 0) == [0.0]  # the only step is the last
    assert rates(1, 1) == [2.0]
    assert rates(2, 0) == [2.0, 0.0]
    assert all(math.isfinite(rate) for rate in rates(5, 50))


def vit_jax(step: int, total: int, base: float, decay: str, warmup: int, end: float) -> float:
    """The rule of the ViT paper's code, from the reference: shape, times the way up."""
    progress = min(max((step - warmup) / (total - warmup), 0.0), 1.0)
    if decay == "linear":
        rate = end + (base - end) * (1 - progress)
    else:
        rate = base * 0.5 * (1 + math.cos(math.pi * progress))
    return rate * min(1.0, step / warmup)


@pytest.mark.parametrize(("shape", "end"), [("linear", 1e-5), ("cosine", 0.0)])
def test_as_in_the_vit_paper(shape: str, end: float) -> None:
    """Ours begins with the rate that theirs has after a step, and ends on theirs' last."""
    how = Schedule(schedule=shape, warmup_steps=20, final_lr=end / 8e-4)
    ours = [learning_rate(step, 200, 1.0, 8e-4, how) for step in range(200)]
    assert ours[:20] == pytest.approx(
        [vit_jax(s + 1, 199, 8e-4, shape, 20, end) for s in range(20)]
    )
    assert ours[20:] == pytest.approx(
        [vit_jax(s, 199, 8e-4, shape, 20, end) for s in range(20, 200)]
    )
    assert ours[-1] == pytest.approx(end)


def test_cosine_with_warmup_agrees_with_timm() -> None:
    timm()
    scheduler = importlib.import_module("timm.scheduler")
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=2.0)
    theirs = scheduler.CosineLRScheduler(
        optimizer,
        t_initial=89,
        lr_min=0.02,
        warmup_t=10,
        warmup_lr_init=0.2,
        warmup_prefix=True,
        t_in_epochs=False,
    )
    how = Schedule(warmup_steps=10, final_lr=0.01)
    ours = [learning_rate(step, 100, 1.0, 2.0, how) for step in range(100)]
    assert ours[:10] == pytest.approx([2.0 * (s + 1) / 10 for s in range(10)])
    assert ours[10:] == pytest.approx([theirs._get_lr(step)[0] for step in range(10, 100)])


def test_reciprocal_square_root_with_a_cooldown_as_in_big_vision() -> None:
    how = Schedule(schedule="rsqrt", warmup=2, cooldown=3, timescale=40)
    ours = [learning_rate(step, 200, 10.0, 2.0, how) for step in range(200)]
    for step in range(20, 200):
        want = 2.0 / math.sqrt(1 + (step - 20) / 40) * min(1.0, (199 - step) / 30)
        assert ours[step] == pytest.approx(want)
    assert ours[19] == ours[20] == 2.0
    assert ours[60] == pytest.approx(2.0 / math.sqrt(2))
    assert ours[-1] == 0.0


FEW = {"steps": 500, "warmup_steps": 100, "drops": (0.4, 0.6, 0.8), "mixup": 0.0}


# BiT's hyper-rule: end of the warm-up, three drops, end; Mixup
@pytest.mark.parametrize(
    ("given", "table", "mixup"),
    [
        (FEW, (100, 200, 300, 400, 500), 0.0),
        ({}, (500, 3000, 6000, 9000, 10_000), 0.1),
        ({"steps": 20_000}, (500, 6000, 12_000, 18_000, 20_000), 0.1),
    ],
)
def test_bits_rule(given: dict[str, Any], table: tuple[int, ...], mixup: float) -> None:
    recipe = vitlab.recipe("bit-finetune", **given)
    how, schedule = recipe.optimizer, recipe.schedule
    assert (recipe.steps, recipe.augment.mixup, recipe.batch) == (table[-1], mixup, 512)
    assert (how.optimizer, how.lr, how.momentum, how.weight_decay) == ("sgd", 0.003, 0.9, 0)
    points = [each + near for each in table[:-1] for near in (-1, 0)] + [table[-1] - 1]
    ours = [learning_rate(step, recipe.steps, 1.0, how.lr, schedule) for step in points]
    assert ours == pytest.approx([3e-3] * 3 + [3e-4] * 2 + [3e-5] * 2 + [3e-6] * 2)
    config = vitlab.recipe("bit-finetune", model="BiT-R50x1", **given).model.config(classes=2)
    assert (config.image_size, config.fit, config.crop) == (480, "squash", 1.0)
    assert recipe.augment.area == pytest.approx(480**2 / 512**2)


def test_only_kernels_are_decayed() -> None:
    model = vitlab.create("ViT-Ti/8", 5, 16, depth=1, pre_logits=8)
    assert decayed(model) == {
        "stem.layers.0.weight",
        "blocks.0.attention.0.body.qkv.weight",
        "blocks.0.attention.0.body.project.weight",
        "blocks.0.mlp.0.body.expand.weight",
        "blocks.0.mlp.0.body.contract.weight",
        "head.pre_logits.weight",
        "head.classify.weight",
    }
    model.stem.requires_grad_(False)
    groups = build(model, Optimization(weight_decay=0.3)).param_groups
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


def test_polyaks_average_has_one_decay_from_the_start() -> None:
    model = torch.nn.Linear(2, 1)
    average = WeightAverage(model, 0.9, warmup=False)
    want = model.weight.detach().clone().double()
    for updates in range(5):
        with torch.no_grad():
            model.weight.add_(1.0)
        average.update(model, updates)
        want = 0.9 * want + 0.1 * model.weight.detach().double()
    torch.testing.assert_close(average.model.weight.double(), want, rtol=0, atol=1e-6)


def test_looks_at_the_test_images() -> None:
    assert evaluation_steps(10, 3) == {3, 6, 10}
    assert evaluation_steps(12, 3) == {3, 6, 9, 12}
    assert evaluation_steps(782, 97.65625) == {98, 195, 293, 391, 488, 586, 684, 782}
    assert evaluation_steps(10, 100) == {10}
    assert evaluation_steps(3, 0.1) == {1, 2, 3}


def test_steps_have_seeds_of_their_own() -> None:
    seeds = {step_seed(seed, step) for seed in range(5) for step in range(100)}
    assert len(seeds) == 500
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_the_average_of_a_model_with_batch_norm_has_its_statistics() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    average = WeightAverage(model, 0.9)
    model(torch.randn(8, 2) + 5)
    average.update(model, 0)
    for mine, new in zip(average.model.buffers(), model.buffers(), strict=True):
        assert torch.equal(mine, new)
    assert average.model[1].num_batches_tracked == 1
    assert not average.model.training
