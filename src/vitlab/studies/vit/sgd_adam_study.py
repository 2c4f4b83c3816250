"""ResNets pre-trained with Adam and with SGD, then fine-tuned by SGD (ViT, Table 7 and D.1).

The paper pre-trains R50x1 and R152x2 on JFT-300M, by Adam with the settings of its Table 3 and by
SGD with those of Kolesnikov et al. (BiT), and fine-tunes both by SGD.

Small budgets pre-train BiT-R(1-1-1)x1, which costs what the base ViT does, and BiT-R(2-2-2)x1,
each optimizer with its own three learning rates, chosen on held-out training images. Both are then
fine-tuned in 100 steps of SGD on the downstream data. Unless other data are named, these are the
built-in digits: little like photographs, but with classes that pre-training has not seen. Where
pre-training is on the digits too, it is no transfer at all, and only the procedure is tested.
"""

from dataclasses import dataclass
from pathlib import Path

from vitlab.recipes.recipe import Recipe
from vitlab.studies.grid.base import Base
from vitlab.studies.grid.design import ACCURACY, NLL, TRAIN_LOSS, Arm, Study
from vitlab.studies.grid.paper_claims import Claim
from vitlab.studies.small_recipe import small

COLUMNS = ("ImageNet", "CIFAR-10", "CIFAR-100", "Pets", "Flowers", "mean")
# Accuracy after fine-tuning by SGD, by size and optimizer of the pre-training (ViT, Table 7)
PRINTED = {
    ("small", "adamw"): (0.7754, 0.9767, 0.8607, 0.9111, 0.9426, 0.8933),
    ("small", "sgd"): (0.7824, 0.9746, 0.8517, 0.9100, 0.9206, 0.8879),
    ("large", "adamw"): (0.8497, 0.9906, 0.9205, 0.9537, 0.9862, 0.9401),
    ("large", "sgd"): (0.8437, 0.9907, 0.9106, 0.9479, 0.9932, 0.9372),
}
PAPER_MODELS = {"small": "BiT-R50x1", "large": "BiT-R152x2"}
SMALL_MODELS = {"small": "BiT-R(1-1-1)x1", "large": "BiT-R(2-2-2)x1"}
RATES = (0.3, 1.0, 3.0)
IMAGENET_RATES = (0.1, 1 / 3, 1.0, 2.0)  # 0.003 to 0.06, ImageNet's row of Table 4
FINE_TUNING = 100  # steps


@dataclass(frozen=True)
class _Start:
    """A ResNet and the optimizer that pre-trains it."""

    size: str
    optimizer: str

    @property
    def name(self) -> str:
        return f"{self.size}-{self.optimizer}"


def arms(base: Base) -> tuple[Arm, ...]:
    """Return pre-training and fine-tuning by size and optimizer."""
    starts = [_Start(*key) for key in PRINTED]
    return tuple(arm for start in starts for arm in _pair(base, start))


def _pair(base: Base, start: _Start) -> tuple[Arm, Arm]:
    model = (PAPER_MODELS if base.paper else SMALL_MODELS)[start.size]
    cells = (model, {"adamw": "AdamW", "sgd": "SGD"}[start.optimizer])
    first, rates = _published(base, model, start) if base.paper else _small(base, model, start)
    before = f"{start.name}-pretraining"
    printed = dict(zip(COLUMNS, PRINTED[start.size, start.optimizer], strict=True))
    tuned = _tuned(base, model)
    return (
        Arm(before, first, (*cells, "pre-training"), rates=rates),
        Arm(
            start.name,
            tuned,
            (*cells, f"fine-tuning: {Path(tuned.data.data).name}"),
            printed,
            after=before,
            rates=IMAGENET_RATES if base.paper else RATES,
        ),
    )


def _published(base: Base, model: str, start: _Start) -> tuple[Recipe, tuple[float, ...]]:
    """Return the paper's pre-training, which searches no learning rate.

    SGD as big_vision trains BiT: 0.03 per 256 images, L2 of 1e-4 (its 3e-5 is decoupled), cosine,
    5,000 steps of warm-up. The BiT paper's steps in the learning rate fit 40 epochs, not these 7.
    """
    recipe = base.published("vit-jft", model)
    if start.optimizer == "sgd":
        recipe = recipe.changed(
            optimizer="sgd", lr=0.03 * recipe.batch / 256, weight_decay=1e-4, momentum=0.9,
            schedule="cosine", final_lr=0.0, warmup_steps=5000,
        )  # fmt: skip
    return recipe, ()


def _small(base: Base, model: str, start: _Start) -> tuple[Recipe, tuple[float, ...]]:
    recipe = base.model(model)
    if start.optimizer == "sgd":
        recipe = recipe.changed(optimizer="sgd", lr=0.05, weight_decay=1e-4, momentum=0.9)
    return recipe, RATES


def _tuned(base: Base, model: str) -> Recipe:
    """Return fine-tuning by SGD, without weight decay as in the paper's B.1.1."""
    if base.paper:
        data = base.downstream or base.recipe.data.data
        return base.published("vit-finetune", model, data=data)
    data = base.downstream or "digits"
    start = base if data == base.recipe.data.data else Base(small(data))
    size = base.recipe.model.image_size
    recipe = start.model(model, image_size=size).changed(precision=base.recipe.precision)
    recipe = recipe.changed(
        optimizer="sgd", lr=0.03, weight_decay=0.0, momentum=0.9, steps=FINE_TUNING
    )
    return recipe.changed(warmup_steps=FINE_TUNING // 10)


STUDY = Study(
    "Adam and SGD for pre-training ResNets",
    "ViT paper, Table 7 and D.1",
    ("model", "pre-trained with", "accuracy of"),
    arms,
    (ACCURACY, NLL, TRAIN_LOSS),
    claims=(
        Claim("Adam transfers better: the smaller ResNet", ("small-adamw",), ("small-sgd",)),
        Claim("Adam transfers better: the larger ResNet", ("large-adamw",), ("large-sgd",)),
    ),
    note="AdamW stands for the paper's Adam with a decay of 0.1 times the learning rate.",
)
