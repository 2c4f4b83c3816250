"""The recipes by name; each is one function that returns a `Recipe`."""

import difflib
from collections.abc import Callable
from typing import Any

from vitlab.data.options import Augment, Data
from vitlab.errors import UserError
from vitlab.training.recipe import (
    Average,
    ModelPart,
    Objective,
    Optimiser,
    Recipe,
    Schedule,
    change,
)


def digits() -> Recipe:
    """The embedded digits, 8x8 grey: a small ViT, a minute and a half on two cores."""
    return Recipe(
        recipe="digits",
        data=Data(data="digits"),
        # doubled first, so that turning and shifting them blurs less; still 4x4 tokens
        model=ModelPart(
            model="ViT(width=96,depth=6,heads=3,mlp=384)/4", image_size=16, pool="mean"
        ),
        augment=Augment(rotate=10, shift=0.06, zoom=0.1, shear=5),
        objective=Objective(label_smoothing=0.1),
        optimiser=Optimiser(lr=2e-3, weight_decay=0.05),
        schedule=Schedule(warmup=5),
        average=Average(ema=0.99),
        epochs=60,
        batch=64,
        test_every=5,
    )


def small() -> Recipe:
    """A default for a few thousand to a million photographs, from scratch, in the DeiT manner.

    Inception crops and flips (ViT paper, B.1), AdamW with a cosine after five epochs of warm-up,
    label smoothing and a weight average (Touvron et al., DeiT, Table 9, without its mixing).
    """
    return Recipe(
        recipe="small",
        model=ModelPart(model="ViT-Ti/16"),
        augment=Augment(area=0.25, flip=True),
        objective=Objective(label_smoothing=0.1),
        optimiser=Optimiser(lr=1e-3, weight_decay=0.05),
        schedule=Schedule(warmup=5),
        average=Average(ema=0.999),
        epochs=100,
        batch=128,
    )


def cifar10() -> Recipe:
    """CIFAR-10 and its like, 32x32 colour images, in a few epochs on a CPU."""
    return Recipe(
        recipe="cifar10",
        model=ModelPart(model="ViT-Ti/4"),
        augment=Augment(flip=True, shift=0.125),
        objective=Objective(label_smoothing=0.1),
        optimiser=Optimiser(lr=1e-3, weight_decay=0.05),
        schedule=Schedule(warmup=1),
        average=Average(ema=0.99),
        epochs=10,
        batch=128,
        precision="bf16",
    )


RECIPES: dict[str, Callable[[], Recipe]] = {
    each.__name__: each for each in (digits, small, cifar10)
}


def recipe(name: str, data: str = "", **choices: Any) -> Recipe:
    """A recipe by name, with any field of it or of its model chosen otherwise.

    Args:
        name: one of `RECIPES`; `vitlab recipes` lists them
        data: what to learn from, where the recipe does not say
        choices: fields by their own names, as on the command line: `lr=1e-3`, `model="ViT-S/16"`

    Raises:
        ValueError: an unknown recipe or field, or a value that cannot be.
    """
    if name not in RECIPES:
        near = difflib.get_close_matches(name, RECIPES, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(RECIPES)}"
        raise UserError(f"unknown recipe {name!r}: {hint}")
    chosen = choices | ({"data": data} if data else {})
    return change(RECIPES[name](), **chosen)
