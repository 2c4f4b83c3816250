"""Learning without labels within a budget, and fine-tuning after it."""

from typing import Any

from vitlab.models.names import shape_of
from vitlab.recipes.model_part import ModelPart
from vitlab.recipes.named import of_weights
from vitlab.recipes.recipe import Recipe
from vitlab.studies.grid.base import Base

PATCH, SIDE = 8, 6  # the smallest patch that an hMLP stem takes; patches of a side of the image
CODES = "dVAE(codes=256,width=32,code_width=32)"
# What differs from the papers' recipes beside length, batch and learning rate: small models have
# small decoders and projectors, and short runs a teacher that follows sooner and no dropped blocks.
SMALLER: dict[str, dict[str, Any]] = {
    "masked-patch": {},
    "mae": {"decoder_width": 64, "decoder_depth": 2, "decoder_heads": 2},
    "beit": {"drop_path": 0.0},
    "dino": {
        "drop_path": 0.0,
        "local_crops": 4,
        "prototypes": 1024,
        "head_width": 256,
        "bottleneck": 64,
        "momentum_teacher": 0.99,
        "centering": "sinkhorn",
        "teacher_temperature": (0.02, 0.02),
    },
}


def in_few_patches(base: Base, deeper: int = 0, **choices: Any) -> Recipe:
    """Return the base's recipe with patches of at least 8 pixels, which every stem can take.

    If they are smaller, images are enlarged or reduced to as many patches of 8 pixels, but at most
    6 a side, since learning without labels wants many epochs more than many patches.

    Args:
        base: of the study
        deeper: blocks more than the base has
        choices: fields of the model
    """
    shape, size = base.shape, base.recipe.model.image_size
    own, larger = shape.changed(depth=shape.depth + deeper), {}
    if size and shape.patch < PATCH:
        own = own.changed(patch=PATCH)
        larger = {"image_size": PATCH * min(size // shape.patch, SIDE)}
    return base.vit(own, **{"pool": "mean", **larger, **choices})


def without_labels(base: Base, task: str, model: ModelPart, **choices: Any) -> Recipe:
    """Return the recipe of a task for a small model: one relative epoch, of which a tenth warms up.

    Batch and precision are the base's, the learning rate is half of it, and every task has AdamW,
    crops of at least 30% of the image, one mean and deviation of pixels, and the mean of the
    patches as the feature.

    Args:
        base: of the study
        task: of `vitlab pretrain`
        model: that learns; its name and image size are taken
        choices: further options
    """
    part: dict[str, Any] = {"mean": (0.5,), "std": (0.5,), "pool": "mean"}
    part |= {"image_size": model.image_size} if model.image_size else {}
    return base.published(
        task, model.model, **part, **SMALLER[task], **_common(base), **choices
    ).changed(optimizer="adamw", lr=base.recipe.optimizer.lr / 2, weight_decay=0.05, area=0.3)


def tokenizer(base: Base, model: ModelPart) -> Recipe:
    """Return the recipe of BEiT's codes: half a relative epoch.

    Args:
        base: of the study
        model: that learns the codes, one for each of its patches
    """
    size = {"image_size": model.image_size} if model.image_size else {}
    codes = f"{CODES}/{shape_of(model.model)['patch']}"
    recipe = base.published("tokenizer", codes, **_common(base), **size)
    return recipe.lasting(0.5)


def fine_tuning(base: Base, **choices: Any) -> Recipe:
    """Return the recipe of fine-tuning: the base's, at half its rate and less in early layers.

    Args:
        base: of the study
        choices: further options
    """
    return of_weights(base.recipe).changed(
        lr=base.recipe.optimizer.lr / 2, layer_decay=0.75, **choices
    )


def _common(base: Base) -> dict[str, Any]:
    """Return length, batch and precision."""
    recipe = base.recipe
    return {
        "epochs": 1.0,
        "warmup": 0.1,
        "batch": recipe.batch,
        "precision": recipe.precision,
        "test_every": recipe.test_every,
    }
