"""The recipes by name; each is a function from a model's name to a `Recipe`."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Unpack

from vitlab.data.settings import Augment, Data
from vitlab.errors import OptionError
from vitlab.keywords import RecipeKeywords
from vitlab.options import nearest
from vitlab.places import exists
from vitlab.public_calls import public
from vitlab.recipes.losses import ObjectivePart
from vitlab.recipes.model_part import model_part
from vitlab.recipes.optimization import Optimization
from vitlab.recipes.papers import PAPERS
from vitlab.recipes.pretraining import AFTERWARD, PRETRAINING, continued
from vitlab.recipes.recipe import Recipe
from vitlab.recipes.schedule import Average, Schedule
from vitlab.recipes.start import Start

DIGITS = "ViT(width=64,depth=4,heads=2,mlp=128)/4"
# ViT-S/14 by Oquab et al., DINOv2, 2023, Apache-2.0: small enough for a CPU, and frozen features
# that classify photographs well; its files say 224 pixels.
BACKBONE = "facebook/dinov2-small"
FROM_WEIGHTS = (
    "finetune",
    "vit-finetune",
    "bit-finetune",
    "beit-finetune",
    "mae-finetune",
    "segment",
)  # recipes that do not start from random weights


def digits(model: str = DIGITS) -> Recipe:
    """The embedded digits, 8x8 gray: a small ViT, 50 seconds on two cores.

    Two convolutions make its tokens, which is worth more than size (docs/log.md). Another model is
    trained for twice as long, at a quarter of the rate.
    """
    usual = Recipe(
        recipe="digits",
        data=Data(data="digits"),
        model=model_part(model),
        augment=Augment(rotate=10, shift=0.06, zoom=0.1, shear=5),
        objective=ObjectivePart(label_smoothing=0.1),
        optimizer=Optimization(lr=2e-3, weight_decay=0.05),
        schedule=Schedule(warmup=5),
        average=Average(ema=0.99),
        epochs=60,
        batch=64,
        test_every=5,
    )
    if model != DIGITS:
        return usual
    return replace(
        usual,
        # enlarged to 16 pixels, so that rotation and translation blur less; still 4x4 tokens
        model=model_part(model, image_size=16, pool="mean", stem="conv"),
        optimizer=Optimization(lr=8e-3, weight_decay=0.05),
        schedule=Schedule(warmup=3),
        average=Average(ema=0.98),
        epochs=30,
    )


def small(model: str = "ViT-Ti/16") -> Recipe:
    """A default for a few thousand to a million photographs, from scratch, after DeiT.

    Inception crops and flips (ViT paper, B.1), AdamW with a cosine after five epochs of warm-up,
    label smoothing and a weight average (Touvron et al., DeiT, Table 9, without its mixing).
    """
    return Recipe(
        recipe="small",
        model=model_part(model),
        augment=Augment(area=0.25, flip=True),
        objective=ObjectivePart(label_smoothing=0.1, balance="auto"),
        optimizer=Optimization(lr=1e-3, weight_decay=0.05),
        schedule=Schedule(warmup=5),
        average=Average(ema=0.999),
        epochs=100,
        batch=128,
    )


def finetune(model: str = "") -> Recipe:
    """A few hundred to 50,000 photographs, from trained weights: DINOv2's ViT-S/14 unless named.

    The classifier is fitted to the frozen features first (LP-FT, Kumar et al., 2022). Then all is
    trained: AdamW with layer-wise decay (BEiT), a cosine after a short warm-up, mild crops, flips
    and an average of the weights. From 500 training images on, a tenth of them decides which of
    the two classifiers is kept. Stronger crops, RandAugment, Mixup and stochastic depth made a
    small model worse (docs/log.md); a large one on few images may want `--drop-path 0.1`. Without
    `--from` it starts from facebook/dinov2-small (Apache-2.0, 88 MB, images of 224 pixels) on the
    Hugging Face Hub, which is downloaded once; without a network, name a folder of weights.
    """
    return Recipe(
        recipe="finetune",
        start=Start(weights=BACKBONE, head_start="probe"),
        model=model_part(model),
        augment=Augment(area=0.6, flip=True),
        objective=ObjectivePart(label_smoothing=0.1, balance="auto"),
        optimizer=Optimization(lr=2e-4, weight_decay=0.05, layer_decay=0.75),
        schedule=Schedule(warmup=3),
        average=Average(ema=0.99),
        epochs=30,
        batch=32,
    )


def cifar10(model: str = "ViT-Ti/4") -> Recipe:
    """CIFAR-10 and similar data, 32x32 color images, in a few epochs on a CPU."""
    return Recipe(
        recipe="cifar10",
        model=model_part(model),
        augment=Augment(flip=True, shift=0.125),
        objective=ObjectivePart(label_smoothing=0.1),
        optimizer=Optimization(lr=1e-3, weight_decay=0.05),
        schedule=Schedule(warmup=1),
        average=Average(ema=0.99),
        epochs=10,
        batch=128,
    )


def cifar10_cpu(model: str = "ViT(width=128,depth=6,heads=4,mlp=256)/4") -> Recipe:
    """CIFAR-10 on two CPU cores in about nine minutes, 68.3% (docs/results.md).

    A sixth of the multiply-adds of ViT-Ti/4; Muon was better than AdamW in the same time.
    """
    return replace(
        cifar10(model),
        recipe="cifar10-cpu",
        optimizer=Optimization(optimizer="muon", lr=2e-3, weight_decay=0.05),
        schedule=Schedule(warmup=0.75),
        average=Average(ema=0.998),
        epochs=9,
    )


# CIFAR-10's training images: the mean of each channel, and its standard deviation
MEAN = (0.49, 0.48, 0.45)
STD = (0.25, 0.24, 0.26)
LOCAL = "ViT(width=128,depth=6,heads=8,mlp=256)/4"


def cifar10_cpu_long(model: str = LOCAL) -> Recipe:
    """CIFAR-10 on two CPU cores in about twenty minutes: `--budget 20m` fits it to the machine.

    As `cifar10-cpu`, with heads that start at the neighbors of a patch (ConViT), the mean of the
    patches in place of a class token, and three times the learning rate (docs/log.md).
    """
    part = {"pool": "mean", "positions": "bias", "bias_locality": 1.0} if model == LOCAL else {}
    first = cifar10_cpu(model)
    return replace(
        first,
        recipe="cifar10-cpu-long",
        model=model_part(model, mean=MEAN, std=STD, **part),
        # a shift by parts of a pixel blurs less than with bilinear interpolation
        augment=replace(first.augment, augment_interpolation="bicubic"),
        optimizer=replace(first.optimizer, lr=6e-3),
        schedule=Schedule(warmup=1.5),
        epochs=18,
        test_every=6,
    )


def cifar10_gpu(model: str = LOCAL) -> Recipe:
    """CIFAR-10 on one GPU in about a minute: 84.7% in 71 s on an H200 (docs/performance.md).

    As `cifar10-cpu-long`, with four times its batch.
    """
    return replace(cifar10_cpu_long(model), recipe="cifar10-gpu", batch=512)


# Each makes its recipe for a model by its name: "" for that of trained weights.
RECIPES: dict[str, Callable[..., Recipe]] = {
    each.__name__.replace("_", "-"): each
    for each in (
        digits,
        small,
        finetune,
        cifar10,
        cifar10_cpu,
        cifar10_cpu_long,
        cifar10_gpu,
        *PAPERS,
        *PRETRAINING,
        *AFTERWARD,
    )
}


@public(name=str)
def recipe(name: str, data: str = "", **choices: Unpack[RecipeKeywords]) -> Recipe:
    """Return a recipe by name, with any of its options or its model's fields chosen.

    Args:
        name: one of `RECIPES`; `vitlab recipes` lists them; `digits` is a recipe, and data, too
        data: what to learn from, unless the recipe says so: `vitlab.recipe("small", "photos")`
        choices: options by their own names, as on the command line: `lr=1e-3`,
            `model="ViT-S/16"`; where a paper has a row for the model, the recipe follows it

    Raises:
        OptionError: an unknown recipe or option, an invalid value, or an option without effect.
    """
    if name not in RECIPES:
        hint = nearest(name, RECIPES)
        if exists(name) or "/" in name or not hint.startswith("did you mean"):
            hint = f"the recipe comes first, the data second: vitlab.recipe('small', {name!r})"
        raise OptionError(f"unknown recipe {name!r}: {hint}")
    given: dict[str, Any] = {**choices, **({"data": data} if data else {})}
    model = given.pop("model", None)
    if given.get("weights") or model == "":
        return of_weights(name, model or "").changed(**given)
    made = RECIPES[name]() if model is None else RECIPES[name](model)
    return made.changed(**given)


def of_weights(name: str, model: str = "") -> Recipe:
    """Return a recipe for trained weights: their architecture, and all else that the recipe sets.

    `vitlab.recipes.model_part.OF_RECIPE` says which fields of the model are the recipe's.

    Args:
        name: of the recipe
        model: that of the weights, if the user says it, whose row of a table it is then; else the
            row is that of the recipe's usual model
    """
    made = RECIPES[name](model)
    return continued(replace(made, model=made.model.of_weights(model)))


def default_weights(name: str) -> str:
    """Return the weights that a recipe starts from if none are named; empty if it has none."""
    return RECIPES[name]().start.weights if name in FROM_WEIGHTS else ""


def default_data(name: str) -> str:
    """Return the data that a recipe is for, if it names any; empty otherwise."""
    return RECIPES[name]().data.data if name in RECIPES else ""


def default_recipe(data: str) -> str:
    """Return the name of the recipe for some data if none is named."""
    return "digits" if data == "digits" else "small"
