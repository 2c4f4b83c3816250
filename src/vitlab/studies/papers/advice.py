"""Advice on training ViTs: which optimizer, and what models rely on with few and many images.

The claims on optimizers are those of the Weights & Biases article on dos and don'ts of training
Vision Transformers, and of Chen, Hsieh and Gong, When Vision Transformers Outperform ResNets
without Pre-training or Strong Data Augmentations, 2022 (CHG). CHG's sentences on how curved the
loss is are about minima after 300 epochs, which no budget here reaches.
"""

import copy
import math
import time
from collections.abc import Iterator
from typing import Any

import torch

from vitlab.evaluation.inductive_bias import inductive_bias
from vitlab.optim.moments import size
from vitlab.optim.optimizers import build
from vitlab.studies.base import Base, options_of, table
from vitlab.studies.design import Arm, Trained

UPDATES = 20  # timed; twice the steps between two roots of Shampoo
RATES = (0.3, 1.0, 3.0)
# with the usual small ViT, of its multiply-adds within 4% and 2%
SMALL_RESNETS = {"optimizers": "BiT-R(2-2)x1", "bias": "BiT-R(1-1-1)x1"}
SOME = ("adamw", "adamw+sam", "sgd", "shampoo")  # with the hybrid and the ResNet, too
SHARES = {"100": 1.0, "10": 0.1, "1": 0.01}  # of the training images, by percent
IMAGES = 1000  # that are probed
RELATIVE = ("shuffled", "occluded", "shift", "low_pass", "high_pass")


def optimizer_arms(base: Base) -> Iterator[Arm]:
    """Yield an arm for each optimizer with the ViT, and for four with the hybrid and ResNet.

    Every row chooses its learning rate on held-out training images. All rows have the same epochs;
    SAM computes two gradients per step.
    """
    every = table("optimizers")
    for kind, model in base.of_similar_cost(SMALL_RESNETS["optimizers"]).items():
        vit, recipe = kind == "ViT", base.model(model)
        for name in every if vit else SOME:
            tried = every[name]
            options = options_of("optimizer-options", name)
            own = recipe.changed(lr=recipe.optimizer.lr * tried["lr"], **options)
            said = (tried.get("floats", ""), tried.get("verdict", "")) if vit else ("", "")
            named = name if vit else f"{kind.lower()}-{name}"
            yield Arm(named, own, (kind, name, *said), rates=RATES)


def update_cost(trained: Trained) -> dict[str, float]:
    """Return `update_ms`, the mean time of an update, and `floats`, its state per parameter.

    The gradients are noise, which takes as long as real gradients of the same shapes.
    """
    model = copy.deepcopy(trained.model).to(trained.device).requires_grad_(True)
    optimizer = build(model, trained.recipe.optimizer)
    generator = torch.Generator().manual_seed(0)
    for weight in model.parameters():
        noise = torch.randn(weight.shape, generator=generator) * 1e-3
        weight.grad = noise.to(weight.device)
    for _ in range(2):  # the first builds the state
        optimizer.step()
    start = time.perf_counter()
    for _ in range(UPDATES):
        optimizer.step()
    if next(model.parameters()).is_cuda:
        torch.cuda.synchronize()
    each = (time.perf_counter() - start) / UPDATES
    params = sum(weight.numel() for weight in model.parameters())
    return {"update_ms": 1000 * each, "floats": size(optimizer) / 4 / params}


def bias_arms(base: Base) -> Iterator[Arm]:
    """Yield an arm for each architecture and share of the training images.

    All take the same number of steps, so that all runs cost the same; fewer images are passed over
    more often. Each architecture chooses its learning rate on held-out training images, with all
    images, and keeps it with fewer, as in the ViT paper (4.3).
    """
    for percents, share in SHARES.items():
        for kind, model in base.of_similar_cost(SMALL_RESNETS["bias"]).items():
            recipe, whole, name = base.model(model), share == 1, kind.lower()
            if not whole:
                recipe = recipe.changed(train_images=share).lasting(recipe.epochs / share)
            yield Arm(
                f"{name}-{percents}",
                recipe,
                (kind, f"{percents}%"),
                rates=RATES if whole else (),
                x=100 * share,
                line=kind,
                rate_of="" if whole else f"{name}-100",
            )


def relies_on(trained: Trained) -> dict[str, float]:
    """Return what `vitlab.inductive_bias` finds on test images, and shares of the accuracy kept.

    `kept_shuffled_4` is `shuffled_4` above chance, divided by `clean` above chance, which compares
    models of different accuracy: 0 is guessing, and below it is worse than that. What is undefined
    is left out, and so is all of it for a model that is no better than chance.
    """
    found = inductive_bias(
        trained.model, trained.splits.test, images=IMAGES, device=str(trained.device)
    )
    chance = 1 / len(trained.splits.classes)
    clean = found["clean"] - chance
    kept = {
        f"kept_{key}": (value - chance) / clean
        for key, value in found.items()
        if clean > 0 and key.startswith(RELATIVE)
    }
    return {key: value for key, value in (found | kept).items() if not math.isnan(value)}


ROWS: dict[str, dict[str, Any]] = {
    "optimizers": {"arms": optimizer_arms, "measure": update_cost},
    "bias": {"arms": bias_arms, "measure": relies_on},
}
