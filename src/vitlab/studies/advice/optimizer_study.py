"""Every optimizer on the same ViT, four of them on a hybrid and a ResNet too, and their minima.

The claims are those of the Weights & Biases article on dos and don'ts of training Vision
Transformers, and of Chen, Hsieh and Gong, When Vision Transformers Outperform ResNets without
Pre-training or Strong Data Augmentations, 2022 (CHG below).

Every row chooses its learning rate on held-out training images. All rows have the same epochs; SAM
computes two gradients per step. Within a budget, the ResNet is BiT-R(2-2)x1 and the hybrid has a
stage of one bottleneck: with the usual small ViT, both are within 4% of its multiply-adds.
"""

import copy
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from vitlab.optim.moments import size
from vitlab.optim.optimizers import build
from vitlab.recipes.choices import Optimization
from vitlab.studies.advice.loss_geometry import geometry_drawings, loss_geometry
from vitlab.studies.advice.similar_cost import LABELS, of_similar_cost
from vitlab.studies.grid.base import Base
from vitlab.studies.grid.design import (
    ACCURACY,
    NLL,
    TRAIN_LOSS,
    Arm,
    Column,
    Picture,
    Study,
    Trained,
)
from vitlab.studies.grid.paper_claims import Claim

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
CURVED = ("adamw", "adamw+sam", "sgd", "shampoo")  # their minima are measured, on every model


def arms(base: Base) -> tuple[Arm, ...]:
    """Return an arm for each optimizer with the ViT, and for four with the hybrid and ResNet."""
    models = of_similar_cost(base, SMALL_RESNET)
    return tuple(
        _arm(base, models, kind, name)
        for kind in LABELS
        for name in (TRIED if kind == "vit" else CURVED)
    )


def _arm(base: Base, models: Mapping[str, str], kind: str, name: str) -> Arm:
    tried, model = TRIED[name], models[kind]
    recipe = base.published("vit-imagenet", model) if base.paper else base.model(model)
    said = (tried.floats, tried.verdict) if kind == "vit" else ("", "")
    return Arm(
        arm_name(kind, name),
        recipe.changed(lr=recipe.optimizer.lr * tried.lr, **tried.choices),
        (LABELS[kind], name, *said),
        rates=RATES,
    )


def arm_name(kind: str, optimizer: str) -> str:
    """Return the name of a row: that of the optimizer, with the model unless it is the ViT."""
    return optimizer if kind == "vit" else f"{kind}-{optimizer}"


def measure(trained: Trained) -> dict[str, float]:
    """Return what an update costs, and the curvature of the loss where it is compared."""
    found = update_cost(trained.model.to(trained.device), trained.recipe.optimizer)
    trained.model.cpu()
    curved = {TRIED[name].choices["optimizer"] for name in CURVED}
    if trained.recipe.optimizer.optimizer in curved:
        found |= loss_geometry(trained)
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


def drawings(folders: Mapping[str, Sequence[Path]]) -> "dict[str, Figure]":
    """Draw the spectra and surfaces, a line of panels for each model."""
    named = {arm_name(kind, name): f"{LABELS[kind]}, {name}" for kind in LABELS for name in CURVED}
    return geometry_drawings({named[name]: folders[name] for name in named if name in folders})


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.1f}"


def _short(value: float) -> str:
    return f"{value:.3g}"


OTHERS = ("sgd", "adam", "adafactor", "lamb", "shampoo", "soap", "muon", "schedule-free")
STUDY = Study(
    "Optimizers, and the minima they find",
    "the Weights & Biases article on dos and don'ts of training ViTs; Chen, Hsieh and Gong, 2022",
    ("model", "optimizer", "article: floats", "article's verdict"),
    arms,
    (
        ACCURACY,
        NLL,
        TRAIN_LOSS,
        Column("step_seconds", "ms per step", _milliseconds),
        Column("update_ms", "ms per update", lambda value: f"{value:.1f}"),
        Column("floats", "floats per parameter", lambda value: f"{value:.2f}", once=True),
        Column("hessian_max", "largest eigenvalue", _short),
        Column("hessian_trace", "trace of the Hessian", _short),
        Column("sharpness", "sharpness", _short),
        Column("noise_increase", "rise by noise", _short),
    ),
    measure=measure,
    claims=(
        Claim("article: SGD converges poorly", ("adamw",), ("sgd",)),
        Claim("article: Adafactor does not really work", ("adamw",), ("adafactor",)),
        Claim("article: Adafactor keeps less than Adam", ("adam",), ("adafactor",), by="floats"),
        Claim("article: AdamW and LARS are the best", ("adamw", "lars"), OTHERS),
        Claim("article: Shampoo is for the largest scale"),
        Claim(
            "CHG: the ViT (AdamW) is in a sharper minimum than the ResNet (SGD)",
            ("adamw",), ("resnet-sgd",), by="hessian_max",
        ),
        Claim("CHG: so it is by the trace", ("adamw",), ("resnet-sgd",), by="hessian_trace"),
        Claim(
            "and so it is with AdamW on both", ("adamw",), ("resnet-adamw",), by="hessian_max"
        ),
        Claim("CHG: SAM flattens the ViT", ("adamw",), ("adamw+sam",), by="hessian_max"),
        Claim("CHG: SAM makes the ViT less sharp", ("adamw",), ("adamw+sam",), by="sharpness"),
        Claim(
            "CHG: SAM flattens the ResNet",
            ("resnet-adamw",), ("resnet-adamw+sam",), by="hessian_max",
        ),
        Claim("CHG: SAM makes the ViT more accurate", ("adamw+sam",), ("adamw",)),
        # (ViT with - without) > (ResNet with - without); the difference shown is half of that
        Claim(
            "CHG: SAM helps the ViT more than the ResNet",
            ("adamw+sam", "resnet-adamw"), ("adamw", "resnet-adamw+sam"),
        ),
        Claim(
            "CHG: with SAM the ViT is better than the ResNet",
            ("adamw+sam",), ("resnet-adamw+sam",),
        ),
    ),
    picture=Picture(labels=2),
    note="Largest eigenvalue, trace, sharpness (rise of the loss by a step of length 0.05 uphill) "
    "and rise by noise of 10% of the weights are of the loss on training images without "
    "augmentation, at the weights that are tested. Models whose weights have other scales can be "
    "compared by the rise by noise alone. Times are of runs at the same time, if there were "
    "several.",
    drawings=drawings,
)  # fmt: skip
