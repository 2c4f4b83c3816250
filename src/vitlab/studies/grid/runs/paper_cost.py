"""What a paper's own recipes would cost here, by counting: their first step may take an hour."""

import time
from collections.abc import Sequence

import torch

from vitlab.data.learning import splits_of
from vitlab.device import autocast, choose
from vitlab.models.cost import cost
from vitlab.models.create import build
from vitlab.recipes.recipe import Host, Recipe
from vitlab.studies.grid.design import Arm
from vitlab.studies.grid.runs.study_plan import Cost


def counted_costs(arms: Sequence[Arm], host: Host) -> dict[str, Cost]:
    """Return the cost of a run of each arm: its multiply-adds at the rate of this device.

    The backward pass counts twice. Testing is left out, and so is what a recipe saves by hiding
    patches. The rate is that of two images (32 on a GPU) through the smallest model, forward and
    back.

    Args:
        arms: of the study, each after the arm it starts from
        host: where to train

    Raises:
        UserError: data that cannot be opened, or a model that cannot be built.
    """
    steps, macs = dict[str, float](), dict[str, float]()
    named: list[Recipe] = []
    for arm in arms:
        data = arm.recipe.data
        splits = splits_of(data)
        steps[arm.name] = len(splits.train) / arm.recipe.batch
        if arm.recipe.model.model:
            macs[arm.name] = cost(arm.recipe.model.config(classes=10)).macs
            named.append(arm.recipe)
        else:  # the model is that of the arm before
            macs[arm.name] = macs[arm.after or arm.guide]
    pace = rate_of(min(named, key=_macs), host)
    return {
        arm.name: _cost(steps[arm.name], 3 * macs[arm.name] * arm.recipe.batch, pace)
        for arm in arms
    }


def _macs(recipe: Recipe) -> int:
    return cost(recipe.model.config(classes=10)).macs


def _cost(steps: float, macs: float, pace: float) -> Cost:
    return Cost(0.0, macs / pace, steps, macs)


def rate_of(recipe: Recipe, host: Host) -> float:
    """Return the multiply-adds per second of training a recipe's model on this device."""
    where = choose(host.device)
    config = recipe.model.config(classes=10)
    batch = 2 if where.type == "cpu" else 32
    model = build(config).to(where)
    images = torch.randn(batch, config.channels, *config.size, device=where)
    times = []
    for _ in range(2):  # the first one also makes ready
        began = time.perf_counter()
        with autocast(where, "fp32" if where.type == "cpu" else "bf16"):
            total = model(images).float().square().sum()
        total.backward()
        total.detach().item()  # waits for a GPU
        times.append(time.perf_counter() - began)
    return 3 * cost(config).macs * batch / min(times)
