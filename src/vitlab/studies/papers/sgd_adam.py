"""ResNets pre-trained with Adam and with SGD, then fine-tuned by SGD (ViT, Table 7 and D.1).

The paper pre-trains R50x1 and R152x2 on JFT-300M, by Adam with the settings of its Table 3 and by
SGD with those of Kolesnikov et al. (BiT), and fine-tunes both by SGD.

Small budgets pre-train BiT-R(1-1-1)x1, which costs what the base ViT does, and BiT-R(2-2-2)x1,
each optimizer with its own three learning rates, chosen on held-out training images. Both are then
fine-tuned in 100 steps of SGD on the downstream data. Unless other data are named, these are the
built-in digits: little like photographs, but with classes that pre-training has not seen. Where
pre-training is on the digits too, it is no transfer at all, and only the procedure is tested.
"""

from pathlib import Path

from vitlab.recipes.recipe import Recipe
from vitlab.studies.base import Base, small
from vitlab.studies.design import ACCURACY, NLL, TRAIN_LOSS, Arm, Study
from vitlab.studies.papers import claims_of, table

PAPER_MODELS = {"small": "BiT-R50x1", "large": "BiT-R152x2"}
SMALL_MODELS = {"small": "BiT-R(1-1-1)x1", "large": "BiT-R(2-2-2)x1"}
TITLES = {"adamw": "AdamW", "sgd": "SGD"}
RATES = (0.3, 1.0, 3.0)
IMAGENET_RATES = (0.1, 1 / 3, 1.0, 2.0)  # 0.003 to 0.06, ImageNet's row of Table 4
FINE_TUNING = 100  # steps


def arms(base: Base) -> tuple[Arm, ...]:
    """Return pre-training and fine-tuning by size and optimizer."""
    found = []
    for name, printed in table("sgd-adam").items():
        size, optimizer = name.split("-")
        model = (PAPER_MODELS if base.paper else SMALL_MODELS)[size]
        before, title = f"{name}-pretraining", TITLES[optimizer]
        first, tuned = _pretraining(base, model, optimizer), _tuned(base, model)
        rates = ((), IMAGENET_RATES) if base.paper else (RATES, RATES)
        found.append(Arm(before, first, (model, title, "pre-training"), rates=rates[0]))
        cells = (model, title, f"fine-tuning: {Path(tuned.data.data).name}")
        found.append(Arm(name, tuned, cells, printed, before, rates[1]))
    return tuple(found)


def _pretraining(base: Base, model: str, optimizer: str) -> Recipe:
    """Return the pre-training; the paper's searches no learning rate.

    SGD as big_vision trains BiT: 0.03 per 256 images, L2 of 1e-4 (its 3e-5 is decoupled), cosine,
    5,000 steps of warm-up. The BiT paper's steps in the learning rate fit 40 epochs, not these 7.
    """
    recipe = base.either("vit-jft", model)
    if optimizer != "sgd":
        return recipe
    recipe = recipe.changed(optimizer="sgd", lr=0.05, weight_decay=1e-4, momentum=0.9)
    if not base.paper:
        return recipe
    rate = 0.03 * recipe.batch / 256
    return recipe.changed(lr=rate, schedule="cosine", final_lr=0.0, warmup_steps=5000)


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


SGD_ADAM = Study(
    "Adam and SGD for pre-training ResNets",
    "ViT paper, Table 7 and D.1",
    ("model", "pre-trained with", "accuracy of"),
    arms,
    (ACCURACY, NLL, TRAIN_LOSS),
    claims=claims_of("sgd-adam"),
    note="AdamW stands for the paper's Adam with a decay of 0.1 times the learning rate.",
)
