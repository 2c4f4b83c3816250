"""Every optimizer on the same ViT, four of them on a hybrid and a ResNet too.

The claims are those of the Weights & Biases article on dos and don'ts of training Vision
Transformers, and of Chen, Hsieh and Gong, When Vision Transformers Outperform ResNets without
Pre-training or Strong Data Augmentations, 2022 (CHG below). CHG's sentences on how curved the loss
is are about minima after 300 epochs, which no budget here reaches: `vitlab.inspect` measures the
curvature of any model.

Every row chooses its learning rate on held-out training images. All rows have the same epochs; SAM
computes two gradients per step. Within a budget, the ResNet is BiT-R(2-2)x1 and the hybrid has a
stage of one bottleneck: with the usual small ViT, both are within 4% of its multiply-adds.
"""

import copy
import time
from dataclasses import dataclass, field
from typing import Any

import torch

from vitlab.optim.moments import size
from vitlab.optim.optimizers import build
from vitlab.recipes.choices import Optimization
from vitlab.studies.base import KINDS, Base
from vitlab.studies.design import (
    ACCURACY,
    NLL,
    TRAIN_LOSS,
    Arm,
    Column,
    Picture,
    Study,
    Trained,
)
from vitlab.studies.papers import claims_of

UPDATES = 20  # timed; twice the steps between two roots of Shampoo
RATES = (0.3, 1.0, 3.0)
SMALL_RESNET = "BiT-R(2-2)x1"


@dataclass(frozen=True)
class Tried:
    """An optimizer, and what the article says of it.

    Attributes:
        lr: the middle of its learning rates divided by the recipe's, which is AdamW's
        choices: further options of the recipe
        floats: state in floats per parameter, as the article has it
        verdict: the article's
    """

    lr: float = 1.0
    choices: dict[str, Any] = field(default_factory=dict)
    floats: str = ""
    verdict: str = ""


# L2 decay is as strong as AdamW's decoupled decay once learning rate and momentum have multiplied
# it.
TRIED: dict[str, Tried] = {
    "sgd": Tried(25.0, {"optimizer": "sgd", "weight_decay": 2e-4}, "", "converges poorly"),
    "adam": Tried(1.0, {"optimizer": "adam", "weight_decay": 1e-4}, "2", "3M in all"),
    "adamw": Tried(1.0, {"optimizer": "adamw"}, "2", "the best at usual scale"),
    "adamw+sam": Tried(1.0, {"optimizer": "adamw", "rho": 0.05}),
    "adafactor": Tried(10.0, {"optimizer": "adafactor"}, "O(1)", "does not really work"),
    "lamb": Tried(5.0, {"optimizer": "lamb", "eps": 1e-6, "weight_decay": 0.02}),
    "lars": Tried(
        500.0, {"optimizer": "lars", "weight_decay": 1e-4}, "", "the best at usual scale"
    ),
    "shampoo": Tried(1.0, {"optimizer": "shampoo"}, "", "for the largest scale"),
    "soap": Tried(1.0, {"optimizer": "soap", "betas": (0.95, 0.95)}),
    "muon": Tried(1.0, {"optimizer": "muon", "momentum": 0.95}),
    "schedule-free": Tried(
        2.0, {"optimizer": "schedule-free", "schedule": "constant", "cooldown": 0.0, "ema": 0.0}
    ),
}
SOME = ("adamw", "adamw+sam", "sgd", "shampoo")  # with the hybrid and the ResNet, too


def arms(base: Base) -> tuple[Arm, ...]:
    """Return an arm for each optimizer with the ViT, and for four with the hybrid and ResNet."""
    found = []
    for kind, model in base.of_similar_cost(SMALL_RESNET).items():
        vit = kind == "vit"
        recipe = base.either("vit-imagenet", model)
        for name in TRIED if vit else SOME:
            tried = TRIED[name]
            own = recipe.changed(lr=recipe.optimizer.lr * tried.lr, **tried.choices)
            said = (tried.floats, tried.verdict) if vit else ("", "")
            row = name if vit else f"{kind}-{name}"
            found.append(Arm(row, own, (KINDS[kind], name, *said), rates=RATES))
    return tuple(found)


def measure(trained: Trained) -> dict[str, float]:
    """Return what an update costs."""
    found = update_cost(trained.model.to(trained.device), trained.recipe.optimizer)
    trained.model.cpu()
    return found


def update_cost(model: torch.nn.Module, options: Optimization) -> dict[str, float]:
    """Return `update_ms`, the mean time of an update, and `floats`, its state per parameter.

    The gradients are noise, which takes as long as real gradients of the same shapes.
    """
    model = copy.deepcopy(model).requires_grad_(True)
    optimizer = build(model, options)
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


OPTIMIZERS = Study(
    "Optimizers",
    "the Weights & Biases article on dos and don'ts of training ViTs; Chen, Hsieh and Gong, 2022",
    ("model", "optimizer", "article: floats", "article's verdict"),
    arms,
    (
        ACCURACY,
        NLL,
        TRAIN_LOSS,
        Column("step_seconds", "ms per step", lambda seconds: f"{1000 * seconds:.1f}"),
        Column("update_ms", "ms per update", lambda value: f"{value:.1f}"),
        Column("floats", "floats per parameter", lambda value: f"{value:.2f}", once=True),
    ),
    measure,
    claims_of("optimizers"),
    Picture(labels=2),
    "Times are of runs at the same time, if there were several.",
)
